"""A device with data of its own, and a server that may ask it for anything: no strategy, and no honest settings."""

import numpy as np
from flwr.app import Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload
from bouquet.common.settings import parse_settings
from bouquet.common.settings.settings import AS_JSON
from bouquet.experiments.simulation.inline_grid import InlineGrid

CLASSES = ["healthy", "mildew", "rust"]
SETTINGS = {
    "data.dataset": "own",
    "data.classes": CLASSES,
    "data.input_shape": [1, 4, 4],
    "model.hidden": [8],
    "privacy.clip_norm": 1.0,
    "privacy.noise_multiplier": 1.0,
}
NOISE = {"least-noise": 1.0}


def samples(counts=(16, 9, 3), seed=0):
    """Grey pictures (n, 1, 4, 4) from 0 to 1, so many of each class."""
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.random.default_rng(seed).random((len(y), 1, 4, 4)) + y[:, None, None, None] / 10
    return {"x": x.astype(np.float32), "y": y}


class Device:
    """Whatever it is sent, it answers as a process of its own would: by the ClientApp, from its state folder."""

    def __init__(self, folder, owner=(), own=None, **settings):
        InlineGrid({})  # gives Flower's Message its sender
        self.folder = folder
        self.data = folder / "photos of the garden"
        self.data.mkdir(parents=True, exist_ok=True)
        if own is not None:
            np.savez(self.data / "data.npz", **own)
        self.config = {"data": str(self.data), "state-dir": str(folder / "state"), "name": "pi", **dict(owner)}
        self.settings = {**SETTINGS, **settings}

    def model(self, **settings):
        """Layout and initial model (d,) that the settings describe."""
        return state_vector(initial_model(parse_settings({}, {**self.settings, **settings})))

    def ask(self, instruction=None, kind="train", round_=1, run="r", config=None, **settings):
        """The device's reply to an instruction, by default to train the initial model."""
        layout, initial = self.model(**settings)
        asked = instruction or Instruction({ARRAYS: Payload(initial)})
        content = Encoder(layout).content(asked, round_, run, config or {})
        given = {AS_JSON: parse_settings({}, {**self.settings, **settings}).model_dump_json()}
        message = Message(content, dst_node_id=2, message_type=kind)
        return make_client_app()(message, Context(1, 2, self.config, RecordDict(), given))


def said(reply):
    """All that a reply says, but for the values of arrays: what a server sees without any statistics."""
    if reply.has_error():
        return reply.error.code, reply.error.reason
    content = reply.content
    arrays = {
        name: {key: (tuple(a.shape), a.dtype, len(a.data)) for key, a in record.items()}
        for name, record in content.array_records.items()
    }
    metrics = {name: dict(record) for name, record in content.metric_records.items()}
    config = {
        name: {key: value if not isinstance(value, list) else len(value) for key, value in record.items()}
        for name, record in content.config_records.items()
    }
    return arrays, metrics, config
