"""A device that stays warm: each message is a process of its own, and what happens in one stays in it."""

import json

import pytest

pytestmark = pytest.mark.federation

# On the device alone, the model's factory does in its n-th call what the n-th line of the file says.
FRAGILE = """
import os, signal, sys, time
from pathlib import Path
from torch import nn

def make(input_shape, num_classes):
    if folder := os.environ.get("FRAGILE"):
        plan = Path(folder, "plan")
        todo, _, rest = plan.read_text().partition("\\n")
        plan.write_text(rest)
        with Path(folder, "seen").open("a") as seen:
            threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
            print(todo, os.getpid(), os.getppid(), threads, "leak" in sys.modules, file=seen)
        sys.modules["leak"] = sys
        if todo == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif todo == "exit":
            os._exit(0)
        elif todo == "trainer":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, num_classes))
"""


@pytest.fixture
def fragile(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "fragile.py").write_text(FRAGILE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "models"))
    values = ["data.dataset=own", 'data.classes=["low","high"]', "data.input_shape=[1,2,2]", "model.name=fragile:make"]
    values += ["run.rounds=5", "server.min_clients=2", "server.straggler_grace=600", "strategy.name=fedavg"]
    return [text for value in values for text in ("--set", value)]


def test_what_happens_in_a_message_stays_in_it(commands, own_data, fragile, tmp_path, monkeypatch):
    folder = tmp_path / "device"
    folder.mkdir()
    plan = ["work", "kill", "exit", "trainer", "work", "work"]
    (folder / "plan").write_text("\n".join(plan) + "\n")
    server = commands.server("--out", "run", "--insecure", *fragile)
    where = ("--server", f"127.0.0.1:{commands.port}", "--insecure", "--allow-model", "fragile:make")
    commands.start("good", "client", *where, "--state-dir", "good", "--data", str(own_data("good", False)))
    monkeypatch.setenv("FRAGILE", str(folder))
    own = ("--state-dir", "bad", "--name", "bad", "--data", str(own_data("bad", False)))
    commands.start("bad", "client", *where, *own)
    commands.wait_for_end(server)

    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    reasons = [line["failed"].get("bad", "") for line in lines]
    assert [line["replies"] for line in lines] == [2, 1, 1, 1, 2]
    for reason, expected in zip(
        reasons, ["", "SIGKILL", "left no answer", "trainer, which was ended by SIGKILL", ""], strict=True
    ):
        assert expected in reason, reasons
    seen = [line.split() for line in (folder / "seen").read_text().splitlines()]
    assert [todo for todo, *_ in seen] == plan
    pids, parents = [row[1] for row in seen], [row[2] for row in seen]
    assert len(set(pids)) == len(plan), "each message is a process of its own"
    assert len(set(parents[:4])) == 1 == len(set(parents[4:])), "forked from one trainer"
    assert parents[3] != parents[4], "which was started again when it died"
    assert {row[3] for row in seen} == {"1"}, "no thread in the process that forks"
    assert {row[4] for row in seen} == {"False"}, "nothing of one message is left in the next"
    # One connection all along: the agent went on through all of it.
    assert commands.log("bad").count("Connected.") == 1
