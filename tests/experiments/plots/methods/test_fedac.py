import pytest

from bouquet.experiments.plots.methods.fedac import number_of_clusters_by_round
from bouquet.server.record.reader import read_run


def record(number, clusters, *changes, **more):
    found = [{"kind": kind, "clusters": [0], "figure": figure, "against": 0.2} for kind, figure in changes]
    return {"round": number, "num_clusters": clusters, "changes": found, "ratios": [], "silhouettes": {}, **more}


@pytest.fixture
def drawn(write_run, edit_round):
    """Two clusters, split into four in round 1, merged into three in round 3; round 2 had too few replies."""
    folder = write_run(rounds=3, groups=3)
    first = record(1, 4, ("split", 0.8), ("split", 0.8), ratios=[0.2, 0.4, None, 0.6], silhouettes={"2": 0.5, "4": 0.8})
    edit_round(folder, 1, strategy=first)
    edit_round(folder, 2, strategy=first)
    edit_round(folder, 3, strategy=record(3, 3, ("merge", 0.9), ratios=[0.1, 0.1, 0.1], silhouettes={"3": 0.9}))
    return number_of_clusters_by_round(read_run(folder))


def points(axes):
    return {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in axes.lines}


def test_the_number_of_clusters_begins_where_the_run_began(drawn):
    found = points(drawn.axes[0])
    assert [list(values) for values in found["clusters (K)"]] == [[0, 1, 2, 3], [2, 4, 4, 3]]
    assert set(found["true groups"][1]) == {3}


def test_splits_and_merges_are_marked_once_with_their_figure(drawn):
    found = points(drawn.axes[0])
    assert list(found["clusters split"][0]) == [1]
    assert list(found["clusters merged"][0]) == [3]
    assert [text.get_text() for text in drawn.axes[0].texts] == ["2 at 0.80", "1 at 0.90"]


def test_the_figures_that_decide_are_drawn_below(drawn):
    found = points(drawn.axes[1])
    assert [list(values) for values in found["best silhouette"]] == [[1, 3], [0.8, 0.9]]
    at, mean = found["ρ = intra / inter"]
    assert (list(at), list(mean)) == ([1, 3], pytest.approx([0.4, 0.1]))
