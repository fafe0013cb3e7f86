"""The device's side of FedAC: it goes on from its own model, held near two others."""

import numpy as np
import pytest

from bouquet.common.protocol import ARRAYS, Instruction, Payload, Proximal
from bouquet.common.settings import load_settings
from tests.helpers.one_device import OneDevice

SETTINGS = load_settings(
    None, ["data.clients=10", "train.local_epochs=1", "train.learning_rate=0.05", "train.max_gradient_norm=none"]
)


@pytest.fixture
def device(tmp_path):
    return OneDevice(SETTINGS, tmp_path / "device")


def for_model(device, **more):
    return Instruction({ARRAYS: Payload(device.initial)}, start="personal", **more)


def test_it_starts_from_its_own_model_and_without_one_from_the_center(device):
    still = {"learning-rate": 1e-30}
    center = device.initial + 1
    first = device.reply(Instruction({ARRAYS: Payload(center)}, start="personal", config=still))
    np.testing.assert_allclose(first.vector, center, atol=1e-6)
    own = device.reply(for_model(device, config=still), 2)
    np.testing.assert_allclose(own.vector, center, atol=1e-6)
    lost = device.another().reply(for_model(device, config=still), 2)
    np.testing.assert_allclose(lost.vector, device.initial, atol=1e-6)
    assert (own.metrics["state-lost"], lost.metrics["state-lost"]) == (0, 1)
    new = device.another("new").reply(for_model(device, config=still, newcomer=True), 2)
    assert new.metrics["state-lost"] == 0


def test_both_pulls_act_at_once(device):
    """λ towards the center at 0, and in the embedding μ towards the global one at 2: Eq. 3 is least between them."""
    embedding, nothing = device.layout.layers[:1], np.zeros_like(device.initial)
    columns = device.layout.columns(embedding)
    instruction = Instruction(
        {ARRAYS: Payload(nothing), "global-embedding": Payload(nothing + 2, embedding)},
        start="personal",
        proximal=(Proximal(ARRAYS, 3.0), Proximal("global-embedding", 1.0)),
        config={"learning-rate": 0.1, "momentum": 0.0, "local-epochs": 5},
    )
    trained = device.reply(instruction).vector
    # (3 · 0 + 1 · 2) / (3 + 1), up to what the data pull; the decision has only the center, and the data, which raise
    # one class as much as they lower the others, do not pull its mean
    assert np.median(trained[columns]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(np.delete(trained, columns)) == pytest.approx(0.0, abs=1e-3)


def test_it_is_tested_with_its_own_model(device):
    trained = device.reply(for_model(device))
    metrics = device.tested(Instruction({}, start="personal", upload=()))
    assert metrics["accuracy"] == pytest.approx(trained.metrics["accuracy-trained"])
