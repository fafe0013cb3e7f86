"""docs/season.md and docs/when.md command by command, with what each screen shows.

A season with six devices, and an owner's `[when]`; TLS, and a key each.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bouquet.client.owner.conditions import read_when
from bouquet.client.owner.sensors import VARIABLE as SENSORS
from bouquet.common.system.ports import free_port
from bouquet.common.trust.code import HOME
from bouquet.keys.store import add_device, init_keys
from tests.helpers.machine import Machine

pytestmark = pytest.mark.federation

DOCS = Path(__file__).parents[2] / "docs"
SEASON, WHEN = ((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("season", "when"))
STEP = re.compile(r"```(sh|text)\n(.*?)```|<!-- (power cut|stop|\d+ °C): ([\w-]+) -->", re.DOTALL)
DEVICES = ("garden-pi", "window-pi", "door-pi", "shed-pi", "roof-pi", "wall-pi")
NEXT_RELEASE = "0.2.0"
# Nothing of the page: so that a slow machine loses no device that lives.
PATIENT = "straggler_grace = 600\n"


# Copying between machines, which here are folders beside each other.
SCP = 'scp() { while [ $# -gt 2 ]; do shift; done; local to="${2#*@}"; cp -r "$1" "$ROOT/${to/:/\\/}"; }\n'


class Film:
    """Runs the steps. A machine is a folder; what it says, by command, is in ``MACHINE.log`` beside it."""

    def __init__(self, commands, port, web, text):
        self.commands, self.root, self.text = commands, commands.folder, text
        self.changes = {"SERVER": "127.0.0.1", "9092": str(port), "8090": str(web)}
        self.long = {}  # the command that a machine stays in
        self.last = ""  # the log that the next screen is of
        self.seen = {}  # how much of each log earlier screens have used
        self.released = set()

    def play(self):
        for kind, text, event, machine in STEP.findall(self.text):
            if event.endswith("°C"):
                Machine(self.root / machine / "sensors").temperature(int(event.split()[0]))
            elif event:
                self.end(machine, signal.SIGKILL if event == "power cut" else signal.SIGINT)
            elif kind == "text":
                self.look(text)
            else:
                head, *lines = text.splitlines()
                where = re.match(r"# (on|screen of) (.*)", head)
                machines = where[2].split()
                self.last = machines[-1]
                for name in machines:
                    for line in lines if where[1] == "on" else []:
                        self.do(name, line)

    def do(self, name, line):
        for old, new in self.changes.items():
            line = line.replace(old, new)
        if line == "pip install .":
            self.released.add(name)
            return
        folder, log = self.root / name, self.root / f"{name}.log"
        environment = {**os.environ, "ROOT": str(self.root)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        if (folder / "sensors").exists():
            environment[SENSORS] = str(folder / "sensors")
        if name in self.released:
            environment["PYTHONPATH"] = str(self.root / "release")
        stays = line.startswith(("bouquet server", "bouquet client"))
        if line.startswith("bouquet server"):
            line += f" --host 127.0.0.1 --port {self.changes['9092']}"
        # Ours, also where the released one is to be found first: a script would put its own folder before it.
        line = re.sub(r"^bouquet ", f"exec {sys.executable} -P -m bouquet " if stays else "bouquet ", line)
        if stays:  # its screen begins here
            self.seen[name] = len(log.read_text(errors="replace")) if log.exists() else 0
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", SCP + line], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.commands.running.append(process)
        if stays:
            self.long[name] = process
        else:
            assert process.wait() == 0, f"{line}\n{log.read_text()[-3000:]}"

    def end(self, name, number):
        if name in DEVICES:
            # Between two rounds; what comes of a reply on its way is in tests/server/service/test_transfers.py.
            log = self.root / f"{name}.log"
            said = log.read_text().count(" ended: loss")
            self.commands.wait_for(lambda: log.read_text().count(" ended: loss") > said)
            time.sleep(1)
        self.long[name].send_signal(number)
        self.long.pop(name).wait()

    def look(self, screen):
        """Wait until each line has been said by the machine, after what the screen before has shown of it."""
        log = self.root / f"{self.last}.log"
        begin = self.seen.get(self.last, 0)
        ends = []
        for line in screen.splitlines():
            expected = self.pattern(line)

            def found(expected=expected):
                return re.compile(expected, re.MULTILINE).search(log.read_text(errors="replace"), begin)

            try:
                self.commands.wait_for(lambda: found() is not None)
            except AssertionError as error:
                raise AssertionError(f"On {self.last} never: {line}\n{error}") from None
            ends.append(found().end())
        self.seen[self.last] = max(ends)

    def pattern(self, line):
        for old, new in self.changes.items():
            line = line.replace(old, new)
        return (
            "^"
            + ".*".join(re.escape(part) for part in line.rstrip().split("…"))
            + ("" if line.endswith("…") else r"\s*$")
        )


@pytest.fixture
def machines(tmp_path):
    """The folders that the page takes for granted: photos on each device, settings on the server, the next release."""
    random = np.random.default_rng(0)
    for name in DEVICES:
        for kind, colour in (("healthy", (60, 150, 60)), ("mildew", (200, 200, 190))):
            folder = tmp_path / name / "photos" / kind
            folder.mkdir(parents=True)
            for number in range(5):
                pixels = np.clip(random.normal(colour, 20, (12, 12, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "roof-pi" / "photos" / "healthy" / "broken.png").write_bytes(b"not a photo")
    for name in ("server", "laptop"):
        (tmp_path / name).mkdir()
    settings = re.search(r"```toml\n(# season\.toml\n.*?)```", SEASON, re.DOTALL)[1] + PATIENT
    for name in ("season", "plants"):
        (tmp_path / "server" / f"{name}.toml").write_text(settings)
    for name, rounds in (("autumn", 2), ("winter", 1)):
        changed = settings.replace('"plants"', f'"{name}"').replace("rounds = 1000", f"rounds = {rounds}")
        (tmp_path / "server" / f"{name}.toml").write_text(changed)
    release(tmp_path / "release")
    return tmp_path


def release(folder):
    """The next release, as pip would install it: the package, one file of it changed, and the number."""
    shutil.copytree(HOME, folder / "bouquet", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "bouquet" / "common" / "errors.py").open("a") as file:
        file.write("\n# better\n")
    about = folder / f"bouquet_fl-{NEXT_RELEASE}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bouquet-fl\nVersion: {NEXT_RELEASE}\n")


def test_a_season_with_six_devices(commands, machines, monkeypatch):
    monkeypatch.delenv("BOUQUET_WEB_TOKEN", raising=False)
    Film(commands, commands.port, free_port(), SEASON).play()
    assert all("Traceback" not in (machines / f"{name}.log").read_text() for name in (*DEVICES, "server"))


def test_when_a_device_works(commands, machines):
    files = dict(re.findall(r"```toml\n# (\S+)\n(.*?)```", WHEN, re.DOTALL))
    whole = machines / "whole.toml"
    whole.write_text(files["/etc/bouquet/when.toml"])
    assert read_when(whole).temperature == 70
    settings = (machines / "server" / "plants.toml").read_text()
    (machines / "server" / "plants.toml").write_text(settings.replace("min_clients = 5", "min_clients = 1"))
    init_keys(machines / "server" / "keys", ["127.0.0.1"])
    for name in ("garden-pi", "window-pi"):
        add_device(machines / "server" / "keys", name)
        shutil.copytree(machines / "server" / "keys" / "devices" / name, machines / name / "device-keys")
        (machines / name / "when.toml").write_text(files["when.toml"])
    film = Film(commands, commands.port, free_port(), WHEN)
    film.changes["03:0"] = f"{(datetime.now().hour + 12) % 24:02d}:0"  # not now, whatever the time is here
    film.play()
