"""``bouquet status``, the live page and the metrics: what an owner sees of a run."""

import io
import json
import time

import pytest
from fastapi.testclient import TestClient
from rich.console import Console
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.common.errors import BouquetError
from bouquet.common.system.locks import locked
from bouquet.keys.store import add_device
from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.status import collect
from bouquet.monitor.status_table import print_status
from bouquet.monitor.web import Access, Page, make_app
from tests.helpers.status_runs import STARTED, line


def test_the_devices_by_name_and_the_run(run):
    with locked(run.folder, "the run folder", ""):
        found = collect(run.folder)
    assert [device["name"] for device in found["devices"]] == ["door-pi", "garden-pi", "window-pi"]
    door, garden, window = found["devices"]
    assert (door["expected"], door["connected"], door["last_seen"], door["absent"]) == (True, False, None, 2)
    assert (garden["connected"], garden["round"], garden["cluster"], garden["accuracy"]) == (True, 2, 0, 0.2)
    assert (garden["samples"], garden["left_out"], garden["failures"], garden["release"]) == (48, 2, 0, "0.1.0")
    assert (window["connected"], window["round"], window["failures"]) == (False, None, 2)
    assert window["last_failure"]["round"] == 2
    assert (found["run"]["state"], found["run"]["round"], found["run"]["rounds"]) == ("training", 3, 4)
    assert found["run"]["time_left"] == pytest.approx(16, abs=3)
    assert (found["run"]["bytes_up"], found["run"]["bytes_down"]) == (200, 400)


def test_one_that_does_not_work_now_has_its_owners_reason_and_the_time_everywhere(run):
    until = time.mktime((2026, 7, 1, 22, 0, 0, 0, 0, -1))
    run.change(not_now={"garden-pi": {"reason": "outside its <hours>", "until": until}})
    with locked(run.folder, "the run folder", ""):
        found = collect(run.folder)
        page = TestClient(make_app(lambda: run.folder, Access(None, ("testserver",)))).get("/").text
    output = io.StringIO()
    print_status(Console(file=output), found, STARTED)
    assert "garden-pi  not now " in output.getvalue()
    line = "garden-pi, not now: outside its <hours> (asked again at 22:00)"
    assert line in output.getvalue()
    assert "outside its &lt;hours&gt; (asked again at 22:00)" in page
    labels = 'device="garden-pi",reason="outside its <hours>",run="plants"'
    (metric,) = [text for text in metrics_text(found).decode().splitlines() if labels in text]
    assert metric.startswith("bouquet_device_not_now_until_seconds{")
    assert float(metric.rpartition(" ")[2]) == until
    run.change(not_now={"garden-pi": {"reason": "x", "until": until}}, state="failed")
    assert all(device["not_now"] is None for device in collect(run.folder)["devices"])


def test_a_server_that_was_killed_counts_as_stopped(run):
    done = CliRunner().invoke(app, ["status", str(run.folder)])
    assert done.exit_code == 1
    assert "plants: stopped, round 3 of 4." in done.output
    assert "MISSING" not in done.output  # nobody is missed where nothing runs


def test_while_it_waits_the_missing_are_named(run):
    run.change(state="waiting", round=0)
    with locked(run.folder, "the run folder", ""):
        output = io.StringIO()
        print_status(Console(file=output), collect(run.folder))
        done = CliRunner().invoke(app, ["status", str(run.folder), "--json"])
    said = output.getvalue().splitlines()
    assert said[0] == "plants: waiting. 1 of 3 devices are connected (garden-pi); missing: door-pi, window-pi."
    assert [row.split()[:2] for row in said[2:5]] == [
        ["door-pi", "MISSING"],
        ["garden-pi", "yes"],
        ["window-pi", "MISSING"],
    ]
    assert said[5] == "window-pi, round 2: The image up/broken.png cannot be read <b>."
    assert done.exit_code == 0
    assert json.loads(done.output)["run"]["waiting"].startswith("1 of 3 devices")


