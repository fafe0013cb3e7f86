"""What devices are sent once: who gets it, who says that it is lost, and what later rounds cost."""

import re

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from safetensors.torch import save_file

from bouquet.client.rounds.model import put_in
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import ContextStore
from bouquet.common import protocol
from bouquet.common.model.architectures import build_model
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model.freezing import freeze
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import Backbone, Instruction, Payload, ProtocolError
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.error_replies import LostBackboneError, refusal
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.traffic import payload_bytes
from bouquet.strategies.base.filters.delivery import Delivery
from tests.helpers.real_devices import SMALL, Federation

NET = ("model.name=cnn-batchnorm", "model.hidden=[]")
LAYOUT = ParameterLayout.of({f"{layer}.w": np.zeros(2, dtype=np.float32) for layer in "abc"})
FROZEN = {"body.w": np.ones(5, dtype=np.float32)}
GIVEN = {f"{layer}.w": np.full(2, ord(layer), dtype=np.float32) for layer in "abc"}


def sends(*layers, exact=False):
    return Instruction({protocol.ARRAYS: Payload(np.zeros(6, dtype=np.float32), layers or None, exact)})


def lost(client=1):
    InlineGrid({})
    message = Message(RecordDict(), dst_node_id=client, message_type="train")
    return refusal(message, LostBackboneError("gone"))


def test_frozen_layers_go_to_a_client_until_it_has_answered():
    delivery = Delivery("d", FROZEN)
    assert delivery.pack(LAYOUT, "x", sends()) == Backbone("d", FROZEN)
    assert delivery.pack(LAYOUT, "x", sends()) == Backbone("d", FROZEN)  # it did not answer
    delivery.answered("x")
    assert delivery.pack(LAYOUT, "x", sends()) == Backbone("d")
    assert delivery.pack(LAYOUT, "y", sends()).arrays == FROZEN
    delivery.lost("x", Arrival.of(lost()))
    assert delivery.pack(LAYOUT, "x", sends()).arrays == FROZEN


def test_given_weights_go_as_far_as_the_first_message_holds_no_model_of_them():
    delivery = Delivery("d", {}, GIVEN)
    assert delivery.pack(LAYOUT, "whole", sends()) is None
    delivery.answered("whole")
    assert delivery.pack(LAYOUT, "whole", sends("a")) is None  # it had them in its first message
    assert set(delivery.pack(LAYOUT, "part", sends("a", "b")).arrays) == {"c.w"}
    assert set(delivery.pack(LAYOUT, "none", Instruction()).arrays) == set(GIVEN)
    assert set(delivery.pack(LAYOUT, "exact", sends(exact=True)).arrays) == set(GIVEN)  # that is no model
    delivery.answered("part")
    assert delivery.pack(LAYOUT, "part", sends("a", "b")) == Backbone("d")


@pytest.fixture
def state():
    return DeviceState(ContextStore(RecordDict()))


def frozen_net(seed=0):
    return freeze(build_model("cnn-batchnorm", (1, 8, 8), 3, seed), ["all-but-head"])


def arrays_of(model):
    return {name: tensor.numpy() for name, tensor in model.state_dict().items() if not name.startswith("fc1")}


def test_a_device_keeps_what_it_is_sent_and_says_when_it_is_lost(state):
    sent = arrays_of(frozen_net(seed=5))
    put_in(frozen_net(), Backbone("ab12", sent), state, "run")
    later = frozen_net()
    put_in(later, Backbone("ab12"), state, "run")
    assert all(np.array_equal(later.state_dict()[name].numpy(), array) for name, array in sent.items())
    with pytest.raises(LostBackboneError, match="it will be sent it again"):
        put_in(frozen_net(), Backbone("cd34"), state, "run")
    state.runs.of("run").delete("backbone-ab12.safetensors")
    with pytest.raises(LostBackboneError):
        put_in(frozen_net(), Backbone("ab12"), state, "run")


