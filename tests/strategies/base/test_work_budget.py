"""A slow device does fewer steps, and its data count as much."""

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.protocol import NUM_EXAMPLES, TRAIN_SECONDS
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.experiments.simulation.run import simulate
from bouquet.experiments.simulation.timed_grid import TimedGrid
from bouquet.server.run.build import build_strategy
from bouquet.strategies.base.protection import Protection
from bouquet.strategies.base.work_budget import FIRST_STEPS, WorkBudget
from bouquet.strategies.baselines.fedavg import FedAvg
from bouquet.strategies.gradient_loss.strategy import GradientLoss
from bouquet.strategies.gradient_loss.wire import TRAINED

CAN = {"fedavg", "fedprox", "feddist", "feddws", "fedper", "ditto", "fesem", "fesem-ma", "anchored"}
CAN |= {"ifca", "gradient-loss"}
SPEEDS = (100, 100, 40)


def moving(place, shift=np.zeros(8)):
    """A device whose every step is along an axis of its own."""
    return lambda start, received: start + received.config["local-steps"] * np.eye(8)[place] + shift


def made(kind=FedAvg, **options):
    strategy = kind(identify=True, **options)
    strategy.budget = WorkBudget(epochs=1, batch_size=1)  # a scripted device has ten samples
    return strategy


def test_a_slow_device_does_the_steps_that_fit_the_median_devices_time(scripted, play):
    grid = TimedGrid({n: scripted(name, moving(n)) for n, name in enumerate("abc")}, SPEEDS)
    strategy, told, ends = made(), [], []
    for round_ in (1, 2, 3):
        play(strategy, grid, range(round_, round_ + 1))
        told.append(dict(strategy.budget.steps))
        ends.append(round(grid.clock(), 3))
    first = dict.fromkeys("abc", FIRST_STEPS)
    assert told == [first, {"a": 10, "b": 10, "c": 4}, {"a": 10, "b": 10, "c": 4}]
    assert np.diff(ends).tolist() == pytest.approx([0.1, 0.1])  # all of c's would take .25 s


def test_an_update_counts_as_of_the_mean_number_of_steps(scripted, play):
    strategy = made()
    play(strategy, TimedGrid({n: scripted(name, moving(n)) for n, name in enumerate("abc")}, SPEEDS), range(1, 3))
    each = (FIRST_STEPS + 8) / 3  # and not 10, 10 and 4 in the second round
    assert strategy.centers(strategy.state)[0][:3].tolist() == pytest.approx([each] * 3)


def test_the_norm_is_limited_of_what_counts(scripted, play):
    """Before it, a device of large steps would count for twice the limit: its four steps are shorter than ten."""
    strategy = made()
    strategy.protection = Protection(limit_norm=1.0)
    devices = {"a": moving(0), "b": moving(1), "c": lambda start, received: 2 * moving(2)(start, received) - start}
    grid = TimedGrid({n: scripted(name, train) for n, (name, train) in enumerate(devices.items())}, SPEEDS)
    play(strategy, grid, range(1, 2))
    before = strategy.centers(strategy.state)[0]
    play(strategy, grid, range(2, 3))
    assert strategy.train_round.limited == {"c": 0.5}
    assert (strategy.centers(strategy.state)[0] - before)[:3].tolist() == pytest.approx([8 / 3] * 3)


def test_where_devices_choose_the_update_is_from_the_model_that_was_trained(scripted, play):
    def train(start, received):
        return received.models["center-1"].vector + received.config["local-steps"] * np.eye(8)[0]

    strategy = made(GradientLoss, num_clusters=2, gradient_weight=0.0, local_update="epochs")
    said = {"cluster": 1, TRAINED: 1}
    grid = TimedGrid({n: scripted(name, train, said) for n, name in enumerate("abc")}, SPEEDS)
    play(strategy, grid, range(1, 2))
    before = strategy.centers(strategy.state)[1]
    play(strategy, grid, range(2, 3))
    assert (strategy.centers(strategy.state)[1] - before)[0] == pytest.approx(8)


def test_what_says_nothing_of_its_time_does_the_first_steps(scripted, play):
    strategy = made()
    play(strategy, InlineGrid({1: scripted("a", moving(1)), 2: scripted("b", moving(2))}), range(1, 3))
    assert strategy.budget.steps == {"a": FIRST_STEPS, "b": FIRST_STEPS}


@pytest.mark.parametrize(("samples", "seconds"), [(10, 5e-324), (10, 1e-320), (10, 1e39), (10**9, 1e-9), (10**9, 1e39)])
def test_what_one_claims_of_its_speed_ends_no_run_and_scales_no_other(scripted, play, samples, seconds):
    claims = {NUM_EXAMPLES: samples, TRAIN_SECONDS: seconds}
    honest = {n: scripted(f"h{n}", moving(0), {TRAIN_SECONDS: 0.1}) for n in range(8)}
    moved = []
    for said in ({TRAIN_SECONDS: 0.1}, claims):
        strategy = made()
        strategy.protection = Protection(limit_norm=2.0)
        play(strategy, InlineGrid({**honest, 8: scripted("x", moving(1), said)}), range(1, 4))
        moved.append(strategy.centers(strategy.state)[0][0])
    assert moved[0] / 2 < moved[1] < 2 * moved[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_more_than_local_sgd_refuses_the_setting_by_name(method):
    settings = load_settings(None, [f"strategy.name={method}", "train.budget=fleet", "data.public_fraction=0.1"])
    if method in CAN:
        assert build_strategy(settings).budget == WorkBudget(2, 16)
    else:
        with pytest.raises(BouquetError, match=f"train.budget = 'fleet' does not fit '{method}'.*take 'epochs'"):
            build_strategy(settings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["strategy.name=gradient-loss", "strategy.local_update=step", "simulation.speeds=[1]"],
            "does not fit 'gradient-loss'",
        ),
        (["privacy.clip_norm=1.0", "simulation.speeds=[1]"], "does not fit privacy.scores = 'withhold'"),
        ([], "needs simulation.speeds"),
    ],
)
def test_what_it_does_not_fit_is_said_before_the_run_begins(changes, said, tmp_path):
    with pytest.raises(BouquetError, match=said):
        simulate(load_settings(None, ["strategy.name=fedavg", "train.budget=fleet", *changes]), tmp_path / "run")
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
