"""Rounds that end when enough replies are in, over gRPC: who is late counts in a later one."""

import json
import os

import pytest

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]

# A device waits before it trains: "slow", from its second task on, until it may GO; "b" at its second until a round
# has counted slow (so slow's second task is one of the third round at the latest), and once five rounds are over until
# a later one has counted slow.
HELD = """
import os, time
from pathlib import Path
from torch import nn

def wait(name, go, record):
    tasks = Path(f"tasks-{name}")
    tasks.write_text(tasks.read_text() + "." if tasks.exists() else ".")
    number = len(tasks.read_text())
    rounds = lambda: record.read_text().splitlines() if record.exists() else []
    counted = lambda lines: any('"slow"' in line for line in lines)
    while name == "slow" and number >= 2 and not go.exists():
        time.sleep(0.1)
    while name == "b" and number == 2 and not counted(rounds()):
        time.sleep(0.1)
    while name == "b" and len(rounds()) >= 5 and not counted(rounds()[5:]):
        time.sleep(0.1)

def make(input_shape, num_classes):
    if name := os.environ.get("HELD"):
        wait(name, Path("go"), Path("runs", "late", "rounds.jsonl"))
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


def begin(commands, own_data, tmp_path, monkeypatch):
    """A server and three devices; when it returns, slow is held at its second task and five rounds are over."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "held.py").write_text(HELD)
    (tmp_path / "late.toml").write_text(SETTINGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "models"), prepend=os.pathsep)
    commands.keys("a", "b", "slow")
    server = commands.server("--settings", "late.toml")
    for name in ("a", "b", "slow"):
        monkeypatch.setenv("HELD", name)
        data = str(own_data(name, False))
        commands.client(name, "--data", data, "--allow-model", "held:make", "--least-noise", "0.01")
    monkeypatch.delenv("HELD")
    commands.wait_for(lambda: commands.rounds("runs/late") >= 5, 600)
    return server


def rounds_of(tmp_path):
    return [json.loads(line) for line in (tmp_path / "runs/late/rounds.jsonl").read_text().splitlines()]


def test_a_reply_to_a_round_before_counts(commands, own_data, tmp_path, monkeypatch):
    server = begin(commands, own_data, tmp_path, monkeypatch)
    (tmp_path / "go").touch()
    commands.wait_for(lambda: server.poll() is not None, 600)
    lines = rounds_of(tmp_path)
    assert [line["replies"] for line in lines[2:5]] == [2, 2, 2]  # of three devices, while slow is held
    assert lines[5]["late"].get("slow", 0) >= 3, lines[5]
    spent = json.loads((tmp_path / "runs/late/summary.json").read_text())["privacy"]
    assert sum(spent["releases"].values()) >= 8 * 2  # two of three replies end a round
    assert 0 < spent["epsilon"]["slow"] <= spent["epsilon_most"]


def test_a_server_that_was_killed_takes_the_reply_to_a_task_of_before(commands, own_data, tmp_path, monkeypatch):
    """Each device that has replied is asked in the next round: no task is without a reply, and none has two."""
    server = begin(commands, own_data, tmp_path, monkeypatch)
    server.kill()
    assert server.wait(120) != 0
    server = commands.server("--settings", "late.toml", "--resume")
    (tmp_path / "go").touch()
    assert server.wait(600) == 0
    lines, due = rounds_of(tmp_path), {}
    assert [(line["round"], line["failed"]) for line in lines] == [(round_, {}) for round_ in range(1, 9)]
    for line in lines:
        for client in line["by_client"]:
            assert line["round"] - line["late"].get(client, 0) == due.get(client, 1), (client, line["round"])
            due[client] = line["round"] + 1
    assert lines[5]["late"].get("slow", 0) >= 3, lines[5]
