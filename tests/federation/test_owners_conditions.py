"""Days and nights of a fleet whose owners say when it works, over gRPC, on files that stand for /sys and /proc.

A heat wave in mid-epoch, a flat battery, hours, another link, and a power cut at each. Nobody trains when its owner
does not allow it, no round waits for one, no model is lost, and status says why and until when.
"""

import contextlib
import json
import os
import re
import signal
from datetime import datetime, timedelta

import pytest

from tests.helpers.descendants import descendants
from tests.helpers.machine import Machine
from tests.helpers.two_classes import settings_of

pytestmark = pytest.mark.federation

# A device that is slow on purpose takes minutes for its epochs; a round that waited for one would go on for as long.
SETTINGS = settings_of(
    "run",
    10000,
    more="""
[train]
local_epochs = 100

[server]
min_clients = 2
straggler_grace = 1200
round_timeout = 1200
""",
)
HEAT = "temperature = 70\nlook_again = 1\n"
SLOWLY = "cpu_share = 0.001\n"


class Fleet:
    """A server and devices, each with a machine and an owner's file."""

    def __init__(self, commands, own_data):
        self.commands, self.own_data = commands, own_data
        self.machines, self.processes = {}, {}
        (commands.folder / "run.toml").write_text(SETTINGS)
        commands.server("run.toml", "--insecure")

    def start(self, name, when=""):
        """Start a device, or start it again."""
        if name not in self.machines:
            self.machines[name] = Machine(self.commands.folder / f"machine-{name}")
            self.own_data(name, False)
        self.when(name, when)
        where = ("--server", f"127.0.0.1:{self.commands.port}", "--insecure", "--when", f"{name}.toml")
        own = ("--data", f"data-{name}", "--state-dir", f"state-{name}", "--name", name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BOUQUET_SENSORS", str(self.machines[name].root))
            self.processes[name] = self.commands.start(name, "client", *where, *own)

    def when(self, name, text):
        """The owner changes the file."""
        beside = self.commands.folder / f"{name}.new"
        beside.write_text(f"[when]\n{text}")
        beside.replace(self.commands.folder / f"{name}.toml")

    def kill(self, name):
        for pid in [self.processes[name].pid, *descendants(self.processes[name].pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[name].wait()

    def again(self, name, when):
        """A power cut, and the device is back with this file of its owner."""
        connected = self.commands.log(name).count("Connected.")
        self.kill(name)
        self.start(name, when)
        self.eventually(lambda: self.commands.log(name).count("Connected.") > connected)

    @property
    def lines(self):
        file = self.commands.folder / "runs/run/rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def status(self):
        file = self.commands.folder / "runs/run/status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def trained(self, name):
        """The rounds in which a device replied."""
        return [line["round"] for line in self.lines if name in line["by_client"]]

    def begun(self, name):
        """The rounds that a device has begun, by its log."""
        return [int(round_) for round_ in re.findall(r"Round (\d+) of \d+ begins", self.commands.log(name))]

    def resting(self, name):
        """Why the server takes a device for one that does not work now."""
        return (self.status.get("not_now") or {}).get(name, {}).get("reason", "")

    def eventually(self, what):
        self.commands.wait_for(what)

    def goes_on(self, rounds=2):
        """So many rounds more are recorded."""
        before = len(self.lines)
        self.eventually(lambda: len(self.lines) >= before + rounds)


@pytest.fixture
def fleet(commands, own_data):
    return Fleet(commands, own_data)


def model_of(folder):
    return {file.name: file.read_bytes() for file in folder.rglob("*.safetensors")}


def test_a_day_and_a_night(fleet):
    folder = fleet.commands.folder
    fleet.start("free")
    fleet.start("flat", "battery = 0.5\nlook_again = 1\n")
    fleet.machines["flat"].power(mains=False, battery=30)
    fleet.start("hot", HEAT)
    fleet.machines["hot"].temperature(80)
    opens = datetime.now() + timedelta(hours=3)
    fleet.start("night", f'hours = "{opens:%H:%M}-{opens + timedelta(hours=2):%H:%M}"\n')

    # By day one device of four can, and the server waits for a second one, whatever the time.
    fleet.eventually(lambda: all(fleet.resting(name) for name in ("flat", "hot", "night")))
    assert fleet.status["state"] == "waiting"
    assert fleet.resting("flat") == "battery below 50%; again from there, or on mains"
    assert fleet.resting("hot") == "too hot; again below 60 °C"
    assert fleet.resting("night") == f"outside its hours; again after {opens:%H:%M}"
    until = fleet.status["not_now"]["night"]["until"]
    assert until == pytest.approx(opens.replace(second=0).timestamp(), abs=2)
    assert fleet.lines == []
    fleet.commands.run("status", "status", "runs/run")
    assert f"hot, not now: {fleet.resting('hot')}" in fleet.commands.log("status")

    # A power cut by day: it comes back with the same battery, and rests.
    fleet.again("flat", "battery = 0.5\nlook_again = 1\n")
    fleet.eventually(lambda: "flat" in fleet.status["connected"] and "battery" in fleet.resting("flat"))
    assert fleet.begun("flat") == []

    # The charger comes, and the run begins with two.
    fleet.machines["flat"].power(mains=True, battery=30)
    fleet.eventually(lambda: fleet.trained("flat"))
    assert fleet.trained("hot") == []

    # It cools down, but not enough; then enough.
    fleet.machines["hot"].temperature(65)
    fleet.goes_on()
    assert fleet.trained("hot") == []
    fleet.machines["hot"].temperature(55)
    fleet.eventually(lambda: fleet.trained("hot"))

    # Hot again: while it rests, its owner has it train so slowly that a round of its takes minutes.
    fleet.machines["hot"].temperature(75)
    fleet.eventually(lambda: fleet.resting("hot"))
    fleet.when("hot", HEAT + SLOWLY)
    kept, before = model_of(folder / "state-hot"), len(fleet.begun("hot"))
    assert kept

    # A heat wave in mid-epoch: it stops there, the round ends without it, and what it had stays.
    fleet.machines["hot"].temperature(55)
    fleet.eventually(lambda: len(fleet.begun("hot")) > before)
    begun = fleet.begun("hot")[-1]
    fleet.machines["hot"].temperature(75)
    fleet.eventually(lambda: fleet.commands.rounds("runs/run") >= begun)
    assert f"Round {begun} goes on without this device, as its owner has it: too hot" in fleet.commands.log("hot")
    (line,) = [line for line in fleet.lines if line["round"] == begun]
    assert line["not_now"]["hot"] == "too hot; again below 60 °C"
    assert (line["failed"], "hot" in line["by_client"], "hot" in line["absent"]) == ({}, False, False)
    fleet.goes_on()
    assert model_of(folder / "state-hot") == kept

    # Killed while it is too hot, and back when it is not quite cool: it remembers.
    last = fleet.trained("hot")[-1]
    fleet.machines["hot"].temperature(65)
    fleet.again("hot", HEAT)
    fleet.eventually(lambda: "hot" in fleet.status["connected"] and fleet.resting("hot"))
    fleet.goes_on()
    assert fleet.trained("hot")[-1] == last
    fleet.machines["hot"].temperature(40)
    fleet.eventually(lambda: fleet.trained("hot")[-1] > last)

    # Its owner has it work by day, too. It said when to ask again, so it is started anew.
    assert fleet.trained("night") == []
    fleet.again("night", f'hours = "{opens:%H:%M}-{opens - timedelta(minutes=1):%H:%M}"\n')
    fleet.eventually(lambda: fleet.resting("night") == "" and "night" in fleet.status["connected"])

    # A link that costs by the byte, and a power cut there.
    wlan = folder / "wlan0"
    link = f'command = ["test", "-e", "{wlan}"]\nlook_again = 1\n'
    fleet.when("flat", link)
    fleet.eventually(lambda: fleet.resting("flat") == "its owner's own command says so")
    kept, last = model_of(folder / "state-flat"), fleet.trained("flat")[-1]
    assert kept
    fleet.again("flat", link)
    fleet.eventually(lambda: "flat" in fleet.status["connected"] and fleet.resting("flat"))
    fleet.goes_on()
    assert (model_of(folder / "state-flat"), fleet.trained("flat")[-1]) == (kept, last)
    wlan.touch()
    fleet.eventually(lambda: fleet.trained("flat")[-1] > last)

    lines = fleet.lines
    for line in lines:
        assert not set(line["not_now"]) & set(line["by_client"])
        assert not [reason for reason in line["failed"].values() if "not_now" in reason or "too hot" in reason]
    # Only those that were killed ever failed.
    assert {name for line in lines for name in line["failed"]} <= {"flat", "hot", "night"}