def test_only_what_a_kept_model_needs_stays_on_the_disk(state):
    for number, digest in enumerate(("aa", "bb", "cc")):
        put_in(frozen_net(), Backbone(digest, arrays_of(frozen_net())), state, "run")
        if digest == "bb":
            state.keep("run", number, {"personal": {"w": np.zeros(1)}}, {}, "", digest)
    assert [n for n in state.runs.of("run").names() if n.startswith("backbone")] == [
        "backbone-bb.safetensors",
        "backbone-cc.safetensors",
    ]
    assert state.latest().backbone == "bb"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conv1.weight": None}, "frozen tensor 'conv1.weight' is missing"),
        ({"conv1.weight": np.zeros((2, 2), dtype=np.float32)}, r"'conv1.weight' has shape \(2, 2\), expected \(16, 1"),
        ({"evil.weight": np.zeros(1, dtype=np.float32)}, "'evil.weight', sent as a part that stays, is not in"),
        ({"norm1.bias": np.full(16, np.inf, dtype=np.float32)}, "'norm1.bias'.*no finite numbers"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_kept(change, said, state):
    sent = {name: array for name, array in {**arrays_of(frozen_net()), **change}.items() if array is not None}
    with pytest.raises(ProtocolError, match=said):
        put_in(frozen_net(), Backbone("ab12", sent), state, "run")
    assert state.recall_backbone("run", "ab12") is None
    for digest in ("../evil", "Ab12", "zz", "٣", "a" * 65):
        with pytest.raises(ProtocolError, match=f"digest {re.escape(repr(digest))} is none"):
            put_in(frozen_net(), Backbone(digest, sent), state, "run")
    with pytest.raises(ProtocolError, match="sends no frozen layers"):
        put_in(frozen_net(), None, state, "run")


def size(message):
    return payload_bytes(message.content)[0]


def test_a_device_that_lost_it_sits_one_round_out_and_the_rounds_cost_the_head(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedavg", *NET, "model.frozen=all-but-head")
    sent = []
    push = federation.grid.push_messages
    federation.grid.push_messages = lambda messages: push([*(sent.append(m) or m for m in messages)])
    federation.play(1)
    first = [size(m) for m in sent if m.metadata.message_type == "train"]
    (lost_one := next((tmp_path / "client-2").glob("run-*/backbone-*"))).unlink()
    sent.clear()
    federation.play(2)
    second = [size(m) for m in sent]
    assert max(second) < 0.3 * min(first)
    assert set(federation.strategy.train_round.failures) == {"client-2"}
    assert "no longer has the part of the model" in federation.strategy.train_round.failures["client-2"]
    sent.clear()
    federation.play(3)
    assert not federation.strategy.train_round.failures
    assert sorted(size(m) > 3 * max(second) for m in sent) == [False, False, False, True]
    assert lost_one.exists()
    head = federation.layout.dim
    assert head == 10 * (32 * 2 * 2) + 10
    assert max(second) < 4 * head + 2000


def test_fedper_devices_begin_with_the_heads_of_the_file(tmp_path):
    """Its personal layers never travel, and no device can build them from the seed."""
    small = [*SMALL, *NET]
    model = initial_model(load_settings(None, [*small, "run.seed=9"]))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    changes = [*NET, f"model.weights={tmp_path / 'w.safetensors'}"]
    federation = Federation(tmp_path / "devices", "strategy.name=fedper", *changes)
    given = state_vector(model)[1]
    federation.arrays = protocol.to_record(federation.layout, given)
    seen = []
    messages = list(federation.strategy.configure_train(1, federation.arrays, {}, federation.grid))
    for message in messages:
        received = protocol.read_instruction(message, federation.layout)
        seen.append(received.backbone.arrays)
    assert all(set(arrays) == {"fc1.weight", "fc1.bias"} for arrays in seen)
    np.testing.assert_array_equal(seen[0]["fc1.weight"], model.state_dict()["fc1.weight"].numpy())
