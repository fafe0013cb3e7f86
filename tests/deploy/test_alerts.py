"""The alert rules as Prometheus judges them: what the server would export from minute to minute, given to promtool.

``promtool test rules`` reckons with these minutes and waits for none. A server that is really scraped is in
``tests/federation/test_prometheus.py``.
"""

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.status import collect

PROMTOOL = shutil.which("promtool")
RULES = Path(__file__).parents[2] / "deploy" / "prometheus-alerts.yml"
WHERE = {"job": "bouquet", "instance": "server.local:8090"}
SAID = {
    "BouquetServerGone": "The Bouquet server on server.local:8090 does not answer.",
    "BouquetRunFailed": "The run plants has failed or was stopped; bouquet status says why.",
    "BouquetDeviceMissing": "{device} is registered for plants and not connected.",
    "BouquetDeviceFails": "{device} failed in three rounds or more; its log and bouquet status say why.",
    "BouquetRoundHangs": "No round of plants has ended for two hours.",
    "BouquetWarning": "Something is wrong with the run plants; bouquet status says what.",
}
CRITICAL = ("BouquetServerGone", "BouquetRunFailed")

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")


class Days:
    """A server from minute to minute: each `last` is how it is, for so many minutes, and then what has happened."""

    def __init__(self, folder):
        status = collect(folder)
        status["run"] |= {"name": "plants", "state": "training", "completed": 0, "warnings": []}
        for device in status["devices"]:
            device |= {"expected": True, "connected": True}
        self.now, self.minutes, self.series, self.asked = status, 0, {}, []

    @property
    def run(self):
        return self.now["run"]

    def device(self, name):
        (found,) = [device for device in self.now["devices"] if device["name"] == name]
        return found

    def last(self, minutes, gone=False, round_every=None):
        """So many minutes pass; ``gone``, nothing answers; a round ends after each ``round_every`` of them."""
        for minute in range(1, minutes + 1):
            if round_every and minute % round_every == 0:
                self.run["completed"] += 1
            found = {("up", *sorted(WHERE.items())): float(not gone)}
            text = "" if gone else metrics_text(copy.deepcopy(self.now)).decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    found[(sample.name, *sorted({**sample.labels, **WHERE}.items()))] = sample.value
            for series in {*found, *self.series}:
                # Prometheus marks a series as stale when a scrape no longer has it.
                before = self.series.setdefault(series, ["_"] * self.minutes)
                before.append(f"{found[series]:g}" if series in found else "stale")
            self.minutes += 1

    def alerts(self, *names, **labels):
        """Nothing but these alerts of the shipped rules fire now, each once, with what they say."""
        now = f"{self.minutes - 1}m"
        for alert, said in SAID.items():
            own = dict(WHERE) if alert != "BouquetRunFailed" else {"instance": WHERE["instance"]}
            own |= {} if alert == "BouquetServerGone" else {"run": "plants"}
            own |= labels if "{device}" in said else {}
            expected = {
                "exp_labels": {**own, "severity": "critical" if alert in CRITICAL else "warning"},
                "exp_annotations": {"summary": said.format(**labels)} if alert in names else {},
            }
            self.asked.append(
                {"eval_time": now, "alertname": alert, "exp_alerts": [expected] if alert in names else []}
            )

    def judged(self, folder):
        """What promtool says of it: empty where all is as it was asked."""
        listed = [
            {"series": f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels)}}}", "values": " ".join(values)}
            for (name, *labels), values in self.series.items()
        ]
        test = {"interval": "1m", "input_series": listed, "alert_rule_test": self.asked}
        content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
        (folder / "test.yml").write_text(json.dumps(content))  # JSON is YAML
        done = subprocess.run([PROMTOOL, "test", "rules", folder / "test.yml"], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture
def days(write_run):
    return Days(write_run("plants", clients=3, finished=False))


def test_the_rules_are_well_formed():
    done = subprocess.run([PROMTOOL, "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(SAID)} rules found" in done.stdout


def test_where_all_is_well_nothing_fires(days, tmp_path):
    days.last(6 * 60, round_every=7)
    days.alerts()
    days.run["state"] = "finished"
    days.last(3 * 60)
    days.alerts()
    assert days.judged(tmp_path) == ""


def test_a_server_that_is_gone(days, tmp_path):
    days.last(60, round_every=7)
    days.last(5, gone=True)
    days.alerts()
    days.last(1, gone=True)
    days.alerts("BouquetServerGone")
    days.last(2)
    days.alerts()
    assert days.judged(tmp_path) == ""


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_run_that_failed_or_was_stopped(days, tmp_path, state):
    days.last(60, round_every=7)
    days.run["state"] = state
    days.last(1)
    days.alerts("BouquetRunFailed")
    assert days.judged(tmp_path) == ""


def test_a_device_that_is_missing(days, tmp_path):
    days.last(60, round_every=7)
    days.device("client-1")["connected"] = False
    days.last(15, round_every=7)
    days.alerts()
    days.last(1)
    days.alerts("BouquetDeviceMissing", device="client-1")
    # Its owner removes its key: nobody waits for it any more.
    days.device("client-1")["expected"] = False
    days.last(1)
    days.alerts()
    # Nobody is missed where nothing runs.
    days.device("client-2")["connected"] = False
    days.run["state"] = "finished"
    days.last(30)
    days.alerts()
    assert days.judged(tmp_path) == ""


def test_one_whose_owner_lets_it_not_work_now_is_neither_missing_nor_hanging(days, tmp_path):
    days.last(60, round_every=7)
    days.run["state"] = "waiting"
    days.device("client-1")["not_now"] = {"reason": "outside its hours; again after 22:00", "until": 1.8e9}
    days.last(12 * 60)
    days.alerts()
    assert days.judged(tmp_path) == ""


def test_a_device_that_fails(days, tmp_path):
    days.last(60, round_every=7)
    for _ in range(3):
        days.alerts()
        days.device("client-1")["failures"] += 1
        days.last(7, round_every=7)
    days.alerts("BouquetDeviceFails", device="client-1")
    # Its owner removes its key, and registers it again; six hours later all is forgotten.
    days.device("client-1")["expected"] = False
    days.last(1)
    days.alerts()
    days.device("client-1")["expected"] = True
    days.last(1)
    days.alerts("BouquetDeviceFails", device="client-1")
    days.last(6 * 60, round_every=7)
    days.alerts()
    assert days.judged(tmp_path) == ""


def test_a_round_that_hangs(days, tmp_path):
    days.last(60, round_every=7)
    days.last(2 * 60, round_every=119)  # a round of two hours less a minute
    days.alerts()
    days.last(2 * 60 - 5)
    days.alerts()
    days.last(15)
    days.alerts("BouquetRoundHangs")
    days.last(1, round_every=1)
    days.alerts()
    assert days.judged(tmp_path) == ""


def test_a_run_with_which_something_is_wrong(days, tmp_path):
    days.last(60, round_every=7)
    days.run["warnings"] = ["The training loss rises."]
    days.last(30, round_every=7)
    days.alerts()
    days.last(1)
    days.alerts("BouquetWarning")
    assert days.judged(tmp_path) == ""
