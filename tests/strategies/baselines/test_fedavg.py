"""The methods of one global model, FedAvg and FedProx; and standalone, which has none."""

import gc
import weakref

import numpy as np

from bouquet.common import protocol
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.baselines.fedavg import FedAvg, FedProx
from bouquet.strategies.baselines.standalone import Standalone


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
