import pytest

from bouquet.experiments.plots.methods.dcpfl import bytes_against_fedavg, group_graph, periods_by_round
from bouquet.server.record.reader import read_run

GRAPH = {"clients": ["client-0", "client-1", "client-2"], "linkage": [[0, 2, 1.0, 2], [1, 3, 4.0, 3]]}


def record(**changes):
    return {"gamma": 1.0, "loss": 0.5, "radius": None, "period_end": None, "trial": None, "graph": None, **changes}


def trial(accepted):
    return {"gamma": 0.8, "loss_old": 1.0, "loss_new": 0.5, "accepted": accepted, "asked": 3, "answered": 3}


@pytest.fixture
def run(write_run, edit_round):
    folder = write_run(clients=3, rounds=6)
    edit_round(folder, 1, strategy=record(loss=2.0))
    edit_round(folder, 2, strategy=record(loss=1.0, radius=30.0, graph=GRAPH))
    edit_round(folder, 3, strategy=record(radius=5.0, period_end=2))
    edit_round(folder, 4, strategy=record(trial=trial(False), period_end=2))
    edit_round(folder, 5, strategy=record(trial=trial(True), gamma=0.8))
    edit_round(folder, 6, strategy=record(gamma=0.8), bytes_up=300, bytes_down=600, replies=2, failures=1)
    return read_run(folder)


def lines(ax):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def test_the_loss_is_drawn_with_the_ends_of_the_periods_and_the_trials(run):
    loss, radius = periods_by_round(run).axes
    drawn = lines(loss)
    assert drawn["loss as received"] == ([1, 2, 3, 4, 5, 6], [2.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    assert drawn["end of a period"][0] == [2, 2]
    assert (drawn["trial lost"][0], drawn["trial won"][0]) == ([4], [5])
    assert lines(radius)["radius (where finite)"] == ([2, 3], [30.0, 5.0])


def test_the_dendrogram_is_cut_at_each_stage(run):
    (ax,) = group_graph(run).axes
    assert {label: y[0] for label, (_, y) in lines(ax).items()} == {
        "γ̃ = 1, at first": 1.0,
        "γ̃ = 0.8, after round 5": 0.8,
    }
    (joints,) = ax.collections
    assert [path.vertices[:, 1].max() for path in joints.get_paths()] == [0.25, 1.0]
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["client-1", "client-0", "client-2"]


def test_bytes_are_held_against_what_fedavg_would_have_sent(run):
    """In the first round each client got 400 and sent 200 bytes; in the last one three were asked and two replied."""
    each, total = bytes_against_fedavg(run).axes
    assert lines(each)["this run"][1][-1] == 900
    assert lines(each)["FedAvg"][1] == [1800] * 5 + [2 * 200 + 3 * 400]
    assert [line.get_ydata()[-1] for line in total.lines] == [5 * 1800 + 900, 5 * 1800 + 1600]
