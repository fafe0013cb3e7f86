"""docs/containers.md, from photos to a fleet: what its owner types, to the letter but for names, address and port."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port

ROOT = Path(__file__).parents[2]
GATEWAY = (
    "import socket; routes = [line.split() for line in open('/proc/net/route')]; "
    "print(*(socket.inet_ntoa(bytes.fromhex(way[2])[::-1]) for way in routes if way[1] == '00000000'))"
)


@pytest.mark.containers
@pytest.mark.timeout(1800)
def test_an_owner_comes_from_photos_to_a_fleet_of_containers(tmp_path):
    page = (ROOT / "docs" / "containers.md").read_text()
    typed = re.findall(r"```sh\n# on (the server|each device)\n(.*?)```", page, re.DOTALL)
    images, settings, server, device, answer = (text for _, text in typed)
    run, port = f"test-{uuid.uuid4().hex[:8]}", str(free_port())
    base = os.environ.get("BASE", "python:3.11-slim-bookworm")

    def shell(text, folder, name=""):
        for old, new in (
            ("docker build", f"docker build --build-arg BASE={base}"),
            ("-p 9092:", f"-p {port}:"),
            ("192.168.1.10:9092", f"{address}:{port}"),
            ("192.168.1.10", address),
            ("--name bouquet-server", f"--name {run}"),
            ("docker logs bouquet-server", f"docker logs {run}"),
            ("--name bouquet ", f"--name {run}-{name} "),
            ("docker exec bouquet ", f"docker exec {run}-{name} "),
        ):
            text = text.replace(old, new)
        done = subprocess.run(["bash", "-e", "-c", text], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    # Where containers reach this machine; an engine whose bridge was there before it does not say it of its network.
    ask = ["docker", "run", "--rm", "--entrypoint", "python3", base, "-c", GATEWAY]
    address = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    shell(images, ROOT)
    make = ROOT / "examples" / "photos" / "make_photos.py"
    subprocess.run([sys.executable, make, "plants"], cwd=tmp_path, check=True)
    names = sorted(folder.name for folder in (tmp_path / "plants").iterdir())
    try:
        shell(settings, tmp_path)
        said = shell(server, tmp_path)
        while "Listening" not in said:  # as the page says; pytest's own time limit ends it
            time.sleep(0.2)
            said = shell("docker logs bouquet-server", tmp_path)
        for name in names:
            own = tmp_path / "devices" / name
            own.mkdir(parents=True)
            shell(f"cp -r {tmp_path}/keys/devices/{name} device-keys; cp -r {tmp_path}/plants/{name} photos", own)
            assert "Ready to join." in shell(device, own, name)
        subprocess.run(["docker", "wait", run], check=True, capture_output=True)
        assert "Was it worth it?" in shell("docker logs bouquet-server", tmp_path)
        summary = json.loads((tmp_path / "runs" / "plants" / "summary.json").read_text())
        assert sorted(summary["accuracy_by_client"]) == names
        assert (tmp_path / "runs" / "plants" / "report.html").exists()
        for name in names:
            assert ".png: " in shell(answer, tmp_path / "devices" / name, name)
    finally:
        subprocess.run(["docker", "rm", "--force", run, *(f"{run}-{name}" for name in names)], capture_output=True)
