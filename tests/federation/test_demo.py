"""The first thing a newcomer types."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]


def test_the_demo_trains_finds_the_groups_and_leaves_nothing_running(tmp_path):
    command = [sys.executable, "-m", "bouquet", "demo", "--rounds", "3", "--out", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert (summary["clients"], summary["clusters"], summary["purity"]) == (6, 3, 1.0)
    assert "Clusters found" in done.stdout
    assert "A single global model" in done.stdout
    assert (tmp_path / "demo" / "report.html").exists()
    assert running_below(tmp_path) == []


def running_below(folder):
    """Command lines of processes that still name the folder."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line and "bouquet.client.agent" in line]
