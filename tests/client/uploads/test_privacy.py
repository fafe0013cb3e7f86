"""What leaves a device under `[privacy]`: clipped, noised, counted, and nothing else."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.client.context import ClientContext
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.client.uploads import privacy
from bouquet.client.uploads.privacy import PrivateUploads, gaussian
from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.privacy_accounting import RELEASES, check_model
from bouquet.common.protocol import Encoder, Instruction, Payload, Received
from bouquet.common.protocol.error_replies import owners_refusal
from bouquet.common.settings import parse_settings
from bouquet.common.settings.sections import PrivacySettings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import one_model
from bouquet.strategies.dcpfl import NEW, TAKE
from tests.helpers.real_devices import Federation

COUNTED = ParameterLayout.of(
    {"a.weight": np.zeros(3, np.float32), "a.steps": np.zeros(1, np.int64), "b.weight": np.zeros(2, np.float32)}
)
INITIAL = np.zeros(COUNTED.dim, dtype=np.float32)


def received(models, round_=1, upload=None):
    upload = COUNTED.layers if upload is None else upload
    return Received(round_, "r", models, "received", upload, (), 0.0, protocol.STANDARD, False, {})


def vector(a, b, steps=0):
    arrays = {"a.weight": np.float32(a), "a.steps": np.array([steps]), "b.weight": np.float32(b)}
    return COUNTED.flatten(arrays)


def uploads(folder, seed=0, **settings):
    given = PrivacySettings(**{"clip_norm": 1.0, "noise_multiplier": 0.0, **settings})
    return PrivateUploads(given, DeviceState(FolderStore(folder, durable=False)), COUNTED, "r", seed)


def test_an_update_is_clipped_as_a_whole_and_counters_go_back_as_they_came(tmp_path):
    """From (1, 1, 1 | 1, 1) by (3, 0, 0 | 0, 4), of norm 5, to a fifth of it."""
    sent = received({"arrays": Payload(vector([1, 1, 1], [1, 1], steps=7))})
    trained = vector([4, 1, 1], [1, 5], steps=90)
    released = uploads(tmp_path).release(trained, COUNTED.layers, sent, INITIAL)
    found = COUNTED.unflatten(released)
    np.testing.assert_allclose(found["a.weight"], [1.6, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(found["b.weight"], [1, 1.8], rtol=1e-6)
    assert found["a.steps"].tolist() == [7]
    assert COUNTED.unflatten(trained)["a.weight"].tolist() == [4, 1, 1]  # what the device keeps is as it was
    longer = uploads(tmp_path / "other").release(vector([2.2, 1, 1], [1, 1.9]), COUNTED.layers, sent, INITIAL)
    np.testing.assert_allclose(COUNTED.unflatten(longer)["a.weight"], [1.8, 1, 1], rtol=1e-6)  # of norm 1.5


def test_layers_that_were_not_sent_are_compared_with_what_the_server_saw_last(tmp_path):
    """Never with the device's own: that would leave with the upload, unclipped."""
    first = received({"arrays": Payload(vector([0, 0, 0], [0, 0]))})
    one = uploads(tmp_path)
    released = one.release(vector([0, 0, 0], [30, 40]), COUNTED.layers, first, INITIAL)
    np.testing.assert_allclose(COUNTED.unflatten(released)["b.weight"], [0.6, 0.8], rtol=1e-6)
    assert one.remember(first, INITIAL) == {RELEASES: 1}
    # In round 2 the layer b stays on the device, which goes on from (30, 40) to (31, 42).
    second = received({"arrays": Payload(vector([9, 9, 9], [0, 0]), ("a",))}, 2)
    two = uploads(tmp_path)
    released = two.release(vector([9, 9, 9], [31, 42]), COUNTED.layers, second, INITIAL)
    update = np.array([31 - 0.6, 42 - 0.8])
    expected = np.array([0.6, 0.8]) + update / np.linalg.norm(update)
    np.testing.assert_allclose(COUNTED.unflatten(released)["b.weight"], expected, rtol=1e-5)
    assert two.remember(second, INITIAL) == {RELEASES: 2}


