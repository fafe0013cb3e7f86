"""The methods of one global model: FedAvg, FedProx, FedDist, FedDWS, FedSGD; and standalone, which has none."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bouquet.client.data.loading import load_partition
from bouquet.common import protocol
from bouquet.common.model.build import initial_model
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.baselines.fedavg import FedAvg, FedDWS, FedProx
from bouquet.strategies.baselines.standalone import Standalone
from bouquet.strategies.registry import create_strategy
from tests.helpers.real_devices import Federation


def constant(value):
    return lambda start, received: np.full_like(start, value)


def test_fedavg_weighs_by_examples(scripted, play):
    clients = {
        1: scripted("a", constant(1.0), {protocol.NUM_EXAMPLES: 30}),
        2: scripted("b", constant(5.0), {protocol.NUM_EXAMPLES: 10}),
    }
    strategy = FedAvg(identify=True)
    play(strategy, InlineGrid(clients), range(1, 2))
    assert strategy.centers(strategy.state)[0].tolist() == [2.0] * 8


def test_the_replies_of_a_round_are_gone_with_it(scripted, play):
    strategy = FedAvg(identify=True)
    gc.collect()
    gc.disable()
    try:
        play(strategy, InlineGrid({1: scripted("a", constant(1.0)), 2: scripted("b", constant(2.0))}), range(1, 2))
        matrix = weakref.ref(strategy.train_round.replies.W.base)
        strategy.train_round.replies = None
        assert matrix() is None
    finally:
        gc.enable()


def test_fedprox_announces_its_term_under_flowers_key(scripted, play):
    seen: list[protocol.Received] = []
    clients = {1: scripted("a", constant(1.0), seen=seen), 2: scripted("b", constant(1.0))}
    play(FedProx(proximal_mu=0.5, identify=True), InlineGrid(clients), range(1, 2))
    assert seen[0].proximal == (protocol.Proximal(protocol.ARRAYS, 0.5),)


def test_standalone_sends_and_asks_for_no_model(scripted, play):
    seen: list[protocol.Received] = []
    clients = {1: scripted("a", constant(1.0), seen=seen), 2: scripted("b", constant(1.0))}
    strategy = Standalone(identify=True)
    play(strategy, InlineGrid(clients), range(1, 3))
    assert [(r.models, r.upload, r.start) for r in seen] == [({}, (), "personal")] * 2
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 1}
    assert strategy.centers(strategy.state).shape == (0, 8)  # the server holds no model
    assert strategy.arrays().keys() == {"first.weight", "first.bias", "last.weight"}


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


def test_a_whole_step_by_samples_is_fedavg(scripted, play, monkeypatch):
    monkeypatch.setattr(FedDWS, "step_size", 1.0)
    found = []
    for name in ("feddws", "fedavg"):
        strategy = create_strategy(name, {}, identify=True)
        play(strategy, clients(scripted), range(1, 4))
        found.append(strategy.centers(strategy.state))
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("partition", ["pathological", "dirichlet"], ids=["equal parts", "unequal parts"])
def test_it_is_centralised_gradient_descent(partition, tmp_path):
    """Three rounds are three steps of gradient descent on all devices' samples together, whoever holds how many."""
    changes = [
        "data.partition=" + partition,
        "data.samples_per_client=400",
        "train.local_epochs=7",
        "train.learning_rate=0.1",
        "personal.serve=own",  # no device keeps a part of its samples to itself
    ]
    federation = Federation(tmp_path, "strategy.name=fedsgd", *changes)
    found = federation.play(1, 2, 3)
    data = federation.settings.data
    parts = [
        load_partition(data.dataset, data.partition, part, data.clients, 0, **data.partition_options())
        for part in range(data.clients)
    ]
    counts = [len(part.train_y) for part in parts]
    assert (max(counts) > 1.2 * min(counts)) == (partition == "dirichlet")
    samples = [(part.train_x, part.train_y) for part in parts]
    x, y = (torch.as_tensor(np.concatenate(arrays)) for arrays in zip(*samples, strict=True))
    model = initial_model(federation.settings)
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= federation.settings.train.learning_rate * parameter.grad
    central = federation.layout.flatten({name: t.detach().numpy() for name, t in model.state_dict().items()})
    assert np.abs(central - federation.initial).max() > 0.01
    np.testing.assert_allclose(found, central, atol=2e-6)


def test_momentum_is_without_effect(tmp_path):
    plain, heavy = (
        Federation(tmp_path / name, "strategy.name=fedsgd", f"train.momentum={value}").play(1)
        for name, value in (("plain", 0.0), ("heavy", 0.9))
    )
    np.testing.assert_array_equal(plain, heavy)
