"""FedDANE on real devices with a small network, and on scripted ones."""

import numpy as np

from bouquet.common.protocol import ARRAYS, Instruction, Payload, Proximal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import one_model
from bouquet.strategies.baselines.fedavg import ALL_SAMPLES
from bouquet.strategies.feddane import GRADIENT, PROCEDURE
from bouquet.strategies.feddane.strategy import FedDANE
from tests.helpers.real_devices import Federation

FULL_BATCH = ("strategy.name=feddane", f"train.batch_size={ALL_SAMPLES}")


def question(federation, gradient=None):
    models = {ARRAYS: Payload(federation.initial)} | ({} if gradient is None else {GRADIENT: Payload(gradient)})
    return Instruction(models, procedure=PROCEDURE)


def test_the_first_exchange_is_the_devices_own_gradient_on_all_of_its_data(tmp_path):
    federation = Federation(tmp_path, *FULL_BATCH)
    reply = federation.ask(question(federation))
    session = federation.session(one_model(federation.initial))
    np.testing.assert_array_equal(reply.vector, session.gradient(federation.initial))
    assert reply.num_examples == len(session.train_data[1])
    assert np.abs(reply.vector).max() > 0.01


def test_corrected_every_device_steps_along_the_mean_gradient(tmp_path):
    """One full-batch step: w − η g on each device, whatever its own data; FedSGD's round."""
    federation = Federation(tmp_path / "dane", *FULL_BATCH)
    moved = federation.play(1)
    central = Federation(tmp_path / "sgd", "strategy.name=fedsgd").play(1)
    np.testing.assert_allclose(moved, central, atol=1e-6)
    assert len(federation.strategy.train_round.replies) == 4
    for reply in federation.strategy.train_round.replies.received:
        np.testing.assert_allclose(reply.vector, central, atol=1e-6)


def test_the_corrected_gradients_sum_to_zero_at_the_optimum_so_nobody_moves(tmp_path):
    """Where g = 0 a device's corrected gradient is ∇F_k − ∇F_k, and ten steps leave it where it is; FedAvg's leaves."""
    federation = Federation(tmp_path, *FULL_BATCH, "train.local_epochs=10")
    own = [federation.ask(question(federation), part=part) for part in range(4)]
    rows = np.stack([reply.vector for reply in own]).astype(np.float64)
    shares = np.array([reply.num_examples for reply in own]) / sum(reply.num_examples for reply in own)
    np.testing.assert_allclose(shares @ (shares @ rows - rows), 0, atol=1e-9)  # Σ p_k (g − ∇F_k) = 0
    at_optimum = federation.ask(question(federation, np.zeros_like(federation.initial)))
    np.testing.assert_allclose(at_optimum.vector, federation.initial, atol=1e-6)
    alone = federation.ask(one_model(federation.initial))
    assert np.abs(alone.vector - federation.initial).max() > 0.01


def scripted_gradients(own):
    """A device that answers the first exchange with a constant gradient and the second with w − g."""

    def train(sent, received):
        mean = received.models.get(GRADIENT)
        return np.full_like(sent, own) if mean is None else sent - mean.vector

    return train


def test_two_exchanges_a_round_weighed_by_samples(layout, scripted, play):
    seen = []
    few = scripted("a", scripted_gradients(1.0), {"num-examples": 10}, seen=seen)
    many = scripted("b", scripted_gradients(5.0), {"num-examples": 30})
    strategy = FedDANE(identify=True)
    play(strategy, InlineGrid({1: few, 2: many}), range(1, 3))
    assert strategy.centers(strategy.state).tolist() == [[-8] * 8]
    first, second = seen[:2]
    assert (set(first.models), first.proximal) == ({ARRAYS}, ())
    assert (set(second.models), second.proximal) == ({ARRAYS, GRADIENT}, (Proximal(ARRAYS, 0.1),))
    assert {r.procedure for r in seen} == {"feddane"}
    assert strategy.state.gradient is None  # not in the checkpoint of a finished round
    evaluated = strategy.plan_evaluate(strategy.state, 2, ["a"])["a"]
    assert (set(evaluated.models), evaluated.procedure) == ({ARRAYS}, "standard")


def test_a_device_that_is_silent_in_the_first_exchange_is_not_asked_again(layout, scripted, play):
    asked = []

    def silent(message):
        if message.metadata.message_type == "query.identify":
            return scripted("c", None)(message)
        asked.append(message)
        return None

    answers = {1: scripted("a", scripted_gradients(1.0)), 2: scripted("b", scripted_gradients(3.0)), 3: silent}
    strategy = FedDANE(identify=True, round_timeout=0.3)
    play(strategy, InlineGrid(answers), range(1, 2))
    assert len(asked) == 1
    assert strategy.centers(strategy.state).tolist() == [[-2] * 8]
    assert "No reply" in strategy.train_round.failures["c"]


def test_without_enough_gradients_the_model_stays(layout, scripted, play):
    strategy = FedDANE(identify=True, round_timeout=0.3, min_replies=2)
    answers = {1: scripted("a", scripted_gradients(1.0)), 2: lambda message: None}
    play(strategy, InlineGrid(answers), range(1, 2))
    assert strategy.centers(strategy.state).tolist() == [[0] * 8]
