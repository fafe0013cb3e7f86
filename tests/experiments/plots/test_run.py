import itertools
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bouquet.common import methods
from bouquet.common.settings import parse_settings
from bouquet.experiments.plots import run as plots
from bouquet.experiments.plots.clients import identity_by_round
from bouquet.experiments.plots.style import new_figure, svg
from bouquet.server.record.reader import read_run


def line(figure, label, axes=0):
    """Points of the line with that label."""
    found = next(drawn for drawn in figure.axes[axes].lines if drawn.get_label() == label)
    return found.get_xdata().tolist(), found.get_ydata().tolist()


def test_identity_has_a_row_for_each_client_group_by_group(write_run, edit_round):
    folder = write_run(clients=4, groups=2, rounds=3)
    edit_round(folder, 3, assignment={"client-0": 0, "client-2": 7, "client-3": 1})
    figure = identity_by_round(read_run(folder))
    cells = figure.axes[0].images[0].get_array()

    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [f"client-{n}" for n in (0, 2, 1, 3)]
    np.testing.assert_array_equal(cells.filled(-1), [[0, 0, 0], [0, 0, 2], [0, 1, -1], [0, 1, 1]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "cluster 0",
        "cluster 1",
        "cluster 7",
        "not known",
    ]


def test_a_run_without_rounds_has_no_plots(write_run):
    folder = write_run(finished=False)
    (folder / "rounds.jsonl").unlink()

    assert plots.plots_of(read_run(folder)) == []


def test_a_strategy_adds_its_own_plots(write_run, monkeypatch):
    own = new_figure("Dendrogram", 3)[0]
    module = ModuleType("own_plots")
    module.PLOTS = [lambda run: own, lambda run: None]
    monkeypatch.setitem(sys.modules, "own_plots", module)
    monkeypatch.setitem(methods.METHODS, "fesem", replace(methods.METHODS["fesem"], plots="own_plots"))
    other = parse_settings({"strategy": {"name": "fedavg"}}, {})

    assert plots.plots_of(read_run(write_run("fesem")))[-1] is own
    titles = [figure.get_suptitle() for figure in plots.plots_of(read_run(write_run("fedavg", other)))]
    assert "Dendrogram" not in titles


def test_seeds_are_compared_by_their_mean_and_sample_deviation(write_run):
    low, high = (read_run(write_run(name, rounds=2, accuracy=a)) for name, a in (("low", 0.4), ("high", 0.8)))
    figure = plots.compared_by_round(
        "Accuracy", "accuracy", {"both": [low, high], "none": []}, lambda run: run.outcome("accuracy_macro")
    )
    (band,) = figure.axes[0].collections

    assert line(figure, "both") == ([1, 2], pytest.approx([0.3, 0.6]))
    half = np.sqrt(2 * 0.2**2)
    assert band.get_datalim(figure.axes[0].transData).y1 == pytest.approx(0.6 + half)
    assert plots.compared_by_round("Purity", "purity", {"none": []}, lambda run: run.series("purity")) is None


@pytest.mark.parametrize(("clients", "groups"), [(2, 1), (6, 3), (80, None), (150, 75)])
def test_no_label_touches_another_and_none_is_cut_off(write_run, clients, groups):
    folder = write_run(clients=clients, groups=groups, rounds=4, layers=tuple("abcdefghij"))
    for figure in plots.plots_of(read_run(folder)):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        whole = figure.bbox.expanded(1.005, 1.005)
        axes = [*figure.axes, *itertools.chain.from_iterable(ax.child_axes for ax in figure.axes)]
        for axis in itertools.chain.from_iterable((ax.xaxis, ax.yaxis) for ax in axes):
            low, high = sorted(axis.get_view_interval())
            shown = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            shown += [tick.label2 for tick in axis.get_major_ticks() if tick.label2.get_visible()]
            boxes = [text.get_window_extent() for text in shown if text.get_visible() and text.get_text()]
            name = figure.get_suptitle()
            assert all(whole.containsx(box.x0) and whole.containsx(box.x1) for box in boxes), name
            assert all(whole.containsy(box.y0) and whole.containsy(box.y1) for box in boxes), name
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2)), name


def test_the_same_figure_gives_the_same_svg(write_run):
    run = read_run(write_run())

    first, second = (svg(identity_by_round(run)) for _ in range(2))
    assert first == second
    assert b"Cluster of each client by round" in first  # text stays text