def test_what_is_wrong_now_is_said_everywhere(run):
    known = json.loads((run.folder / "devices.json").read_text())
    other = [key for key, device in known.items() if device["name"] == "window-pi"]
    (run.folder / "devices.json").write_text(json.dumps({**known, other[0]: {"name": "window-pi", "release": "0.0.9"}}))
    before = [line(1, warnings=["It rose."]), line(2, diagnosis={"rises": "The loss rises.", "last x": "x is last."})]
    before[1]["warnings"] = ["x is last."]
    (run.folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in before))
    add_device(run.keys, "shed-pi", days=29)
    with locked(run.folder, "the run folder", ""):
        found = collect(run.folder)
        page = Page(lambda: run.folder).html()
    *wrong, ends = found["run"]["warnings"]
    assert ends.startswith("The certificate of shed-pi expires on ")
    release = "Another release of Bouquet than the server's is installed on window-pi (0.0.9)."
    assert wrong == ["The loss rises.", "x is last.", release]
    output = io.StringIO()
    print_status(Console(file=output), found)
    assert f"warning  {release}" in output.getvalue()
    assert "warning  The loss rises." in output.getvalue()
    assert f"warning  {ends}" in output.getvalue()
    for text in ("Round 1: It rose.", "Round 2: x is last.", "The loss rises.", ends, release.replace("'", "&#39;")):
        assert page.count(text) == 1, text
    assert page.count("x is last.") == 1
    assert 'bouquet_warnings{run="plants"} 4.0' in metrics_text(found).decode()


def test_who_was_not_tested_at_the_end_and_why(run):
    reason = "The device reported: The disk is full."
    summary = {"not_evaluated": {"window-pi": reason}, "accuracy_macro": 0.5, "clusters": 1}
    (run.folder / "summary.json").write_text(json.dumps(summary))
    run.change(state="finished")
    found = collect(run.folder)
    assert [device["not_tested"] for device in found["devices"]] == [None, None, reason]
    output = io.StringIO()
    print_status(Console(file=output), found)
    assert f"window-pi, test at the end: {reason}" in output.getvalue().splitlines()


def test_the_newest_run_is_the_one_that_is_meant(run, monkeypatch):
    monkeypatch.chdir(run.folder.parents[1])
    assert "plants: stopped" in CliRunner().invoke(app, ["status"]).output
    monkeypatch.chdir(run.keys)
    with pytest.raises(BouquetError, match="There is no run in"):
        CliRunner().invoke(app, ["status"], catch_exceptions=False)


def test_metrics_for_prometheus(run):
    with locked(run.folder, "the run folder", ""):
        text = metrics_text(collect(run.folder)).decode()
    for sample in (
        'bouquet_run_state{run="plants",state="training"} 1.0',
        'bouquet_run_state{run="plants",state="failed"} 0.0',
        'bouquet_rounds_completed{run="plants"} 2.0',
        'bouquet_device_connected{device="garden-pi",run="plants"} 1.0',
        'bouquet_device_connected{device="door-pi",run="plants"} 0.0',
        'bouquet_device_failures_total{device="window-pi",run="plants"} 2.0',
        'bouquet_device_bytes_total{device="garden-pi",direction="down",run="plants"} 300.0',
        'bouquet_cluster_score{cluster="0",run="plants",score="accuracy"} 0.2',
    ):
        assert sample in text, sample
    assert 'bouquet_device_score{device="door-pi"' not in text  # what is not known is left out


def test_what_a_device_has_alone_and_was_sent_is_in_three_series_of_the_metrics(run):
    beside = {"own": 0.9, "alone": 0.8, "received": 0.7, "another": 0.6}
    numbers = {"garden-pi": {"accuracy": 0.7, "beside": beside}, "window-pi": {"beside": {"own": 0.5, "alone": 0.6}}}
    (run.folder / "rounds.jsonl").write_text(json.dumps(line(1, by_client=numbers)) + "\n")
    said = metrics_text(collect(run.folder)).decode().splitlines()
    assert [sample for sample in said if sample.startswith("bouquet_device_compared_score{")] == [
        f'bouquet_device_compared_score{{device="{device}",model="{model}",run="plants",score="accuracy"}} {value}'
        for device, model, value in (
            ("garden-pi", "in_use", 0.9),
            ("garden-pi", "alone", 0.8),
            ("garden-pi", "received", 0.7),
            ("window-pi", "in_use", 0.5),
            ("window-pi", "alone", 0.6),
        )
    ]
