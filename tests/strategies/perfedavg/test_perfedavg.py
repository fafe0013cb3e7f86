"""Per-FedAvg's meta-gradient by hand on a quadratic and a logistic problem, and its rounds on real devices."""

import numpy as np
import pytest
import torch

from bouquet.common.protocol import ProtocolError
from bouquet.strategies import one_model
from bouquet.strategies.baselines.fedavg import ALL_SAMPLES
from bouquet.strategies.perfedavg import ADAPTATION_RATE, ADAPTATION_STEPS, PROCEDURE
from bouquet.strategies.perfedavg.device import adapt, meta_gradient
from bouquet.strategies.perfedavg.strategy import PerFedAvg
from tests.helpers.real_devices import Federation

# f(w) = ½ wᵀ A w − bᵀ w on each of the mini-batches D and D'
A = torch.tensor([[[2.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 3.0]]], dtype=torch.float64)
B = torch.tensor([[2.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
W = torch.tensor([2.0, 3.0], dtype=torch.float64)


def quadratic(values, k):
    return [A[k] @ values[0] - B[k]]


def test_the_meta_gradient_of_a_quadratic_by_hand():
    """∇f(w, D) = (2, 8); w̃ = w − ¼ (2, 8) = (1.5, 1); ∇f(w̃, D') = (2.5, 3.5)."""
    (first_order,) = meta_gradient(quadratic, [W], 0.25)
    assert first_order.tolist() == [2.5, 3.5]


def instruction(federation, rate=0.2, steps=1):
    config = {ADAPTATION_RATE: rate, ADAPTATION_STEPS: steps}
    return one_model(federation.initial, procedure=PROCEDURE, config=config)


def test_a_devices_step_is_the_meta_gradients(tmp_path):
    """One step on all samples at once: each of the two mini-batches is then all that the device has."""
    federation = Federation(tmp_path, "strategy.name=per-fedavg", f"train.batch_size={ALL_SAMPLES}")
    reply = federation.ask(instruction(federation, 0.2))
    session = federation.session(one_model(federation.initial))
    w, eta = federation.initial, np.float32(federation.settings.train.learning_rate)

    def gradient(values, k):
        return [torch.as_tensor(session.gradient(values[0].numpy()))]

    expected = w - eta * meta_gradient(gradient, [torch.as_tensor(w)], 0.2)[0].numpy()
    np.testing.assert_allclose(reply.vector, expected, atol=1e-6)
    plain = w - eta * session.gradient(w)
    assert np.abs(expected - plain).max() > 1e-4


def test_it_is_tested_adapted_and_keeps_an_adapted_model(tmp_path):
    own = "personal.serve=own"
    federation = Federation(tmp_path, "strategy.name=per-fedavg", "strategy.adaptation_rate=0.5", own)
    federation.play(1, 2)
    state, strategy = federation.strategy.state, federation.strategy
    accuracies = federation.evaluate(2)
    assert len(accuracies) == 4
    session = federation.session(strategy.plan_evaluate(state, 2, ["client-0"])["client-0"], 2, "evaluate")
    adapted = adapt(session, state.centers[0])
    np.testing.assert_allclose(
        adapted, state.centers[0] - np.float32(0.5) * session.gradient(state.centers[0]), atol=1e-6
    )
    scores = session.reply_evaluation(adapted).content["metrics"]
    assert scores["accuracy"] == accuracies["client-0"]
    kept = session.layout.flatten(session.recall().slots["personal"])
    uploaded = next(r.vector for r in strategy.train_round.replies.received if r.client == "client-0")
    np.testing.assert_allclose(kept, adapt(session, uploaded), atol=1e-6)


def test_all_devices_weigh_alike(scripted, play):
    from bouquet.experiments.simulation.inline_grid import InlineGrid

    few = scripted("a", lambda sent, _: sent + 1, {"num-examples": 10})
    many = scripted("b", lambda sent, _: sent + 5, {"num-examples": 30})
    strategy = PerFedAvg(identify=True)
    play(strategy, InlineGrid({1: few, 2: many}), range(1, 2))
    assert strategy.centers(strategy.state).tolist() == [[3] * 8]


def test_a_device_that_is_not_told_how_to_adapt_says_so(tmp_path):
    federation = Federation(tmp_path, "strategy.name=per-fedavg")
    with pytest.raises(ProtocolError, match="adaptation-rate = None"):
        federation.ask(one_model(federation.initial, procedure=PROCEDURE))
