import pytest

from bouquet.common.settings import parse_settings
from bouquet.experiments.plots.methods.fedtsdp import hopkins_by_round
from bouquet.server.record.reader import read_run

SETTINGS = parse_settings({"strategy": {"name": "fedtsdp"}, "run": {"rounds": 4}}, {})


@pytest.fixture
def folder(write_run, edit_round):
    """H passes 0.65 in rounds 2 and 4; after round 4 one layer less is shared; round 3 had one reply."""
    made = write_run("run", SETTINGS, rounds=4, similarity=True)
    for number, h, clustered, real, whole in (
        (1, 0.6, False, 4.0, 4),
        (2, 0.7, True, 3.92, 4),
        (3, None, False, 3.92, 4),
        (4, 0.8, True, 3.49, 3),
    ):
        record = {"hopkins": h, "hopkins_deviation": None if h is None else 0.02, "hopkins_threshold": 0.65}
        record |= {"clustered": clustered, "shared_layers": real, "whole_shared_layers": whole}
        edit_round(made, number, strategy=record)
    return made


def test_hopkins_by_round_marks_clusterings_and_layers(folder):
    top, bottom = hopkins_by_round(read_run(folder)).axes
    h, threshold, *marks = top.lines
    assert (h.get_xdata().tolist(), h.get_ydata().tolist()) == ([1, 2, 4], [0.6, 0.7, 0.8])
    assert set(threshold.get_ydata()) == {0.65}
    assert [set(mark.get_xdata()) for mark in marks] == [{2}, {4}, {4}]
    assert marks[2].get_linewidth() > marks[0].get_linewidth()
    assert bottom.lines[-1].get_ydata().tolist() == [4, 4, 3]
    assert bottom.lines[-2].get_ydata().tolist() == [4.0, 3.92, 3.49]
