"""Server and a device killed in the middle of a round: the run that goes on is to the bit as one that nothing befell.

Of a model with batch normalisation, of which some layers stay on the devices, with their statistics and counters.
"""

import contextlib
import json
import os
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.client.rounds.serving import served_models
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from tests.helpers.descendants import descendants

pytestmark = pytest.mark.federation

SETTINGS = """
[run]
name = "run"
rounds = 100_000  # so many as it is told when it goes on

[data]
dataset = "own"
classes = ["dark", "bright"]
input_shape = [1, 4, 4]

[model]
name = "cnn-batchnorm"

[strategy]
name = "dc-pfl"
discrepancy_rounds = 1
slow_ratio = 0.9

[personal]
serve = "mixture"

[server]
min_clients = 3
straggler_grace = 1200
round_timeout = 1200
"""

SAMPLES = {"a": 40, "b": 120, "c": 60}  # so that their counters differ


def images(folder, count):
    generator = np.random.default_rng(count)
    y = np.arange(count) % 2
    folder.mkdir()
    x = generator.normal(size=(count, 1, 4, 4)) + np.where(y == 1, 1.0, -1.0)[:, None, None, None]
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=y)


def device(commands, name):
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure")
    own = ("--data", f"data-{name}", "--state-dir", f"state-{name}", "--name", name)
    return commands.start(name, "client", *where, *own)


def signalled(pid, number):
    """A helper of a device may have ended since it was listed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def lines_of(run):
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def outcome(commands, run, rounds):
    """What is left of a run: its lines, its models, and of each device the tensors that it keeps and serves."""
    summary = json.loads((run / "summary.json").read_text())
    assert (sorted(summary["mixed_by_client"]), summary["not_evaluated"]) == (list(SAMPLES), {})
    lines = lines_of(run)
    kept = [{k: v for k, v in line.items() if "seconds" not in k and k != "identification_bytes"} for line in lines]
    tensors = {file.name: load_file(file) for file in (run / "models").glob("*.safetensors")}
    for name in SAMPLES:
        state = DeviceState(FolderStore(commands.folder / f"state-{name}"))
        latest = state.latest()
        assert latest.round == rounds
        own = [latest.slots["personal"], *served_models(state, latest.run, latest.round)]
        assert len(own) > 2
        tensors |= {f"{name} {number}": one for number, one in enumerate(own)}
    return kept, tensors


def test_the_round_in_hand_is_repeated_and_all_is_as_if_nobody_had_been_killed(commands):
    (commands.folder / "run.toml").write_text(SETTINGS)
    for name, count in SAMPLES.items():
        images(commands.folder / f"data-{name}", count)
    server = commands.server("run.toml", "--insecure")
    devices = {name: device(commands, name) for name in SAMPLES}
    run = commands.folder / "runs" / "run"
    commands.wait_for(lambda: len([*(run / "checkpoint").glob("round-*")]) >= 2)

    # With one device stopped no round ends, and the server holds what the others have replied.
    stopped = [devices["c"].pid, *descendants(devices["c"].pid)]
    try:
        for pid in stopped:
            signalled(pid, signal.SIGSTOP)
        # Another is killed in its round: while it trains, judges or writes, whatever it has come to by then.
        commands.wait_for(lambda: commands.log("b").count(" begins (run).") > commands.rounds("runs/run"))
        for pid in [devices["b"].pid, *descendants(devices["b"].pid)]:
            signalled(pid, signal.SIGKILL)
        devices["b"].wait()
        server.kill()
        server.wait()
    finally:
        for pid in stopped:
            signalled(pid, signal.SIGCONT)
    shutil.rmtree(max((run / "checkpoint").glob("round-*")))  # its disk lost it: a round that was over is repeated, too
    rounds = commands.rounds("runs/run") + 2

    devices["b"] = device(commands, "b")
    more = ("run.toml", "--insecure", "--set", f"run.rounds={rounds}")
    commands.wait_for_end(commands.server(*more, "--resume"))
    lines, tensors = outcome(commands, run, rounds)
    assert [line["round"] for line in lines] == list(range(1, rounds + 1))
    assert [(line["replies"], line["failed"]) for line in lines] == [(3, {})] * rounds
    assert any(group["slow"] for line in lines for group in line["strategy"]["groups"])
    assert all(device.poll() is None for device in devices.values())

    commands.wait_for_end(commands.server(*more, "--set", "run.name=whole"))
    whole, expected = outcome(commands, commands.folder / "runs" / "whole", rounds)
    assert lines == whole
    assert tensors.keys() == expected.keys()
    for model, found in tensors.items():
        assert found.keys() == expected[model].keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[model][name], f"{name} of {model}")
    first = tensors["cluster-0.safetensors"]
    assert first["norm1.num_batches_tracked"].shape == ()
    assert first["norm1.num_batches_tracked"] > 4
    assert np.abs(first["norm2.running_mean"]).max() > 0
