"""Methods compare parameters: buffers and counters, which follow the amount of a client's data, have no say.

Clients a and c have little data, b and d have much; a and b are of one distribution, c and d of another.
"""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, to_record
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.protection import Protection
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.dcpfl.grouping import with_newcomers
from bouquet.strategies.dcpfl.layerwise import layer_discrepancies
from bouquet.strategies.dcpfl.state import DCPFLState, Group
from bouquet.strategies.fedac.state import restore_models
from bouquet.strategies.fedac.strategy import FedAC
from bouquet.strategies.fesem.strategy import FeSEM, FeSEMMA
from bouquet.strategies.mathematics.clustering import kmeans
from bouquet.strategies.mathematics.robust import Aggregation
from bouquet.strategies.registry import create_strategy

TENSORS = {
    "a.weight": np.zeros((2, 2), dtype=np.float32),
    "norm.weight": np.ones(2, dtype=np.float32),
    "norm.bias": np.zeros(2, dtype=np.float32),
    "norm.running_mean": np.zeros(2, dtype=np.float32),
    "norm.running_var": np.ones(2, dtype=np.float32),
    "norm.num_batches_tracked": np.array(0),
    "last.weight": np.zeros((1, 2), dtype=np.float32),
}
LAYOUT = ParameterLayout.of(TENSORS)
BY_DISTRIBUTION = {"a": 0, "b": 0, "c": 1, "d": 1}


def model(value, amount, wiggle=0.0):
    """Parameters near ±1, statistics and a counter that grow with the amount of data."""
    return LAYOUT.flatten(
        {
            **TENSORS,
            "a.weight": np.array([[value, value + wiggle], [value, value]]),
            "last.weight": np.array([[value, -value]]),
            "norm.running_mean": np.full(2, amount / 100),
            "norm.running_var": np.full(2, 1 + amount / 100),
            "norm.num_batches_tracked": np.array(amount),
        }
    )


ROWS = {"a": model(1, 10), "b": model(1, 9_000, 0.1), "c": model(-1, 12), "d": model(-1, 9_010, 0.1)}


def replies(rows=ROWS, amount=10):
    return Replies(
        LAYOUT, tuple(ClientReply(name, 0, row, LAYOUT.layers, amount, {}, {}) for name, row in sorted(rows.items()))
    )


def initial():
    return LAYOUT.flatten(TENSORS)


@pytest.mark.parametrize("method", [FeSEM, FeSEMMA])
def test_fesem_clusters_by_distribution_from_the_start_and_in_the_e_step(method):
    strategy = method(num_clusters=2)
    state = strategy.update(strategy.initial_state(LAYOUT, initial()), 1, replies())
    assert state.assignment == BY_DISTRIBUTION
    assert state.intra_distance == pytest.approx(0.05)
    # buffers and counters are averaged all the same
    center = LAYOUT.unflatten(state.centers[0])
    assert center["norm.num_batches_tracked"] == 4505
    np.testing.assert_allclose(center["norm.running_mean"], 45.05)
    state = strategy.update(state, 2, replies({**ROWS, "e": model(0.9, 9_000), "f": model(-0.9, 10)}))
    assert state.assignment == {**BY_DISTRIBUTION, "e": 0, "f": 1}