def test_the_second_message_of_a_round_begins_with_what_the_first_one_brought(tmp_path):
    """As of DC-PFL's trial: both models come first, and the one that won goes up later."""
    offered = {"arrays": Payload(vector([1, 0, 0], [0, 0])), "new": Payload(vector([5, 0, 0], [0, 0]))}
    assert uploads(tmp_path).remember(received(offered, upload=()), INITIAL) == {RELEASES: 0}
    later = received({})
    for base, start in (("new", 5), ("arrays", 1)):
        released = uploads(tmp_path).release(vector([8, 0, 0], [0, 0]), COUNTED.layers, later, INITIAL, base)
        np.testing.assert_allclose(COUNTED.unflatten(released)["a.weight"], [start + 1, 0, 0], rtol=1e-6)


def test_what_is_no_model_is_clipped_from_zero_and_is_no_base_afterwards(tmp_path):
    sent = received({"arrays": Payload(vector([5, 5, 5], [5, 5]))})
    one = uploads(tmp_path)
    released = one.release(vector([0, 3, 0], [0, 4]), COUNTED.layers, sent, INITIAL, None)
    np.testing.assert_allclose(COUNTED.unflatten(released)["b.weight"], [0, 0.8], rtol=1e-6)
    assert one.remember(sent, INITIAL) == {RELEASES: 1}
    kept = one.state.load_arrays("r", "known", 1)
    np.testing.assert_array_equal(kept["known"], vector([5, 5, 5], [5, 5]))


def test_noise_has_the_deviation_asked_for_and_is_normal():
    drawn = gaussian(200_001, np.random.default_rng(0).bytes)
    assert drawn.shape == (200_001,)
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(1, abs=0.01)
    assert np.mean(np.abs(drawn) < 1) == pytest.approx(0.6827, abs=0.005)
    assert np.mean(np.abs(drawn) < 2) == pytest.approx(0.9545, abs=0.003)
    assert abs(np.corrcoef(drawn[:100_000], drawn[100_000:200_000])[0, 1]) < 0.02
    assert np.isfinite(gaussian(4, lambda count: bytes(count))).all()  # also where the bytes are all 0


def test_every_value_of_a_large_model_is_noised(tmp_path, monkeypatch):
    """The noise is drawn part by part."""
    monkeypatch.setattr(privacy, "_PART", 7)
    layout = ParameterLayout.of({"a.weight": np.zeros(50, np.float32)})
    zeros = np.zeros(50, dtype=np.float32)
    sent = Received(
        1, "r", {"arrays": Payload(zeros)}, "received", layout.layers, (), 0.0, protocol.STANDARD, False, {}
    )
    given = PrivacySettings(clip_norm=10.0, noise_multiplier=3.0)
    state = DeviceState(FolderStore(tmp_path, durable=False))
    released = np.stack(
        [
            PrivateUploads(given, state, layout, "r", seed).release(zeros, layout.layers, sent, zeros)
            for seed in range(300)
        ]
    )
    assert released.std(axis=0) == pytest.approx(np.full(50, 30.0), rel=0.2)
    assert np.abs(np.corrcoef(released.T) - np.eye(50)).max() < 0.3  # nor is a part's noise another's


def test_a_simulation_draws_the_same_noise_twice_and_a_device_never(tmp_path):
    sent, trained = received({"arrays": Payload(INITIAL)}), vector([1, 2, 3], [4, 5])

    def drawn(seed, model=trained):
        made = uploads(tmp_path, seed, noise_multiplier=1.0)
        return made.release(model, COUNTED.layers, sent, INITIAL)

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert len(uploads(tmp_path)._marks()) == 1  # the same once more tells nothing new
    # Another upload has other noise, or the difference of the two would have none.
    difference = drawn(1) - drawn(1, -trained)
    assert not np.allclose(difference, 2 * trained / np.linalg.norm(trained), atol=1e-3)
    assert not np.array_equal(drawn(None), drawn(None))


def test_a_model_with_running_statistics_is_refused():
    arrays = {"n.weight": np.zeros(2), "n.running_mean": np.zeros(2), "n.running_var": np.ones(2)}
    with pytest.raises(BouquetError, match=r"privacy.clip_norm does not fit this model: 'n.running_mean'"):
        check_model(ParameterLayout.of(arrays))


# --- whole devices ----------------------------------------------------------------------------------------------------

PRIVATE = ("privacy.clip_norm=0.05", "privacy.noise_multiplier=0.001")


