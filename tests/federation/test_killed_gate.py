"""The gate killed in a whole federation while replies are on their way: none is missing."""

import json

import pytest

from tests.helpers.two_classes import settings_of

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]

ROUNDS = 6
# In the gate's process, each time that it starts: it kills itself at what the next line of the plan names, once a round
# is over: when it has all of a call and SuperLink has nothing, or when SuperLink has it and the device no answer.
KILLS = ("PushMessages before", "PushMessages after", "PushObject before", "PushObject after")
FRAGILE = """
import os, signal, sys
from pathlib import Path

if sys.orig_argv[1:4] == ["-P", "-m", "server.gate.main"]:
    from server.gate.relay import Relay

    folder, ask = Path(__file__).parents[1], Relay._ask
    plan, record = folder / "plan", folder / "runs/run/rounds.jsonl"

    def reach(point):
        first, _, rest = plan.read_text().partition("\\n")
        if first == point and record.exists():
            plan.write_text(rest)
            os.kill(os.getpid(), signal.SIGKILL)

    async def fragile(self, method, *more):
        reach(f"{method} before")
        answer = await ask(self, method, *more)
        reach(f"{method} after")
        return answer

    Relay._ask = fragile
"""
SETTINGS = settings_of(
    "run",
    ROUNDS,
    more="""
[server]
min_clients = 3
straggler_grace = 800
round_timeout = 800
""",
)


def test_a_gate_that_is_killed_with_replies_in_hand_costs_none(commands, own_data, tmp_path, monkeypatch):
    (commands.folder / "run.toml").write_text(SETTINGS)
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(FRAGILE)
    plan = commands.folder / "plan"
    plan.write_text("\n".join(KILLS))
    commands.keys("a", "b", "c")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "hooks"))
        server = commands.server("--settings", "run.toml")
    devices = [commands.client(name, "--data", str(own_data(name, False))) for name in ("a", "b", "c")]
    assert server.wait(800) == 0, commands.log("server")
    assert plan.read_text() == ""
    run = commands.folder / "runs" / "run"
    assert (run / "superlink" / "gate.log").read_text().count("[gate] Listening") == 1 + len(KILLS)
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    assert [(line["replies"], line["failed"]) for line in lines] == [(3, {})] * ROUNDS
    assert json.loads((run / "summary.json").read_text())["not_evaluated"] == {}
    assert all(device.poll() is None for device in devices)
