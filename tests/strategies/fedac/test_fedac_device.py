"""The device's side of FedAC: it goes on from its own model, and can reply with p numbers in place of it."""

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload, ProtocolError, Proximal
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import reply_checks
from bouquet.strategies.fedac.wire import NUMBERS, PROCEDURE, LowRankMap, asking_for_numbers, read_numbers, sending_map

SETTINGS = load_settings(
    None, ["data.clients=10", "train.local_epochs=1", "train.learning_rate=0.05", "train.max_gradient_norm=none"]
)
LAYOUT, INITIAL = state_vector(initial_model(SETTINGS))
MAP = LowRankMap(
    np.linalg.qr(np.random.default_rng(0).normal(size=(LAYOUT.dim, 3)))[0].T.astype(np.float32),
    np.array([1.0, -2.0, 0]),
)
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


def for_numbers(version=1, with_map=True):
    directions, offset = sending_map(MAP) if with_map else ({}, {})
    config = {**asking_for_numbers(version), **offset}
    return Instruction(
        {ARRAYS: Payload(INITIAL), **directions}, start="personal", upload=(), procedure=PROCEDURE, config=config
    )


def numbers_of(reply):
    assert ARRAYS not in reply.content  # no model leaves the device
    return read_numbers(reply_checks.read_reply(reply, LAYOUT, ()).config, 3)


def test_the_numbers_are_those_of_the_model_that_it_would_have_sent(device):
    trained = reply_checks.read_reply(device(for_model(), 1, "one"), LAYOUT).vector
    numbers = numbers_of(device(for_numbers(), 1, "other"))
    np.testing.assert_allclose(numbers, MAP.directions.astype(float) @ trained - MAP.offset, rtol=1e-9)
    np.testing.assert_allclose(numbers, MAP.reduce(trained[None, :])[0], rtol=1e-9)


def test_the_map_is_kept_and_the_personal_model_goes_on(device):
    device(for_numbers(), 1)
    small = for_numbers(with_map=False)
    numbers = numbers_of(device(small, 2))
    trained = reply_checks.read_reply(device(for_model(), 2), LAYOUT).vector  # round 2 again, this time with the model
    np.testing.assert_allclose(numbers, MAP.reduce(trained[None, :])[0], rtol=1e-9)
    start = reply_checks.read_reply(device(for_model(config={"learning-rate": 1e-30}), 3), LAYOUT).vector
    np.testing.assert_allclose(start, trained, atol=1e-6)


def test_a_device_without_the_map_says_so_and_has_trained_all_the_same(device):
    for reply in (
        device(for_numbers(with_map=False), 1, "never"),
        device(for_numbers(version=7, with_map=False), 2, "never"),
    ):
        read = reply_checks.read_reply(reply, LAYOUT, ())
        assert (read.metrics["state-lost"], NUMBERS in read.config) == (1, False)
        assert read.metrics["accuracy-trained"] > 0
    assert numbers_of(device(for_numbers(version=7), 3, "never")) is not None
    other = reply_checks.read_reply(
        device(for_numbers(version=7, with_map=False), 1, "never", run="another"), LAYOUT, ()
    )
    assert NUMBERS not in other.config


def test_the_last_three_maps_stay_beside_the_rounds(device, tmp_path):
    for round_, version in enumerate((1, 4, 9, 12), start=1):
        device(for_numbers(version), round_)
    names = sorted(path.name for path in (tmp_path / "device").glob("run-*/low-rank*"))
    assert names == [f"low-rank-map-{version:06d}.safetensors" for version in (4, 9, 12)]
    assert numbers_of(device(for_numbers(4, with_map=False), 5)) is not None
    rounds = [path.stat().st_size for path in (tmp_path / "device").glob("run-*/round-*")]
    assert max(rounds) < 1.5 * 4 * LAYOUT.dim  # the map, three times as large, is not in them


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.config.pop("map-version"), "map-version = None"),
        (lambda i: i.models.pop("map-direction-1"), "'map-direction-1' is missing"),
    ],
)
def test_a_question_that_is_not_complete_is_refused(device, change, message):
    instruction = for_numbers()
    change(instruction)
    assert message in device(instruction, 1).error.reason


def test_numbers_are_checked_at_the_server():
    assert read_numbers({}, 3) is None
    assert read_numbers({NUMBERS: [1.0, 2.0, 3.0]}, 3).tolist() == [1, 2, 3]
    for wrong in ([1.0], [1.0, 2.0, float("inf")], "text"):
        with pytest.raises(ProtocolError, match="reduced model"):
            read_numbers({NUMBERS: wrong}, 3)
