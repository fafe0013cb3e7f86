"""A run that waited for nobody, once more: replies taken as its record has them come to the same models."""

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.wire.flower import error_reply
from bouquet.experiments.simulation.run import simulate
from bouquet.experiments.simulation.timed_grid import TimedGrid
from tests.helpers.stopped_runs import cut_after, lines_of, models_of

BASE = ["data.clients=6", "data.samples_per_client=100", "data.partition=rotated", "data.groups=2", "run.rounds=9"]
BASE += ["simulation.engine=inline", "server.buffer=0.4", "server.evaluate_every=4"]
SAME = ("round", "late", "failed", "assignment", "by_client", "accuracy_macro")
SPEEDS = "simulation.speeds=[1000,300,150]"


class Fleet(TimedGrid):
    """A fleet of which one device breaks in its second task, and one is away for a while."""

    def __init__(self, handlers, **engine):
        (self.broken, self.away, *_), self.tasks = handlers, 0
        handle = handlers[self.broken]
        super().__init__({**handlers, self.broken: lambda message: self.break_once(message, handle)}, **engine)

    def break_once(self, message, handle):
        self.tasks += message.metadata.message_type == "train"
        is_second = self.tasks == 2 and message.metadata.message_type == "train"
        return error_reply(message, 2, "No space left.") if is_second else handle(message)

    def get_node_ids(self):
        return [node for node in self.handlers if node != self.away or not 0.3 < self.now < 1.5]


@pytest.mark.parametrize("method", ["fesem", "ditto"])
@pytest.mark.parametrize("more", ["simulation.engine=batched", "wire.up=int8"])
def test_a_recorded_run_comes_to_the_same_models(method, more, tmp_path):
    chosen = [*BASE, f"strategy.name={method}", more]
    first, again = tmp_path / "first", tmp_path / "again"
    simulate(load_settings(None, [*chosen, SPEEDS]), first)
    assert sum(len(line["late"]) for line in lines_of(first)) > 3
    simulate(load_settings(None, chosen), again, arrivals=first)
    for one, other in zip(lines_of(first), lines_of(again), strict=True):
        assert {name: one[name] for name in SAME} == {name: other[name] for name in SAME}
    np.testing.assert_equal(models_of(again), models_of(first))


@pytest.mark.parametrize("buffer", [0.4, 1])
def test_also_where_a_device_failed_and_one_was_away(buffer, tmp_path):
    chosen = [*BASE, "strategy.name=fesem", f"server.buffer={buffer}"]
    first, again = tmp_path / "first", tmp_path / "again"
    simulate(load_settings(None, [*chosen, SPEEDS]), first, grid=Fleet)

    simulate(load_settings(None, chosen), again, arrivals=first)
    assert [[*line["failed"]] for line in lines_of(again)] == [[*line["failed"]] for line in lines_of(first)]
    np.testing.assert_equal(models_of(again), models_of(first))


def test_also_where_the_server_was_killed_while_devices_were_at_work(tmp_path):
    """So it holds, too, that a late reply counts after a restart as it would have counted without one."""
    chosen = [*BASE, "strategy.name=fedavg"]
    first, again = tmp_path / "first", tmp_path / "again"
    cut_after(5, load_settings(None, [*chosen, SPEEDS]), first)
    simulate(load_settings(None, [*chosen, SPEEDS]), first, resume=True)
    assert any(line["round"] - late <= 5 < line["round"] for line in lines_of(first) for late in line["late"].values())
    simulate(load_settings(None, chosen), again, arrivals=first)
    np.testing.assert_equal(models_of(again), models_of(first))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["run.rounds=3"], "it has 2 rounds"),
        (["train.budget=fleet", SPEEDS], "train.budget"),
        (["server.fraction_train=0.5"], "fraction_train = 0.5"),
        (["simulation.engine=ray"], "'ray'"),
    ],
)
def test_what_cannot_be_taken_as_it_came_is_refused_before_anything_is_written(changes, why, tmp_path):
    simulate(load_settings(None, [*BASE, "run.rounds=2"]), tmp_path / "first")
    chosen = load_settings(None, [*BASE, "run.rounds=2", *changes])
    with pytest.raises(BouquetError, match=f"cannot be taken again as they came: .*{why}"):
        simulate(chosen, tmp_path / "again", arrivals=tmp_path / "first")
    assert not (tmp_path / "again").exists()


def test_the_record_of_another_fleet_ends_the_run_with_a_reason(tmp_path):
    simulate(load_settings(None, [*BASE, SPEEDS]), tmp_path / "first")
    with pytest.raises(BouquetError, match="Round 1 of the record has replies that do not come"):
        simulate(load_settings(None, [*BASE, "data.clients=3"]), tmp_path / "again", arrivals=tmp_path / "first")
