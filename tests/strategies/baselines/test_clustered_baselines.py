"""What the clustered baselines compare are parameters, whatever the statistics and counters of a model are."""

import numpy as np
import pytest

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.baselines.cfl import CFL
from bouquet.strategies.registry import create_strategy

NAMES = ("cfl", "fl-hc", "fedgroup", "clusterfl", "cgpfl", "robust-tkm", "hypocluster")
OPTIONS = {
    "cfl": {},
    "fl-hc": {"warmup_rounds": 1, "num_clusters": 2},
    "robust-tkm": {"num_clusters": 2},
}


NORMALISED = ParameterLayout.of(
    {
        "n.weight": np.zeros(2, dtype=np.float32),
        "n.running_mean": np.zeros(2, dtype=np.float32),
        "n.num_batches_tracked": np.zeros((), dtype=np.int64),
    },
    ["n.weight"],
)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "hypocluster"])
def test_what_is_compared_are_parameters(name, monkeypatch):
    """Statistics of batches that differ by thousands part nobody whose parameters are alike."""
    monkeypatch.setattr(CFL, "settled", 1.1)
    monkeypatch.setattr(CFL, "in_conflict", 0.01)
    strategy = create_strategy(name, OPTIONS.get(name, {"num_clusters": 2}))
    strategy.layout = NORMALISED
    state = strategy.initial_state(NORMALISED, np.zeros(NORMALISED.dim, dtype=np.float32))
    goals = {"a": (1.0, 1000), "b": (1.1, -1000), "c": (-1.0, 1000), "d": (-1.1, -1000), "e": (1.2, 1000)}
    for round_ in range(1, 6):
        plan = strategy.plan(state, round_, sorted(goals))
        received = []
        for node, (client, (goal, statistic)) in enumerate(sorted(goals.items())):
            sent = NORMALISED.unflatten(plan[client].models[ARRAYS].vector)
            sent["n.weight"] = sent["n.weight"] + np.float32(0.5) * (np.float32(goal) - sent["n.weight"])
            sent["n.running_mean"] = np.full(2, statistic, dtype=np.float32)
            sent["n.num_batches_tracked"] = np.array(round_ * 10, dtype=np.int64)
            received.append(ClientReply(client, node, NORMALISED.flatten(sent), NORMALISED.layers, 10, {}, {}))
        state = strategy.update(state, round_, Replies(NORMALISED, tuple(received), plan))
    known = strategy.assignment(state)
    assert known["a"] == known["b"] == known["e"] != known["c"] == known["d"]
    for center in strategy.centers(state):
        assert NORMALISED.unflatten(center)["n.num_batches_tracked"] > 0
