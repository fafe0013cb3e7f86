"""The device's side of FedAC: it goes on from its own model, held near two others."""

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload, Proximal
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import reply_checks

SETTINGS = load_settings(
    None, ["data.clients=10", "train.local_epochs=1", "train.learning_rate=0.05", "train.max_gradient_norm=none"]
)
LAYOUT, INITIAL = state_vector(initial_model(SETTINGS))
InlineGrid({})  # gives Flower's Message its sender


@pytest.fixture
def device(tmp_path):
    """Ask one device, whose state outlives the app, as on a real device where each message is a new process."""

    def ask(instruction, round_, folder="device", run="r", kind="train"):
        config = {"partition-id": 3, "num-partitions": 10, "state-dir": str(tmp_path / folder)}
        content = Encoder(LAYOUT).content(instruction, round_, run, {})
        message = Message(content, dst_node_id=2, message_type=kind)
        return make_client_app(SETTINGS)(message, Context(1, 2, config, RecordDict(), {}))

    return ask


def for_model(**more):
    return Instruction({ARRAYS: Payload(INITIAL)}, start="personal", **more)


def test_it_starts_from_its_own_model_and_without_one_from_the_center(device):
    still = {"learning-rate": 1e-30}
    center = INITIAL + 1
    first = reply_checks.read_reply(
        device(Instruction({ARRAYS: Payload(center)}, start="personal", config=still), 1), LAYOUT
    )
    np.testing.assert_allclose(first.vector, center, atol=1e-6)
    own = reply_checks.read_reply(device(for_model(config=still), 2), LAYOUT)
    np.testing.assert_allclose(own.vector, center, atol=1e-6)
    lost = reply_checks.read_reply(device(for_model(config=still), 2, "empty"), LAYOUT)
    np.testing.assert_allclose(lost.vector, INITIAL, atol=1e-6)
    assert (own.metrics["state-lost"], lost.metrics["state-lost"]) == (0, 1)
    new = reply_checks.read_reply(device(for_model(config=still, newcomer=True), 2, "new"), LAYOUT)
    assert new.metrics["state-lost"] == 0


def test_both_pulls_act_at_once(device):
    """λ towards the center at 0, and in the embedding μ towards the global one at 2: Eq. 3 is least between them."""
    embedding = LAYOUT.layers[:1]
    columns = LAYOUT.columns(embedding)
    instruction = Instruction(
        {ARRAYS: Payload(np.zeros_like(INITIAL)), "global-embedding": Payload(np.full_like(INITIAL, 2), embedding)},
        start="personal",
        proximal=(Proximal(ARRAYS, 3.0), Proximal("global-embedding", 1.0)),
        config={"learning-rate": 0.1, "momentum": 0.0, "local-epochs": 5},
    )
    trained = reply_checks.read_reply(device(instruction, 1), LAYOUT).vector
    # (3 · 0 + 1 · 2) / (3 + 1), up to what the data pull; the decision has only the center, and the data, which raise
    # one class as much as they lower the others, do not pull its mean
    assert np.median(trained[columns]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(np.delete(trained, columns)) == pytest.approx(0.0, abs=1e-3)


def test_it_is_tested_with_its_own_model(device):
    trained = reply_checks.read_reply(device(for_model(), 1), LAYOUT)
    metrics = reply_checks.read_metrics(device(Instruction({}, start="personal", upload=()), 1, kind="evaluate"))
    assert metrics["accuracy"] == pytest.approx(trained.metrics["accuracy-trained"])
