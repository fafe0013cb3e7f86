"""The wheel in an empty environment and an empty folder: with the newest of every dependency, and with the oldest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port
from tests.installation.environments import ROOT, environment, run

pytestmark = [pytest.mark.installation, pytest.mark.timeout(3600)]

RUN = {"run.rounds": 2, "data.clients": 2, "server.min_clients": 2, "strategy.name": "fedavg"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(environment(folder / "environment", "build"), "-m", "build", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session", params=["newest", "oldest"])
def bouquet(request, wheel, tmp_path_factory):
    """The program ``bouquet`` of a clean installation."""
    folder = tmp_path_factory.mktemp(request.param)
    versions = []
    if request.param == "oldest":
        lowest = ["pip", "compile", "--quiet", "--resolution", "lowest-direct", "--extra", "server"]
        lowest += ["--output-file", folder / "oldest.txt"]
        run(Path(sys.executable).with_name("uv"), *lowest, ROOT / "pyproject.toml")
        versions = ["--constraint", folder / "oldest.txt"]
    python = environment(folder / "environment", f"{wheel}[server]", *versions)
    return python.with_name("bouquet")


def test_the_demo_trains(bouquet, tmp_path):
    run(bouquet, "demo", "--rounds", "4", "--out", "demo", folder=tmp_path)
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert (summary["clients"], summary["clusters"], summary["purity"]) == (6, 3, 1.0)


def test_devices_join_a_federation(bouquet, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    words = [word for key, value in RUN.items() for word in ("--set", f"{key}={value}")]
    devices = []
    try:
        for part in range(2):
            own = ["--partition-id", str(part), "--state-dir", f"device-{part}"]
            log = (tmp_path / f"device-{part}.log").open("wb")
            device = [bouquet, "client", "--server", address, "--insecure", *own]
            devices.append(subprocess.Popen(device, cwd=tmp_path, stdout=log, stderr=log))
        port = address.rpartition(":")[2]
        run(
            bouquet,
            "server",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--out",
            "run",
            *words,
            folder=tmp_path,
        )
    finally:
        for device in devices:
            device.terminate()
            device.wait(timeout=60)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["clients"], summary["rounds"]) == (2, 2)
