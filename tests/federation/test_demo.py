"""The first thing a newcomer types."""

import json
import signal
import subprocess
import sys

import httpx
import pytest

from bouquet.common.system.ports import free_port

pytestmark = pytest.mark.federation


def test_the_demo_leads_with_the_gain_and_leaves_nothing_running(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-u", "-m", "bouquet", "demo", "--out", "demo", "--web", address]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        said = []
        for line in demo.stdout:
            said.append(line)
            if "until Ctrl-C" in line:
                break
        try:
            page = httpx.get(f"http://{address}/", timeout=600).text
        finally:
            demo.send_signal(signal.SIGINT)
            said.append(demo.stdout.read())
        assert demo.wait() == 130, said
    text = "".join(said)
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert (summary["clients"], summary["clusters"], summary["purity"]) == (6, 3, 1.0)
    places = [
        text.index(part) for part in ("In use against alone", "are better off", "clusters 3, just", "One model for all")
    ]
    assert sorted(places) == places, text
    assert text.count(" points better than alone. Mean accuracy") == 1  # what the demo is to show
    for client, found in summary["beside_by_client"].items():
        row = next(line for line in text.splitlines() if client in line and "points" in line)
        assert f"{found['own']:.3f} │" in row
        assert f"{found['alone']:.3f} │" in row
    assert "finished" in page
    assert (tmp_path / "demo" / "report.html").exists()
    assert running_below(tmp_path) == []


def running_below(folder):
    """Command lines of processes that still name the folder."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line and "bouquet.client.agent" in line]
