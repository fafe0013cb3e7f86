"""Server and a device killed in the middle of a round: the run that goes on has every reply, and the same models."""

import contextlib
import json
import os
import shutil
import signal

import numpy as np
import pytest

from bouquet.client.rounds.serving import served_models
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from tests.helpers.descendants import descendants
from tests.helpers.two_classes import settings_of

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]

SETTINGS = settings_of(
    "run",
    6,
    more="""
[personal]
serve = "mixture"

[server]
min_clients = 3
straggler_grace = 800
round_timeout = 800
""",
)


NAMES = ("a", "b", "c")


def device(commands, data, name):
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure")
    own = ("--data", str(data[name]), "--state-dir", f"state-{name}", "--name", name)
    return commands.start(name, "client", *where, *own)


def signalled(pid, number):
    """A helper of a device may have ended since it was listed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kept(commands, name):
    """What a device has kept after the last round, and what it serves: tensors by name."""
    state = DeviceState(FolderStore(commands.folder / f"state-{name}"))
    latest = state.latest()
    assert latest.round == 6
    return [latest.slots["personal"], *served_models(state, latest.run, latest.round)]


def test_the_round_in_hand_is_repeated_and_all_is_as_if_nobody_had_been_killed(commands, own_data):
    (commands.folder / "run.toml").write_text(SETTINGS)
    data = {name: own_data(name, False) for name in NAMES}
    server = commands.server("run.toml", "--insecure")
    devices = {name: device(commands, data, name) for name in NAMES}
    saved = commands.folder / "runs" / "run" / "checkpoint"
    commands.wait_for(lambda: len([*saved.glob("round-*")]) >= 2, 600)

    # With one device stopped no round ends, and the server holds what the others have replied.
    stopped = [devices["c"].pid, *descendants(devices["c"].pid)]
    try:
        for pid in stopped:
            signalled(pid, signal.SIGSTOP)
        # Another is killed in its round: while it trains, judges or writes, whatever it has come to by then.
        commands.wait_for(lambda: commands.log("b").count("of 6 begins") > commands.rounds("runs/run"), 600)
        for pid in [devices["b"].pid, *descendants(devices["b"].pid)]:
            signalled(pid, signal.SIGKILL)
        devices["b"].wait(120)
        server.kill()
        assert server.wait(120) != 0
    finally:
        for pid in stopped:
            signalled(pid, signal.SIGCONT)
    assert commands.rounds("runs/run") < 6
    shutil.rmtree(max(saved.glob("round-*")))  # its disk lost it: a round that was over is repeated, too

    devices["b"] = device(commands, data, "b")
    server = commands.server("run.toml", "--insecure", "--resume")
    assert server.wait(600) == 0
    lines = [json.loads(line) for line in (commands.folder / "runs/run/rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 7))
    assert [(line["replies"], line["failed"]) for line in lines] == [(3, {})] * 6
    assert all(device.poll() is None for device in devices.values())

    killed = {name: kept(commands, name) for name in NAMES}
    server = commands.server("run.toml", "--insecure", "--set", "run.name=whole")
    assert server.wait(600) == 0
    for run in ("run", "whole"):
        summary = json.loads((commands.folder / "runs" / run / "summary.json").read_text())
        assert (sorted(summary["mixed_by_client"]), summary["not_evaluated"]) == (list(NAMES), {})
    for name, found in killed.items():
        expected = kept(commands, name)
        assert len(found) == len(expected) > 2
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            for key, array in one.items():
                np.testing.assert_array_equal(array, other[key], f"{key} of {name}")
