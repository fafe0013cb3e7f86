"""The device's side of the methods with personal models: Ditto's two models, and layers that the device keeps."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import Message

from bouquet.client.rounds.start_model import compose
from bouquet.client.state.device_state import PERSONAL, Kept
from bouquet.common import protocol
from bouquet.common.protocol import ARRAYS, FALLBACK, Encoder, Instruction, Payload, Proximal
from bouquet.common.settings import load_settings
from tests.helpers.one_device import OneDevice

CHANGES = ["data.clients=10", "train.local_epochs=1", "train.momentum=0", "data.partition=rotated", "data.groups=2"]
SETTINGS = load_settings(None, CHANGES)


@pytest.fixture
def device(tmp_path):
    return OneDevice(SETTINGS, tmp_path / "device")


def ditto(vector, weight=1.0, **more):
    proximal = (Proximal(ARRAYS, weight),)
    return Instruction({ARRAYS: Payload(vector)}, start="personal", procedure="ditto", proximal=proximal, **more)


def plain(vector, **more):
    return Instruction({ARRAYS: Payload(vector)}, **more)


def test_the_upload_is_what_fedavg_would_upload(device):
    initial, alone = device.initial, device.another("alone")
    replies = [device.reply(ditto(initial)), alone.reply(plain(initial))]
    np.testing.assert_array_equal(replies[0].vector, replies[1].vector)
    # a strong pull keeps the personal model at the global one that was received, and no nearer to the trained one
    held = device.another("held")
    np.testing.assert_array_equal(held.reply(ditto(initial, weight=9.0)).vector, replies[1].vector)
    moved = [np.linalg.norm(one.own() - initial) for one in (device, held)]
    assert moved[1] < 0.5 * moved[0]


def test_without_a_pull_the_personal_model_is_trained_alone(device):
    alone = device.another("alone")
    device.reply(ditto(device.initial, weight=0.0, newcomer=True))
    alone.reply(plain(device.initial))
    far = device.initial + np.float32(3)
    second = device.reply(ditto(far, weight=0.0), 2)
    alone.reply(Instruction(start="personal", upload=()), 2)
    np.testing.assert_array_equal(device.own(2), alone.own(2))
    # what it sends is the received model trained, not its own
    assert np.linalg.norm(second.vector - far) < np.linalg.norm(second.vector - device.initial)


def test_it_is_tested_with_its_personal_model(device):
    for round_ in (1, 2, 3):
        trained = device.reply(ditto(device.initial, weight=0.01, config={"local-epochs": 3}), round_)
    metrics = device.tested(ditto(np.zeros_like(device.initial)), 3)
    assert metrics["accuracy"] == trained.metrics["accuracy-trained"] > 0.5
    assert metrics["state-lost"] == 0


def test_a_lost_personal_model_begins_at_the_global_one_and_is_said(device):
    lost = device.reply(ditto(device.initial), 2)
    new = device.another("new").reply(ditto(device.initial, newcomer=True), 2)
    assert (lost.metrics["state-lost"], new.metrics["state-lost"]) == (1, 0)
    np.testing.assert_array_equal(lost.vector, new.vector)
    assert lost.metrics["accuracy"] == new.metrics["accuracy"]


def test_spare_layers_are_for_a_device_that_has_none(layout):
    initial, own, sent, fallback = (np.full(layout.dim, value, dtype=np.float32) for value in (0, 1, 2, 3))

    def start(kept, **more):
        models = {ARRAYS: Payload(sent, ("first",)), FALLBACK: Payload(fallback, ("last",))}
        content = Encoder(layout).content(Instruction(models, **more), 2, "", {})
        message = Message(content, dst_node_id=2, message_type="train")
        return compose(protocol.read_instruction(message, layout), kept, initial, layout)

    assert start(Kept(1, {PERSONAL: layout.unflatten(own)})) == (pytest.approx([2] * 6 + [1] * 2), False)
    assert start(None) == (pytest.approx([2] * 6 + [3] * 2), True)
    assert start(None, newcomer=True)[1] is False


KILLED = """
import os, signal, sys
from flwr.app import Context, Message, RecordDict
import bouquet.client.training.sgd as local_sgd
from bouquet.client.app import make_client_app
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
InlineGrid({})
settings = load_settings(None, sys.argv[2:])
layout, initial = state_vector(initial_model(settings))
context = Context(1, 2, {"partition-id": 3, "num-partitions": 10, "state-dir": sys.argv[1]}, RecordDict(), {})
first = layout.layers[:1]
instruction = Instruction({ARRAYS: Payload(initial, first)})
def train(round_):
    content = Encoder(layout).content(instruction, round_, "r", {})
    make_client_app(settings)(Message(content, dst_node_id=2, message_type="train"), context)
train(1)
take = local_sgd.mini_batches
def dies(*arguments):
    for index, batch in enumerate(take(*arguments)):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
local_sgd.mini_batches = dies
train(2)
"""


def test_personal_layers_survive_a_device_that_is_killed_in_the_middle_of_a_round(device):
    """Killed after three mini-batches of round 2 and started again, it gives what it would have given."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(device.folder), *CHANGES], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    whole = device.another("whole")
    shared = Instruction({ARRAYS: Payload(device.initial, device.layout.layers[:1])})
    whole.reply(shared)
    after = [one.reply(shared, 2) for one in (device, whole)]
    assert [reply.metrics["state-lost"] for reply in after] == [0, 0]
    np.testing.assert_array_equal(after[0].vector, after[1].vector)
    fresh = device.another("empty").reply(shared, 2)
    assert fresh.metrics["state-lost"] == 1
    assert not np.array_equal(fresh.vector, after[0].vector)
