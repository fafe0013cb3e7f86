"""The ClientApp on the in-memory grid: what a device does with a message."""

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.client.owner.sensors import VARIABLE
from bouquet.client.owner.watch import Watch
from bouquet.client.rounds.start_model import compose
from bouquet.client.state.device_state import PERSONAL, Kept
from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload
from bouquet.common.protocol.error_replies import NOT_NOW_ERROR, NotNow
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import reply_checks
from tests.helpers.machine import Machine

SETTINGS = load_settings(None, ["data.clients=10", "train.local_epochs=1", "data.partition=rotated", "data.groups=2"])
InlineGrid({})  # gives Flower's Message its sender


@pytest.fixture(scope="module")
def model():
    return state_vector(initial_model(SETTINGS))


def context(config=None, state=None, run_config=None):
    return Context(1, 2, config or {"partition-id": 3, "num-partitions": 10}, state or RecordDict(), run_config or {})


def ask(model, instruction, round_=1, kind="train", config=None, run="r"):
    content = Encoder(model[0]).content(instruction, round_, run, config or {})
    return Message(content, dst_node_id=2, message_type=kind)


def whole(model, **more):
    return Instruction({ARRAYS: Payload(model[1])}, **more)


def test_layers_that_do_not_travel_live_on_the_device(model):
    layout, initial = model
    app, ctx = make_client_app(SETTINGS), context()
    first, last = layout.layers
    shared = Instruction({ARRAYS: Payload(initial, (first,))}, upload=(first,))
    reply = app(ask(model, shared, 1), ctx)
    assert list(reply.content.array_records[ARRAYS]) == list(layout.names([first]))
    assert reply_checks.read_reply(reply, layout, (first,)).metrics["state-lost"] == 0
    # nothing trains in round 2, so the personal layer that is asked for is the one that round 1 left
    still = Instruction({ARRAYS: Payload(initial, (first,))}, upload=(last,), config={"learning-rate": 1e-30})
    kept = reply_checks.read_reply(app(ask(model, still, 2), ctx), layout, (last,)).vector
    columns = layout.columns([last])
    assert not np.array_equal(kept[columns], initial[columns])
    # a device without its state says so and begins with the initial layer
    lost = reply_checks.read_reply(app(ask(model, still, 2), context()), layout, (last,))
    assert lost.metrics["state-lost"] == 1
    np.testing.assert_allclose(lost.vector[columns], initial[columns], atol=1e-6)


def test_compose_by_hand(layout):
    initial, own, sent = (np.full(layout.dim, value, dtype=np.float32) for value in (0, 1, 2))
    kept = Kept(1, {PERSONAL: layout.unflatten(own)})

    def start(instruction, kept_):
        message = Message(Encoder(layout).content(instruction, 2, "", {}), dst_node_id=2, message_type="train")
        return compose(protocol.read_instruction(message, layout), kept_, initial, layout)

    some = Instruction({ARRAYS: Payload(sent, ("last",))})
    assert start(some, kept)[0].tolist() == [1] * 6 + [2] * 2
    assert start(some, None) == (pytest.approx([0] * 6 + [2] * 2), True)
    personal = Instruction({ARRAYS: Payload(sent)}, start="personal")
    assert start(personal, kept)[0].tolist() == [1] * 8
    assert start(personal, None) == (pytest.approx([2] * 8), True)
    assert start(Instruction({ARRAYS: Payload(sent)}), None) == (pytest.approx([2] * 8), False)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ({}, [], "neither data of its own"),
        ({"partition-id": 0}, ["data.dataset=own", "data.classes=['a','b']", "data.input_shape=[1,8,8]"], "no data"),
        ({"partition-id": 0}, ["data.clients=5000"], "5000"),
        (
            {"partition-id": 0, "num-partitions": 10},
            ["train.learning_rate=1e9", "train.max_gradient_norm=none"],
            "diverged",
        ),
        ({"data": "/nowhere/at/all"}, [], "own data do not fit this run. The device's log says more."),
    ],
)
def test_what_is_wrong_on_the_device_comes_back_as_the_reason(model, config, changes, message):
    settings = SETTINGS.with_overrides({})
    settings = load_settings(None, ["data.clients=10", "data.partition=iid", *changes])
    own = state_vector(initial_model(settings))
    reply = make_client_app(settings)(ask(own, whole(own)), context(config or {"other": 1}))
    assert reply.has_error()
    assert message in reply.error.reason


def test_who_it_is_costs_no_pytorch(tmp_path):
    """Each message is a new process on the device: the first one must not pay for what it does not use."""
    code = """
import sys
from flwr.app import Context, Message, RecordDict
from bouquet.client.app import make_client_app
from bouquet.common.settings import Settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
InlineGrid({})
context = Context(1, 2, {"state-dir": sys.argv[1]}, RecordDict(), {})
reply = make_client_app(Settings())(Message(RecordDict(), dst_node_id=2, message_type="query.identify"), context)
print(reply.content["client"]["client-id"], "torch" in sys.modules, "sklearn" in sys.modules)
"""
    runs = [
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].startswith("device-")
    assert runs[0].split()[1:] == ["False", "False"]


# --- its owner's conditions ------------------------------------------------------------------------------------------

PRIVATE = ["privacy.clip_norm=1.0", "privacy.noise_multiplier=1.0"]


def of_owner(tmp_path, text, **more):
    """The node config of a real device whose owner says when it works."""
    file = tmp_path / "when.toml"
    file.write_text(f"[when]\n{text}")
    return {"partition-id": 3, "num-partitions": 10, "state-dir": str(tmp_path / "state"), "when": str(file), **more}


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_conditions_hold_where_no_supernode_asked(model, tmp_path, kind, monkeypatch):
    machine = Machine(tmp_path / "machine")
    machine.temperature(80)
    monkeypatch.setenv(VARIABLE, str(machine.root))
    config = of_owner(tmp_path, "temperature = 70\n")
    reply = make_client_app(SETTINGS)(ask(model, whole(model), kind=kind), context(config))
    assert reply.error.code == NOT_NOW_ERROR


@pytest.mark.parametrize("overrides", [[], PRIVATE])
def test_whatever_it_does_it_stops_where_conditions_end(model, tmp_path, monkeypatch, overrides):
    """Also in the last mini-batch of all, and where an error would be hidden."""
    only = {"personal.serve": "own", "personal.compare": False}
    settings = SETTINGS.with_overrides(only | dict(one.split("=") for one in overrides))
    demands = {"least-noise": 0.5} if overrides == PRIVATE else {}
    looks, last = [], [0]

    def between(_):
        looks.append(len(looks))
        if len(looks) == last[0]:
            raise NotNow("too hot", 60.0)

    monkeypatch.setattr(Watch, "between_batches", between)

    def answered(folder):
        folder.mkdir()
        looks.clear()
        config = of_owner(folder, "", **demands)
        return make_client_app(settings)(ask(model, whole(model)), context(config))

    assert answered(tmp_path / "0").has_content()
    count = len(looks)
    for number, last[0] in enumerate((1, count // 2, count), 1):
        assert answered(tmp_path / str(number)).error.code == NOT_NOW_ERROR
