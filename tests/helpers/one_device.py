"""One device, and what it is asked; every message finds it in a new process that has nothing but its state folder."""

import sys
import types

import numpy as np
from flwr.app import Context, Message, RecordDict
from torch import nn

from bouquet.client.app import make_client_app
from bouquet.client.state.device_state import PERSONAL, DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import Encoder
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import reply_checks

InlineGrid({})  # gives Flower's Message its sender


class OneDevice:
    """With the part of the settings' data set that ``node`` says, or a file."""

    def __init__(self, settings, folder, **node):
        self.settings, self.folder = settings, folder
        self.node = {**(node or {"partition-id": 3, "num-partitions": 10}), "state-dir": str(folder)}
        self.layout, self.initial = state_vector(initial_model(settings))
        self.state = DeviceState(FolderStore(folder, durable=False))

    def another(self, name="other"):
        """One with the same data, and no state."""
        return OneDevice(self.settings, self.folder.with_name(name), **self.node)

    def ask(self, instruction, round_=1, kind="train", config=None):
        content = Encoder(self.layout).content(instruction, round_, "r", config or {})
        message = Message(content, dst_node_id=2, message_type=kind)
        return make_client_app(self.settings)(message, Context(1, 2, self.node, RecordDict(), {}))

    def reply(self, instruction, round_=1, config=None):
        return reply_checks.read_reply(self.ask(instruction, round_, config=config), self.layout, instruction.upload)

    def tested(self, instruction, round_=1):
        return reply_checks.read_metrics(self.ask(instruction, round_, "evaluate"))

    def own(self, round_=1):
        """The model that it keeps after a round."""
        return self.layout.flatten(self.state.recall("r", round_ + 1).slots[PERSONAL])


def linear(input_shape, num_classes):
    return nn.Linear(2, 2, bias=False)


def four_weights(monkeypatch, tmp_path, labels, test_labels, *changes, name="a", model=linear):
    """A device whose model is W (2 × 2) without bias: its gradient is (p − y) xᵀ, and all samples are (1, 0)."""
    module = types.ModuleType("four_weights")
    module.linear = model
    monkeypatch.setitem(sys.modules, "four_weights", module)
    own = ["data.dataset=own", "data.classes=zero,one", "data.input_shape=2", "model.name=four_weights:linear"]
    settings = load_settings(None, [*own, "train.momentum=0", *changes])
    x = np.tile(np.array([1, 0], dtype=np.float32), (len(labels), 1))
    np.savez(tmp_path / f"{name}.npz", x=x, y=np.array(labels), x_test=x, y_test=np.array(test_labels))
    return OneDevice(settings, tmp_path / f"{name}-state", data=str(tmp_path / f"{name}.npz"), name=name)
