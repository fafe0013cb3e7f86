"""A server and clients with data of their own, started by hand as the README says: over gRPC, as processes."""

import json
import os
import signal

import pytest

from client.state import DeviceState, FolderStore

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]

SETTINGS = """
[run]
name = "by-hand"
rounds = 3

[data]
dataset = "own"
classes = ["down", "up"]
input_shape = [1, 2, 2]

[model]
name = "mlp"
hidden = [8]

[strategy]
name = "fesem"
num_clusters = 2

[server]
min_clients = 4
round_timeout = 40
straggler_grace = 12
straggler_factor = 2
"""


def test_own_data_a_broken_archive_a_killed_client_and_a_killed_server(commands, own_data):
    (commands.folder / "run.toml").write_text(SETTINGS)
    server = commands.server("--settings", "run.toml")
    nodes = {name: commands.client(name, "--data", str(own_data(name, name == "c"))) for name in ("a", "b", "c")}
    broken = own_data("broken", False)
    (broken / "data.npz").write_bytes(b"not an archive")
    nodes["broken"] = commands.client("broken", "--data", str(broken))

    # A device loses power in the middle of a round: the round goes on without it, and names it.
    commands.wait_for(lambda: commands.rounds("runs/by-hand") >= 1)
    os.kill(nodes["b"].pid, signal.SIGKILL)
    nodes["b"].wait()
    commands.wait_for(lambda: commands.rounds("runs/by-hand") >= 2)

    # The server loses power, too. Its clients wait; it goes on after its last checkpoint.
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    before = (commands.folder / "runs" / "by-hand" / "rounds.jsonl").read_text().splitlines()
    nodes["b"] = commands.client("b", "--data", str(commands.folder / "data-b"))
    server = commands.server("--settings", "run.toml", "--resume")
    assert server.wait(timeout=240) == 0, commands.log("server")

    folder = commands.folder / "runs" / "by-hand"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [json.loads(line)["round"] for line in before] == [line["round"] for line in lines[: len(before)]]
    # what the broken device said is in the record and on the server's screen, and the others trained
    assert lines[0]["replies"] == 3
    assert "data.npz" in lines[0]["failed"]["broken"]
    assert "round 1 without broken" in commands.log("server")
    assert any("b" in line["failed"] for line in lines)
    assert summary["assignment"]["a"] == summary["assignment"]["b"] != summary["assignment"]["c"]
    assert set(summary["accuracy_by_client"]) == {"a", "b", "c"}
    assert summary["accuracy_macro"] > 0.9
    assert (folder / "report.html").stat().st_size > 10_000
    # what the device keeps, for the next round and for use without a server; a loaded machine may have made it late
    kept = DeviceState(FolderStore(commands.folder / "state-a")).latest()
    assert kept.round >= max(line["round"] for line in lines if "a" not in line["failed"])
    assert kept.slots["personal"]["fc1.weight"].shape == (8, 4)
