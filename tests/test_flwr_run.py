"""`flwr run` takes the apps in `examples/` as they are, by Flower's own programs alone: simulated, and on SuperNodes.

Flower makes of an app what it does for everybody: a bundle of its folder, and an environment of its own.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port
from tests.helpers.waiting_for import eventually

pytestmark = pytest.mark.federation

EXAMPLES = Path(__file__).parents[1] / "examples"
BIN = Path(sys.executable).parent


def listens(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


class Flower:
    """Flower's programs with a home of their own; what they print is in ``NAME.log``."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.environment = {**os.environ, "FLWR_HOME": str(folder / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.environment.pop("PYTHONPATH", None)  # a bundle has to do without the checkout
        (folder / "home").mkdir()
        address = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (folder / "home" / "config.toml").write_text(f'[superlink]\ndefault = "local"\n[superlink.local]\n{address}')

    @contextmanager
    def runs(self, name, program, *words):
        """A program, which is ended with the block."""
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [BIN / program, "--insecure", *map(str, words)]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    @contextmanager
    def superlink(self, *words):
        """A SuperLink that listens."""
        where = ("--host", "127.0.0.1", "--port", self.port)
        with self.runs("superlink", "flower-superlink", *where, *words) as process:
            eventually(lambda: process.poll() is not None or listens(self.port), "SuperLink listens")
            assert process.poll() is None, (self.folder / "superlink.log").read_text()
            yield

    def flwr(self, *words):
        """What ``flwr`` prints."""
        done = subprocess.run(
            [BIN / "flwr", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def run(self, app, *words):
        """A run of a copy of an app in which nothing of this checkout is in reach; what it logs."""
        shutil.copytree(EXAMPLES / app, self.folder / app, ignore=shutil.ignore_patterns("__pycache__"))
        return self.flwr("run", app, "--stream", *words)

    def summary(self, said):
        """That of the run, which the ServerApp leaves where SuperLink runs."""
        found = list(self.folder.rglob("runs/flower-app/summary.json"))
        assert found, said[-5000:]
        return json.loads(found[0].read_text())


@pytest.fixture
def flower(tmp_path):
    return Flower(tmp_path)


def test_flowers_quickstart_trains_with_fesem_by_flwr_run(flower):
    with flower.superlink("--simulation"):
        said = flower.run("quickstart-pytorch", "--federation-config", "num-supernodes=6")
    assert "configure_train: 6 of 6 clients" in said, said[-3000:]
    assert float(said.split("Accuracy: ")[1].split()[0]) > 0.9
    members = [line.split(" is the model of ")[1].split() for line in said.splitlines() if " is the model of " in line]
    assert [len(nodes) for nodes in members] == [3, 3]


def test_bouquets_own_apps_are_simulated_as_they_are(flower):
    with flower.superlink("--simulation"):
        summary = flower.summary(flower.run("flower_app", "--federation-config", "num-supernodes=4"))
    assert (summary["clients"], summary["rounds"], summary["purity"]) == (4, 5, 1.0)


def test_bouquets_own_apps_run_on_stock_supernodes_with_other_settings(flower):
    own = version("flwr") < "1.40"  # then SuperNodes have an address of their own, for gRPC
    fleet = f"127.0.0.1:{free_port() if own else flower.port}"
    with (
        flower.superlink(*(("--fleet-api-address", fleet) if own else ())),
        flower.runs("one", "flower-supernode", *node(0, fleet)),
        flower.runs("two", "flower-supernode", *node(1, fleet)),
    ):
        changed = "run.rounds=2 strategy.name='ditto' strategy.options='{\"proximal_weight\": 0.5}'"
        summary = flower.summary(flower.run("flower_app", "--run-config", changed))
    assert (summary["strategy"], summary["clients"], summary["rounds"]) == ("ditto", 2, 2)


def node(part, fleet):
    config = f"partition-id={part} num-partitions=2"
    return ("--superlink", fleet, "--port", free_port(), "--node-config", config)
