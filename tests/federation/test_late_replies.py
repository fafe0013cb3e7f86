"""Rounds that end when enough replies are in, over gRPC: who is late counts in a later one."""

import json
import os

import pytest

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]

# On one device, the model for its second message is there only when the server has gone on to the third round.
HELD = """
import os, time
from pathlib import Path
from torch import nn

def make(input_shape, num_classes):
    if folder := os.environ.get("HELD"):
        calls = Path(folder, "calls")
        calls.write_text(calls.read_text() + "." if calls.exists() else ".")
        rounds = Path(folder, "runs", "late", "rounds.jsonl")
        while len(calls.read_text()) == 2 and rounds.read_text().count("\\n") < int(os.environ["UNTIL"]):
            time.sleep(0.1)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, num_classes))
"""

SETTINGS = """
[run]
name = "late"
rounds = 8

[data]
dataset = "own"
classes = ["down", "up"]
input_shape = [1, 2, 2]

[model]
name = "held:make"

[strategy]
name = "fedavg"

[wire]
up = "int8"
down = "int8"

[privacy]
clip_norm = 1.0
noise_multiplier = 0.01

[server]
min_clients = 3
min_replies = 0.5
buffer = 0.6
"""


def begin(commands, own_data, tmp_path, monkeypatch, until):
    """A server, two devices, and one that is held at its second task until so many rounds are over."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "held.py").write_text(HELD)
    (tmp_path / "late.toml").write_text(SETTINGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "models"), prepend=os.pathsep)
    server = commands.server("late.toml", "--insecure")
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure", "--allow-model", "held:make")
    for name in ("a", "b", "slow"):
        if name == "slow":
            monkeypatch.setenv("HELD", str(tmp_path))
            monkeypatch.setenv("UNTIL", str(until))
        more = ("--data", str(own_data(name, False)), "--state-dir", f"state-{name}", "--name", name)
        commands.start(name, "client", *where, *more, "--least-noise", "0.01")
    return server


def test_a_reply_to_the_round_before_counts(commands, own_data, tmp_path, monkeypatch):
    server = begin(commands, own_data, tmp_path, monkeypatch, until=2)
    commands.wait_for(lambda: server.poll() is not None, 600)
    run = tmp_path / "runs" / "late"
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert lines[1]["replies"] == 2, lines[1]
    assert any("slow" in line["late"] for line in lines[2:]), [line["late"] for line in lines]
    spent = json.loads((run / "summary.json").read_text())["privacy"]
    assert sum(spent["releases"].values()) >= 8 * 2  # two of three replies end a round
    assert 0 < spent["epsilon"]["slow"] <= spent["epsilon_most"]


def test_a_server_that_was_killed_takes_the_reply_to_a_task_of_before(commands, own_data, tmp_path, monkeypatch):
    """Each device that has replied is asked in the next round: no task is without a reply, and none has two."""
    server = begin(commands, own_data, tmp_path, monkeypatch, until=5)
    commands.wait_for(lambda: commands.rounds("runs/late") >= 3, 600)
    server.kill()
    assert server.wait(120) != 0
    assert commands.rounds("runs/late") < 5  # slow is at its second task
    monkeypatch.delenv("HELD")
    server = commands.server("late.toml", "--insecure", "--resume")
    assert server.wait(600) == 0
    lines, due = [json.loads(line) for line in (tmp_path / "runs/late/rounds.jsonl").read_text().splitlines()], {}
    assert [(line["round"], line["failed"]) for line in lines] == [(round_, {}) for round_ in range(1, 9)]
    for line in lines:
        for client in line["by_client"]:
            assert line["round"] - line["late"].get(client, 0) == due.get(client, 1), (client, line["round"])
            due[client] = line["round"] + 1
    assert max(line["late"].get("slow", 0) for line in lines) >= 3