def test_fesem_finds_groups_by_distribution():
    """By amount of data and by distribution together there would be four."""
    generator = np.random.default_rng(0)
    rows = {}
    for i in range(12):
        noise = LAYOUT.parameter_columns * generator.normal(0, 0.1, LAYOUT.dim).astype(np.float32)
        rows[f"c{i:02}"] = ROWS["abcd"[i % 4]] + noise
    strategy = FeSEM()
    state = strategy.initial_state(LAYOUT, initial())
    for round_ in (1, 2):
        sent = dict.fromkeys(rows, one_model(initial()))
        state = strategy.update(state, round_, replace(replies(rows), instructions=sent))
    assert len(state.centers) == 2
    assert [state.assignment[f"c{i:02}"] for i in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("similarity", ["l2", "low-rank"])
def test_fedac_clusters_by_distribution(similarity):
    strategy = FedAC(num_clusters=2, similarity=similarity, tuning="off")
    state = strategy.initial_state(LAYOUT, initial())
    for round_ in (1, 2):
        state = strategy.update(state, round_, replies())
    assert state.assignment == BY_DISTRIBUTION
    assert LAYOUT.unflatten(state.centers[1])["norm.num_batches_tracked"] == 4511


def test_models_that_fedac_restores_have_the_clients_mean_statistics():
    """Not zeros, which are no variance to divide by."""
    strategy = FedAC(num_clusters=2, tuning="off")
    state = strategy.update(strategy.initial_state(LAYOUT, initial()), 1, replies())
    restored = LAYOUT.unflatten(restore_models(state, state.rows(["a"]))[0])
    np.testing.assert_allclose(restored["a.weight"], [[1, 1], [1, 1]], atol=0.1)
    mean = np.mean([10, 9_000, 12, 9_010])
    np.testing.assert_allclose(restored["norm.running_var"], 1 + mean / 100)
    assert restored["norm.num_batches_tracked"] == mean


def test_a_newcomer_of_dcpfl_joins_the_group_in_its_direction():
    centers = np.stack([model(1, 9_000), model(-1, 10)])
    state = DCPFLState(
        list(LAYOUT.layers), centers, [Group(), Group()], gamma=0.5, assignment={"a": 0, "b": 0, "c": 1, "d": 1}
    )
    joined = with_newcomers(state, state, 3, replies({"e": model(0.5, 10)}))
    assert joined.assignment["e"] == 0


def test_layers_are_judged_by_their_parameters_and_one_without_any_is_not_judged():
    W = np.stack([ROWS["a"], ROWS["b"]])
    found = layer_discrepancies(W, W.mean(axis=0), LAYOUT, "model")
    assert found == {"a": pytest.approx(0.0125 / 2.05), "norm": 0.0, "last": 0.0}
    plain = ParameterLayout.of({name: TENSORS[name] for name in TENSORS if name not in ("norm.weight", "norm.bias")})
    rows = np.random.default_rng(0).normal(size=(2, plain.dim)).astype(np.float32)
    assert layer_discrepancies(rows, rows.mean(axis=0), plain, "layer").keys() == {"a", "last"}


def test_rows_are_grouped_by_what_is_compared_and_averaged_whole():
    W = np.stack(list(ROWS.values()))
    found = kmeans(W, 2, 0, compared=LAYOUT.parameters_of(W))
    assert found.assignment.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(found.centers[0], W[:2].mean(axis=0))
    assert kmeans(W, 2, 0).assignment.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("name", ["fesem", "fedavg", "fedper"])
def test_krum_takes_the_model_whose_parameters_are_nearest_to_most(name):
    """Not the one with about as much data as most; of what it does not compare, the median."""
    own = {"b": model(1, 10), "c": model(1.1, 9_000), "d": model(1.2, 20), "x": model(-9, 15), "y": model(9, 12)}
    strategy = create_strategy(name, {"num_clusters": 1} if name == "fesem" else {}, round_timeout=0.1)
    strategy.protection = Protection(Aggregation("krum"))
    strategy.configure_train(1, to_record(LAYOUT, initial()), ConfigRecord(), InlineGrid({1: print, 2: print}))
    upload = LAYOUT.layers[:-1] if name == "fedper" else LAYOUT.layers
    rows = {client: LAYOUT.flatten(LAYOUT.unflatten(row, upload), upload) for client, row in own.items()}
    state = strategy.update(strategy.state, 1, replies(rows))
    center = LAYOUT.unflatten(strategy.centers(state)[0])
    assert center["a.weight"][0, 0] == LAYOUT.unflatten(own["c"])["a.weight"][0, 0]
    assert center["norm.num_batches_tracked"] == 15