def test_scores_stay_on_the_device_and_all_weigh_alike(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedavg", *PRIVATE)
    federation.play(1)
    for reply in federation.strategy.train_round.replies.received:
        assert set(reply.metrics) == {protocol.GROUP, protocol.STATE_LOST, protocol.NUM_EXAMPLES}
        assert reply.num_examples == 1
    node = ClientContext(federation.settings, federation.contexts[2], tmp_path)
    own = federation.layout.flatten(node.state.recall("r", 2).slots["personal"])
    moved = np.linalg.norm(federation.strategy.train_round.replies.updates, axis=1)
    assert np.linalg.norm(own - federation.initial) > 0.06  # the device's own model is neither clipped nor noised
    assert (moved < 0.06).all()
    evaluation = list(federation.strategy.configure_evaluate(1, federation.arrays, ConfigRecord(), federation.grid))
    answers = federation.grid.send_and_receive(evaluation)
    federation.strategy.aggregate_evaluate(1, answers)
    assert {m[protocol.NUM_EXAMPLES] for m in federation.strategy.evaluate_round.scores.values()} == {1}
    assert all(protocol.ACCURACY not in metrics for metrics in federation.strategy.evaluate_round.scores.values())


def test_noise_comes_before_compression(tmp_path):
    """Uncompressed and in 16 bits a simulated device sends the same noised model, but for the rounding."""
    found = []
    for up in ("float32", "float16"):
        changes = ("strategy.name=fedavg", *PRIVATE, f"wire.up={up}")
        federation = Federation(tmp_path / up, *changes)
        federation.play(1)
        found.append(federation.strategy.train_round.replies.W)
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
    assert not np.array_equal(found[0], found[1])


SETTINGS = {"data.samples_per_client": 40, "model.hidden": [8], "data.clients": 4}


def answer(tmp_path, least=None, kind="train", **privacy):
    """A real device's reply to a first message."""
    InlineGrid({})
    settings = parse_settings({}, {**SETTINGS, **{f"privacy.{key}": value for key, value in privacy.items()}})
    layout, initial = state_vector(initial_model(settings))
    config = {"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path)}
    context = Context(1, 2, config | ({} if least is None else {"least-noise": least}), RecordDict(), {})
    message = Message(Encoder(layout).content(one_model(initial), 1, "r", {}), dst_node_id=2, message_type=kind)
    return make_client_app(settings)(message, context)


def test_an_owner_can_demand_noise(tmp_path):
    refused = answer(tmp_path, least=1.0, clip_norm=1.0, noise_multiplier=0.5)
    assert refused.has_error()
    assert "noise_multiplier of 1.0 or more (--least-noise); this run has clip_norm = 1.0" in refused.error.reason
    assert answer(tmp_path, least=1.0).has_error()
    assert "(--least-noise); this run has no [privacy]" in owners_refusal(answer(tmp_path, least=1.0))
    said = protocol.about(answer(tmp_path, least=1.0, kind=protocol.IDENTIFY))  # before it is sent a model
    assert said[protocol.CLIENT_ID] == "client-1"
    assert "(--least-noise); this run has no [privacy]" in said[protocol.REFUSES]
    assert protocol.REFUSES not in protocol.about(answer(tmp_path, kind=protocol.IDENTIFY))
    assert answer(tmp_path, least=0.0, clip_norm=1.0, scores="send").has_error()
    taken = answer(tmp_path, least=1.0, clip_norm=1.0, noise_multiplier=1.0)
    assert protocol.about(taken)[RELEASES] == 1


def test_the_chosen_model_is_the_base_of_the_upload(tmp_path):
    federation = Federation(
        tmp_path, "strategy.name=hypocluster", "strategy.num_clusters=2", *PRIVATE, "privacy.scores=send"
    )
    before = federation.strategy.initial_state(federation.layout, federation.initial).centers
    federation.play(1)
    for reply in federation.strategy.train_round.replies.received:
        chosen = int(reply.metrics["cluster"])
        assert np.linalg.norm(reply.vector - before[chosen]) < 0.06
        assert np.linalg.norm(reply.vector - before[1 - chosen]) > 0.06


def test_a_trial_of_dc_pfl_goes_up_clipped_from_its_own_start(tmp_path):
    """Its second message brings no model; the base is what the first one brought."""
    federation = Federation(tmp_path, "strategy.name=dc-pfl", *PRIVATE, "privacy.scores=send")
    offered = {"arrays": Payload(federation.initial), NEW: Payload(federation.initial + 1)}
    asked = Instruction(offered, upload=(), procedure="dc-pfl")
    federation.ask(asked)
    take = Instruction(procedure="dc-pfl", config={TAKE: True})
    reply = federation.ask(take)
    assert np.linalg.norm(reply.vector - (federation.initial + 1)) < 0.06
