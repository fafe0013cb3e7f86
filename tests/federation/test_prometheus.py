"""A running server scraped by Debian's Prometheus, as deploy/prometheus-alerts.yml says at its top: TLS and the token.

Each fault that there is an alert on is made for real, and the alert read back through Prometheus' HTTP API. How long a
fault may last before its alert is shortened here; the rules as they are shipped are in ``tests/deploy/test_alerts.py``.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from bouquet.common import protocol
from bouquet.common.system.ports import free_port
from bouquet.common.task.score import ACCURACY
from bouquet.keys.store import add_device
from tests.helpers.descendants import descendants

PROMETHEUS = shutil.which("prometheus")
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = (DEPLOY / "prometheus-alerts.yml").read_text()
ALERTS = re.findall(r"alert: (\w+)", RULES)

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus, of Debian's package of that name"),
]


class Prometheus:
    """A Prometheus that scrapes the page at ``address`` by what the rules' file says, every two seconds."""

    def __init__(self, folder, address, keys):
        (scrape,) = re.findall(r"# (scrape_configs:\n(?:#.*\n)+)", RULES)
        scrape = re.sub("^# ?", "", scrape, flags=re.MULTILINE)
        for stands, here in (
            ("/etc/prometheus/bouquet.token", keys / "web.token"),
            ("/etc/prometheus/bouquet-ca.crt", keys / "ca.crt"),
            ("server.local:8090", address),
        ):
            assert stands in scrape
            scrape = scrape.replace(stands, str(here))
        often = "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}\n"
        (folder / "prometheus.yml").write_text(f"{often}rule_files: [quick.yml]\n{scrape}")
        quick = re.sub(r"for: \d+[mh]", "for: 1s", RULES).replace("[10m]", "[6s]")
        (folder / "quick.yml").write_text(quick)
        self.api = f"127.0.0.1:{free_port()}"
        command = [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={self.api}"]
        command += [f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=warn"]
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def asks(self, what, **query):
        address = f"http://{self.api}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=300) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None  # it is still starting

    def value(self, expression):
        """The values of an expression now."""
        found = self.asks("query", query=expression) or {"result": ()}
        return [float(one["value"][1]) for one in found["result"]]

    def fires(self):
        """The alerts that fire now, with the device where there is one."""
        found = self.asks("alerts") or {"alerts": ()}
        return {
            (alert["labels"]["alertname"], alert["labels"].get("device", ""))
            for alert in found["alerts"]
            if alert["state"] == "firing"
        }


@pytest.fixture
def prometheus(tmp_path):
    started = []

    def start(address):
        started.append(Prometheus(tmp_path, address, tmp_path / "keys"))
        return started[-1]

    yield start
    for one in started:
        one.process.terminate()
        one.process.wait()


def test_each_alert_fires_when_its_fault_is_made(wired, prometheus, monkeypatch):
    monkeypatch.delenv("BOUQUET_WEB_TOKEN", raising=False)
    web = free_port()
    options = ("--web", f"0.0.0.0:{web}", "--keep-waiting")
    run = wired("mallory", rounds=100_000, grace=1200, options=options)
    commands, seen = run.commands, prometheus(f"127.0.0.1:{web}")
    hang, ends, ill = threading.Event(), threading.Event(), threading.Event()

    def trains(instruction, reply):
        if instruction.metadata.message_type == "train" and hang.is_set():
            ends.wait()
            return 2, "the end"
        return reply

    def fails(instruction, reply):
        wrong = instruction.metadata.message_type == "train" and ill.is_set() and not hang.is_set()
        return (2, "training diverged") if wrong else trains(instruction, reply)

    def firing(*alerts):
        commands.wait_for(lambda: seen.fires() >= set(alerts))

    # Well: no alert is on a device, and the board has something to show in each panel.
    compared = {ACCURACY.own: 0.6, ACCURACY.alone: 0.4, ACCURACY.received: 0.5}
    figures = {protocol.ACCURACY: 0.5, protocol.LOSS: 0.7, **compared}
    run.answer({"garden-pi": trains, "porch-pi": trains, "mallory": fails}, figures)
    commands.wait_for(lambda: min(seen.value("bouquet_rounds_completed"), default=0) >= 2)
    board = json.loads((DEPLOY / "grafana-bouquet.json").read_text())
    shown = [target["expr"].replace("$run", "wired") for panel in board["panels"] for target in panel["targets"]]
    commands.wait_for(lambda: all(seen.value(expression) for expression in shown))
    commands.wait_for(lambda: not {device for _, device in seen.fires() if device})
    assert seen.value('bouquet_device_compared_score{device="garden-pi",model="alone"}') == [0.4]

    # A device that is registered and not there; one that fails round after round, of which the run is warned.
    add_device(commands.folder / "keys", "door-pi")
    ill.set()
    firing(("BouquetDeviceMissing", "door-pi"), ("BouquetDeviceFails", "mallory"), ("BouquetWarning", ""))
    assert not {("BouquetDeviceMissing", "garden-pi"), ("BouquetDeviceFails", "garden-pi")} & seen.fires()

    # No device answers; then all that answer fail, which ends the run; the server stays. Then that is gone, too.
    hang.set()
    firing(("BouquetRoundHangs", ""))
    ends.set()
    firing(("BouquetRunFailed", ""))
    assert seen.value('bouquet_run_state{state="failed"}') == [1.0]
    for pid in [run.server.pid, *descendants(run.server.pid)]:
        os.kill(pid, signal.SIGKILL)
    firing(("BouquetServerGone", ""))
    assert len(ALERTS) == 6  # another needs its fault here
