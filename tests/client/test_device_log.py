"""A device's log answers by itself: what it holds, what came of each round, why it was left out."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.client.context import ClientContext
from bouquet.client.device_log import _numbers
from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model_selection import CHOSEN, MIXED, mixed_bits
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload
from bouquet.common.settings import load_settings
from bouquet.common.settings.settings import AS_JSON
from bouquet.common.task.score import ACCURACY
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import reply_checks

InlineGrid({})  # gives Flower's Message its sender
SETTINGS = load_settings(
    None,
    [
        "run.name=plants",
        "run.rounds=2",
        "data.dataset=own",
        'data.classes=["healthy", "rust"]',
        "data.input_shape=[1, 2, 2]",
        "model.hidden=[4]",
    ],
)


@pytest.fixture
def device(tmp_path, capsys):
    """Sends a real device's ClientApp a message and returns what its log then says, with the reply."""
    x = np.random.default_rng(0).normal(size=(20, 1, 2, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros(20, dtype=np.int64))
    config = {"data": str(tmp_path / "data.npz"), "state-dir": str(tmp_path / "state"), "name": "garden-pi"}
    app = make_client_app()

    def send(kind, round_=1, settings=SETTINGS, content=None):
        layout, vector = state_vector(initial_model(settings))
        if content is None:
            content = Encoder(layout).content(Instruction({ARRAYS: Payload(vector)}), round_, "run", {})
        context = Context(1, 2, config, RecordDict(), {AS_JSON: settings.model_dump_json()})
        try:
            reply = app(Message(content, dst_node_id=2, message_type=kind), context)
        finally:
            send.said = capsys.readouterr().out.splitlines()
        return reply

    return send


def test_a_round_and_the_end_of_the_run(device):
    reply = device("train")
    assert device.said[:2] == [
        "Data: 16 samples to train on, 4 to test on; healthy 20, rust none.",
        "Round 1 of 2 begins (plants).",
    ]
    metrics = reply_checks.read_metrics(reply)
    assert device.said[2] == (
        f"Round 1 ended: loss {metrics['loss']:.3f}, {metrics['train-loss']:.3f} while training, "
        f"accuracy {metrics['accuracy']:.3f} as received, {metrics['accuracy-trained']:.3f} after training, "
        f"{metrics['accuracy-own']:.3f} in use, {metrics['accuracy-alone']:.3f} alone."
    )
    device("train", 2)
    assert device.said[0] == "Round 2 of 2 begins (plants)."  # the data have not changed, and are not said again
    device("evaluate", 2)
    assert device.said[-1].startswith("The run plants has ended.")


def test_what_the_device_serves_is_in_its_log():
    metrics = {"accuracy": 0.5, CHOSEN: 4, MIXED: mixed_bits(["received", "trained"], True)}
    assert _numbers(metrics, ACCURACY) == "accuracy 0.500 as received, serves received + trained, without alone"


def test_why_it_is_left_out(device, tmp_path, monkeypatch):
    device("train", settings=SETTINGS.with_overrides({"train.learning_rate": 1e38}))
    assert device.said[-1].startswith("Round 1 failed, and the run goes on without this device: ")
    assert "diverged" in device.said[-1]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bouquet.client.state.store.os.replace", full)
    device("train", settings=SETTINGS.with_overrides({"run.seed": 5}))
    assert device.said[-1].endswith(f"state cannot be written to {tmp_path / 'state'}: No space left on device.")
    (tmp_path / "data.npz").write_bytes(b"torn")
    device("train")
    assert "data.npz" in device.said[-1]


def test_what_the_server_has_to_say_is_in_the_log(device):
    content = RecordDict({protocol.CONFIG: ConfigRecord({protocol.TEXT: "Two devices are called garden-pi."})})
    device(protocol.NOTICE, content=content)
    assert device.said == ["The server says: Two devices are called garden-pi."]


def test_a_device_that_is_renamed_has_the_randomness_it_had(tmp_path):
    def seeds(name):
        config = {"data": "photos", "state-dir": str(tmp_path), "name": name}
        return [ClientContext(SETTINGS, Context(1, 2, config, RecordDict(), {})).seed(round_) for round_ in (0, 1)]

    assert seeds("garden-pi") == seeds("balcony-pi")
    assert len(set(seeds("garden-pi"))) == 2
