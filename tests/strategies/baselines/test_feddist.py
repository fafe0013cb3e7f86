import numpy as np
import pytest

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.baselines.fedavg import FedDist
from bouquet.strategies.registry import create_strategy


def clients(scripted):
    few = scripted("a", lambda sent, _: sent + 1, metrics={protocol.NUM_EXAMPLES: 10})
    many = scripted("b", lambda sent, _: sent + 5, metrics={protocol.NUM_EXAMPLES: 30})
    return InlineGrid({1: few, 2: many})


@pytest.mark.parametrize(
    ("name", "steps"), [("feddist", [1.5, 3.0]), ("feddws", [2.0, 4.0])], ids=["all alike", "by samples"]
)
def test_the_model_moves_half_the_way_to_the_mean(name, steps, scripted, play):
    """Means of the moves: 3 where both weigh alike, 4 by numbers of samples."""
    strategy = create_strategy(name, {}, identify=True)
    for round_, moved in enumerate(steps, start=1):
        play(strategy, clients(scripted), range(round_, round_ + 1))
        assert strategy.centers(strategy.state).tolist() == [[moved] * 8]


def test_a_whole_step_by_samples_is_fedavg(scripted, play):
    found = []
    for name, options in (("feddws", {"step_size": 1.0}), ("fedavg", {})):
        strategy = create_strategy(name, options, identify=True)
        play(strategy, clients(scripted), range(1, 4))
        found.append(strategy.centers(strategy.state))
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("step_size", [0.0, -1.0, 1.5])
def test_a_step_size_that_is_none(step_size):
    with pytest.raises(BouquetError, match=f"step_size = {step_size}"):
        FedDist(step_size=step_size)
