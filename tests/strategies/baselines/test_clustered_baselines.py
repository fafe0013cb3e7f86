"""What all clustered baselines must stand: a sample of the clients, a device that vanishes, batch normalisation."""

import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from bouquet.client.app import make_client_app
from bouquet.client.node_config import NUM_PARTITIONS, PARTITION_ID
from bouquet.common import protocol
from bouquet.common.model.build import initial_model, parameter_names, state_vector
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.registry import create_strategy

NAMES = ("cfl", "fl-hc", "fedgroup", "clusterfl", "cgpfl", "robust-tkm", "hypocluster")
CLIENTS = 6
OPTIONS = {
    "cfl": {"stationary_norm": 100.0, "conflict_norm": 0.01, "min_separation": 0.1},
    "fl-hc": {"warmup_rounds": 1, "num_clusters": 2},
    "robust-tkm": {"num_clusters": 2},
}
SETTINGS = load_settings(
    None,
    [
        f"data.clients={CLIENTS}",
        "data.partition=rotated",
        "data.groups=2",
        "data.samples_per_client=60",
        "model.name=cnn-batchnorm",
        "train.local_epochs=1",
    ],
)


def fleet():
    contexts = {
        node: Context(1, node, {PARTITION_ID: node - 1, NUM_PARTITIONS: CLIENTS}, RecordDict(), {})
        for node in range(1, CLIENTS + 1)
    }
    return InlineGrid(app_handlers(make_client_app(SETTINGS), contexts))


@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_clients_a_round_one_that_vanishes_and_batch_normalisation(name, play):
    model = initial_model(SETTINGS)
    layout, initial = state_vector(model)
    arrays = protocol.to_record(layout, initial)
    strategy = create_strategy(
        name, OPTIONS.get(name, {"num_clusters": 2}), fraction_train=0.5, identify=True, round_timeout=0.3, seed=1
    )
    strategy.parameter_names = parameter_names(model)
    grid = fleet()
    play(strategy, grid, range(1, 4), arrays)
    grid.handlers[2] = lambda message: None
    play(strategy, grid, range(4, 9), arrays)
    assert "client-1" in {*strategy.assignment(strategy.state), *strategy.node_names.values()}
    known, centers = strategy.assignment(strategy.state), strategy.centers(strategy.state)
    # neither the sample nor the device that is gone keeps the others from being clustered
    assert len(centers) > 1
    assert len(known) >= 4
    assert set(known.values()) <= set(range(len(centers)))
    assert np.isfinite(centers).all()
    for center in centers:
        tensors = layout.unflatten(center)
        assert all((tensors[key] >= 0).all() for key in tensors if key.endswith("running_var"))
    json.dumps(strategy.record(strategy.state))
    dumped, rest = dump_state(strategy.state)
    again = load_state(strategy.state_class, dumped, json.loads(json.dumps(rest)))
    following = {c: i.models for c, i in strategy.plan(again, 9, sorted(known)).items()}
    for client, instruction in strategy.plan(strategy.state, 9, sorted(known)).items():
        for record, payload in instruction.models.items():
            np.testing.assert_array_equal(following[client][record].vector, payload.vector)


NORMALISED = ParameterLayout.of(
    {
        "n.weight": np.zeros(2, dtype=np.float32),
        "n.running_mean": np.zeros(2, dtype=np.float32),
        "n.num_batches_tracked": np.zeros((), dtype=np.int64),
    },
    ["n.weight"],
)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "hypocluster"])
def test_what_is_compared_are_parameters(name):
    """Statistics of batches that differ by thousands part nobody whose parameters are alike."""
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
