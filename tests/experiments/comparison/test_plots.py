import itertools

import pytest

from bouquet.experiments.comparison.plots import gain_map, score_by_effort
from bouquet.experiments.comparison.significance import paired_difference
from bouquet.server.record.reader import read_run

PANELS = {
    "IID": {"20 samples, IID": "20 samples", "80 samples, IID": "80 samples"},
    "rotated": {"20 samples, rotated": "20 samples", "80 samples, rotated": "80 samples"},
}


def gain(points):
    """A difference of so many points, nearly the same in each of two seeds."""
    clients = {0: {"a": 0.5, "b": 0.6}, 1: {"a": 0.7, "b": 0.8}}
    gains = {0: points / 100 - 1e-6, 1: points / 100 + 1e-6}
    more = {seed: {c: accuracy + gains[seed] for c, accuracy in found.items()} for seed, found in clients.items()}
    return paired_difference(more, clients)


def test_gains_are_drawn_in_a_panel_a_partition_with_their_points():
    columns = [column for panel in PANELS.values() for column in panel]
    gains = {
        (row, column): gain(points)
        for points, (row, column) in zip(
            (-3.0, 5.0, 7.5, 0.0, 1.0, 2.0, 3.0, 4.0), itertools.product(("FedPer", "Ditto"), columns), strict=True
        )
    }
    figure = gain_map("Gain", gains, PANELS)
    iid, rotated = figure.axes[:2]

    assert [ax.get_title() for ax in (iid, rotated)] == ["IID", "rotated"]
    assert iid.images[0].get_array().tolist() == [pytest.approx([-3.0, 5.0]), pytest.approx([1.0, 2.0])]
    assert rotated.images[0].get_array().tolist() == [pytest.approx([7.5, 0.0]), pytest.approx([3.0, 4.0])]
    assert [text.get_text() for text in iid.texts] == ["-3.0", "+5.0", "+1.0", "+2.0"]
    assert [label.get_text() for label in rotated.get_xticklabels()] == ["20 samples", "80 samples"]


def test_a_panel_without_gains_is_left_out_and_no_gain_at_all_gives_no_figure():
    figure = gain_map("Gain", {("FedPer", "80 samples, rotated"): gain(2.0)}, PANELS)
    drawn = [ax for ax in figure.axes if ax.images]

    assert [ax.get_title() for ax in drawn] == ["rotated"]
    assert [label.get_text() for label in drawn[0].get_xticklabels()] == ["80 samples"]
    assert gain_map("Gain", {}, PANELS) is None


def test_bytes_are_on_a_logarithmic_axis_where_rows_differ_by_more_than_ten_times(write_run, edit_round):
    whole = read_run(write_run("whole", rounds=2))
    folder = write_run("packed", rounds=2)
    for round_ in (1, 2):
        edit_round(folder, round_, bytes_up=10, bytes_down=10)
    packed = read_run(folder)

    assert score_by_effort("a", {"whole": [whole]}, "bytes").axes[0].get_xscale() == "linear"
    assert score_by_effort("b", {"whole": [whole], "packed": [packed]}, "bytes").axes[0].get_xscale() == "log"
