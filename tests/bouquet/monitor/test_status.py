"""``bouquet status``, the live page and the metrics: what an owner sees of a run."""

import contextlib
import http.server
import io
import json
import re
import socket
import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi.testclient import TestClient
from rich.console import Console
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.system.locks import locked
from bouquet.common.system.ports import free_port
from bouquet.keys.store import add_device, init_keys
from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.status import collect, fetch
from bouquet.monitor.status_table import columns, print_status
from bouquet.monitor.web import COOKIE, Access, Page, is_loopback, kept_token, make_app, serving
from bouquet.server.fleet.names import Names
from bouquet.server.service.certificates import Certificates
from tests.helpers.made_runs import make_run
from tests.helpers.waiting_for import eventually

TOKEN = "a-token-that-nobody-guesses"
STARTED = 1_700_000_000.0


def line(number, **changes):
    numbers = {"samples": 48.0, "loss": 0.5, "accuracy": 0.1 * number, "accuracy_trained": 0.9}
    return {
        "round": number,
        "replies": 1,
        "failures": 1,
        "failed": {"window-pi": "The image up/broken.png cannot be read <b>."},
        "clusters": 1,
        "purity": None,
        "ari": None,
        "loss": 0.5,
        "accuracy_micro": 0.1 * number,
        "accuracy_macro": 0.1 * number,
        "accuracy_trained_macro": 0.9,
        "bytes_up": 100,
        "bytes_down": 200,
        "bytes_by_client": {"garden-pi": [100, 150], "window-pi": [0, 50]},
        "seconds": 10.0,
        "assignment": {"garden-pi": 0},
        "by_client": {"garden-pi": {**numbers, "left_out": 2.0}},
        "absent": ["door-pi"],
        **changes,
    }


@pytest.fixture
def run(tmp_path):
    """A run in its third round of four: one device trains, one fails, one was never there; its lock is free."""
    keys = tmp_path / "keys"
    init_keys(keys, ["127.0.0.1"])
    for name in ("garden-pi", "window-pi", "door-pi"):
        add_device(keys, name)
    folder = tmp_path / "runs" / "plants"
    service = folder / "service"
    service.mkdir(parents=True)
    settings = load_settings(None, ["run.name=plants", "run.rounds=4", "server.min_clients=3"])
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json")))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line(number)) + "\n" for number in (1, 2)))
    now = time.time()
    noted = [
        {"node": node, "name": name, "connected": connected, "since": now - 400, "seen": now - seen}
        for node, name, connected, seen in ((1, "garden-pi", True, 5), (2, "window-pi", False, 300))
    ]
    (service / "connections.json").write_text(json.dumps(noted))
    known = {name: {"name": name, "release": "0.1.0"} for name in ("garden-pi", "window-pi")}
    (folder / "devices.json").write_text(json.dumps(known))
    status = {
        "run": "plants",
        "bouquet": "0.1.0",
        "state": "training",
        "started": STARTED,
        "round": 3,
        "rounds": 4,
        "round_started": now - 4,
        "updated": now,
        "needed": 3,
        "connected": [],
        "missing": [],
        "registered": str(keys / "registered"),
        "service": str(service),
    }

    def change(**changes):
        (folder / "status.json").write_text(json.dumps({**status, **changes}))

    change()
    return SimpleNamespace(folder=folder, keys=keys, change=change)


def test_what_a_device_serves_has_a_column_where_it_is_not_the_methods_own(run):
    status = collect(run.folder)
    assert "serves" not in columns(status, time.time())[0]
    mixed = {"kept": "mixture", "mixed": ["received", "trained"], "alone_left_out": 1}
    (run.folder / "rounds.jsonl").write_text(json.dumps(line(1, by_client={"garden-pi": mixed})) + "\n")
    status = collect(run.folder)
    found = [row[-1] for row in columns(status, time.time())]
    assert found == ["serves", "", "received + trained, without alone", ""]
    for device in status["devices"]:
        del device["serves"]  # an older server's page
    assert "serves" not in columns(status, time.time())[0]


def test_who_came_from_which_cluster_and_when(run):
    lines = [line(1), line(2, moved={"garden-pi": 3}), line(3)]
    (run.folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    status = collect(run.folder)
    assert [device["moved"] for device in status["devices"]] == [None, {"round": 2, "from": 3}, None]
    assert columns(status, time.time())[2][4] == "0 (since round 2, before 3)"


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


def test_a_device_that_the_service_forgot_was_seen_in_its_last_round():
    device = {"name": "shed-pi", "connected": False, "expected": True, "last_seen": None, "failures": 0}
    device |= {"cluster": None, "accuracy": None, "samples": None, "left_out": 0, "release": None}
    said = [
        columns({"run": {"state": "training"}, "devices": [{**device, "round": round_}]}, STARTED)[1][2]
        for round_ in (3, None)
    ]
    assert said == ["in round 3", "never"]


def test_one_that_does_not_work_now_has_its_owners_reason_and_the_time_everywhere(run):
    until = time.mktime((2026, 7, 1, 22, 0, 0, 0, 0, -1))
    run.change(not_now={"garden-pi": {"reason": "outside its <hours>", "until": until}})
    with locked(run.folder, "the run folder", ""):
        found = collect(run.folder)
        page = TestClient(make_app(lambda: run.folder, Access(None, ("testserver",)))).get("/").text
    output = io.StringIO()
    print_status(Console(file=output), found, STARTED)
    assert "garden-pi  not now " in output.getvalue()
    line = "garden-pi, not now, as its owner has it: outside its <hours> (asked again at 22:00)"
    assert line in output.getvalue()
    assert "as its owner has it: outside its &lt;hours&gt; (asked again at 22:00)" in page
    labels = 'device="garden-pi",reason="outside its <hours>",run="plants"'
    (metric,) = [text for text in metrics_text(found).decode().splitlines() if labels in text]
    assert metric.startswith("bouquet_device_not_now_until_seconds{")
    assert float(metric.rpartition(" ")[2]) == until
    run.change(not_now={"garden-pi": {"reason": "x", "until": until}}, state="failed")
    assert all(device["not_now"] is None for device in collect(run.folder)["devices"])


def test_a_device_whose_key_its_owner_removed_is_said_so(run):
    (run.keys / "registered" / "window-pi.crt").unlink()
    with locked(run.folder, "the run folder", ""):
        found = collect(run.folder)
    shown = {row[0]: row[1] for row in columns(found, STARTED)}
    assert (shown["window-pi"], shown["door-pi"]) == ("key removed", "MISSING")
    names = Names(run.folder, registered=run.keys / "registered")
    assert names.removed() == {"window-pi"}


def test_to_look_writes_nothing(run):
    """Also where a device is there that the server has not named yet: who names it is the server."""
    (run.folder / "devices.json").unlink()
    before = {file: file.stat().st_mtime_ns for file in run.folder.rglob("*")}
    found = collect(run.folder)
    assert [device["last_seen"] is not None for device in found["devices"]] == [False, True, True]
    assert {file: file.stat().st_mtime_ns for file in run.folder.rglob("*")} == before


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
    with locked(run.folder, "the run folder", ""):
        found = collect(run.folder)
        page = Page(lambda: run.folder).html()
    release = "Another release of Bouquet than the server's is installed on window-pi (0.0.9)."
    assert found["run"]["warnings"] == ["The loss rises.", "x is last.", release]
    output = io.StringIO()
    print_status(Console(file=output), found)
    assert f"warning  {release}" in output.getvalue()
    assert "warning  The loss rises." in output.getvalue()
    for text in ("Round 1: It rose.", "Round 2: x is last.", "The loss rises.", release.replace("'", "&#39;")):
        assert page.count(text) == 1, text
    assert page.count("x is last.") == 1
    assert 'bouquet_warnings{run="plants"} 3.0' in metrics_text(found).decode()


def test_a_server_that_waits_for_the_next_run_has_its_devices_still(run):
    (run.folder / "summary.json").write_text(json.dumps({"accuracy_macro": 0.5, "clusters": 1}))
    run.change(state="finished")
    assert not any(device["connected"] for device in collect(run.folder)["devices"])  # it has ended with its run
    with locked(run.folder, "the run folder", ""):
        found = {device["name"]: device["connected"] for device in collect(run.folder)["devices"]}
    assert found == {"door-pi": False, "garden-pi": True, "window-pi": False}


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


def test_alerts_and_board_ask_for_metrics_that_there_are(run):
    (run.folder / "summary.json").write_text(json.dumps({"accuracy_by_client": {}, "accuracy_macro": 0.5}))
    text = metrics_text(collect(run.folder)).decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.M)) | set(re.findall(r"^(bouquet_\w+)\{", text, re.M))
    deploy = Path(__file__).parents[3] / "deploy"
    for file in ("prometheus-alerts.yml", "grafana-bouquet.json"):
        asked = set(re.findall(r"bouquet_[a-z_]+", (deploy / file).read_text()))
        assert asked
        assert asked <= known, file
    json.loads((deploy / "grafana-bouquet.json").read_text())


def test_the_page_needs_no_token_here_and_is_nobody_elses(run):
    client = TestClient(make_app(lambda: run.folder, Access(None)), base_url="http://127.0.0.1:8090")
    page = client.get("/")
    assert page.status_code == 200
    assert "The image up/broken.png cannot be read &lt;b&gt;." in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert client.get("/status.json").json()["run"]["name"] == "plants"
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")
    assert client.get("/status.json", headers={"Host": "evil.example"}).status_code == 403
    assert client.post("/status.json").status_code == 405
    assert client.get("/../settings.json").status_code == 404
    assert client.get("/docs").status_code == 404


def test_a_device_has_a_page_with_its_rounds_and_what_went_wrong(run):
    client = TestClient(make_app(lambda: run.folder, Access(None)), base_url="http://127.0.0.1:8090")
    page = client.get("/device", params={"name": "window-pi"}).text
    assert page.count("failed: The image up/broken.png cannot be read &lt;b&gt;.") == 2
    assert "garden-pi" not in page
    assert client.get("/device", params={"name": "<script>"}).status_code == 503
    assert client.get("/device").status_code == 422
    front = client.get("/").text
    (link,) = re.findall(r'href="(device\?[^"]*window-pi)"', front)
    assert client.get(f"/{link.replace('&amp;', '&')}").text.count("window-pi") > 1


def test_runs_beside_the_one_in_hand_are_listed_and_two_are_held_against_each_other(run):
    client = TestClient(make_app(lambda: run.folder, Access(None)), base_url="http://127.0.0.1:8090")
    second = make_run(run.folder.parent / "winter & <b>", accuracy=0.75)
    (run.folder.parent / "broken").mkdir()
    (run.folder.parent / "broken" / "settings.json").write_text("{")
    make_run(run.folder.parents[1] / "elsewhere")
    listed = client.get("/runs").text
    for text in (">plants</a>", "winter &amp; &lt;b&gt;</a>", "0.750", "finished"):
        assert text in listed, text
    assert "elsewhere" not in listed
    assert "broken" not in listed
    held = client.get("/runs", params={"a": "plants", "b": second.name}).text
    rows = re.findall(r"<tr>(.*?)</tr>", held, re.S)
    cells = [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row, re.S)] for row in rows]
    assert ["verdict", "Accuracy 0.200", "Accuracy 0.750"] in cells
    assert ["run.rounds", "4", "3"] in cells
    assert not any(row[0] == "run.seed" for row in cells if row)  # in which they do not differ
    assert "Accuracy 0.750" in client.get("/", params={"run": second.name}).text
    for name in ("../elsewhere", "elsewhere", "", "..", "winter"):
        assert client.get("/", params={"run": name}).status_code == 503
        assert client.get("/device", params={"run": name, "name": "client-0"}).status_code == 503


def test_from_elsewhere_the_page_wants_its_token(run):
    client = TestClient(make_app(lambda: run.folder, Access(TOKEN)), base_url="https://server.local:8090")
    for path in ("/", "/device", "/runs", "/status.json", "/metrics", "/nothing"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    answer = client.get(f"/?token={TOKEN}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    kept = answer.headers["set-cookie"]
    assert all(word in kept for word in (COOKIE, "HttpOnly", "SameSite=strict", "Secure"))
    assert client.get("/").status_code == 200  # with the cookie


def test_a_run_that_has_not_begun_is_said_so(tmp_path):
    client = TestClient(make_app(lambda: tmp_path, Access(None)), base_url="http://localhost")
    answer = client.get("/")
    assert answer.status_code == 503
    assert "is not a run folder" in answer.text


def test_who_does_not_take_his_answer_holds_up_no_end(run, monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(Page, "html", lambda page, run: asked.set() or "x" * 32 * 1024**2)
    port = free_port()
    with contextlib.closing(socket.socket()) as slow:
        with serving(lambda: run.folder, f"127.0.0.1:{port}", run.keys, None):
            slow.connect(("127.0.0.1", port))
            slow.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert asked.wait(60)
        eventually(lambda: all(thread.name != "live page" for thread in threading.enumerate()), "the page has ended")


def test_a_run_that_is_over_has_its_page_by_the_report(run, monkeypatch):
    address = f"127.0.0.1:{free_port()}"
    seen = []

    def look():
        seen.append(httpx.get(f"http://{address}/device", params={"name": "garden-pi"}).text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        event = SimpleNamespace(wait=look)
        patch.setattr("bouquet.federation.run.threading", SimpleNamespace(Event=lambda: event))
        CliRunner().invoke(app, ["report", str(run.folder), "--web", address])
    assert "garden-pi" in seen[0]
    assert (run.folder / "report.html").exists()


def test_the_page_behind_tls_and_the_status_from_elsewhere(run, monkeypatch):
    monkeypatch.delenv("BOUQUET_WEB_TOKEN", raising=False)
    certificates = Certificates(run.keys / "ca.crt", run.keys / "server.crt", run.keys / "server.key")
    port = free_port()
    authority = run.keys / "ca.crt"
    with (
        locked(run.folder, "the run folder", ""),
        serving(lambda: run.folder, f"0.0.0.0:{port}", run.keys, certificates) as said,
    ):
        assert said == f"Live page on https://0.0.0.0:{port}, with the token in {run.keys / 'web.token'}."
        token = (run.keys / "web.token").read_text().strip()
        assert stat.S_IMODE((run.keys / "web.token").stat().st_mode) == 0o600
        found = fetch(f"https://127.0.0.1:{port}", token, authority)
        assert found["run"]["name"] == "plants"
        with pytest.raises(BouquetError, match=r"status 401\. Give the token"):
            fetch(f"https://127.0.0.1:{port}", None, authority)
        with pytest.raises(BouquetError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(f"https://127.0.0.1:{port}", token, None)
        command = ["status", f"https://127.0.0.1:{port}/", "--ca", str(authority), "--token", token]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 0
        assert "plants: training, round 3 of 4, about" in done.output
        with pytest.raises(BouquetError, match="is in use, needed for the live page"):
            serving(lambda: run.folder, f"0.0.0.0:{port}", run.keys, certificates).__enter__()
    with pytest.raises(BouquetError, match="gives no status"):
        fetch(f"https://127.0.0.1:{port}", token, authority)
    assert kept_token(run.keys) == token  # the same after a restart


def test_the_token_goes_to_nobody_else(run, monkeypatch):
    """Neither along with a redirect of the server that was asked, nor from our page to another host."""
    heard = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append((self.path, self.headers.get("Authorization")))
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/stolen")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BouquetError, match="status 302"):
            fetch(f"http://127.0.0.1:{server.server_port}", TOKEN, None)
        server.shutdown()
    assert heard == [("/status.json", f"Bearer {TOKEN}")]
    client = TestClient(make_app(lambda: run.folder, Access(TOKEN)))
    for path in ("//evil.example/", "///evil.example", "/\\evil.example"):
        answer = client.get(f"http://testserver{path}?token={TOKEN}", follow_redirects=False)
        assert answer.status_code == 303
        assert re.match(r"/[^/\\]", answer.headers["location"]), answer.headers["location"]


def test_a_service_reads_the_token_where_it_cannot_write(tmp_path, monkeypatch):
    token = kept_token(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert kept_token(tmp_path) == token
    (tmp_path / "web.token").unlink()
    with pytest.raises(BouquetError, match=r"for want of BOUQUET_WEB_TOKEN, .* cannot be written to by this user"):
        kept_token(tmp_path)


def test_a_short_token_is_refused_and_loopback_is_known(run, monkeypatch):
    monkeypatch.setenv("BOUQUET_WEB_TOKEN", "short")
    with pytest.raises(BouquetError, match="at least 16 characters"):
        serving(lambda: run.folder, f"127.0.0.1:{free_port()}", run.keys, None).__enter__()
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "server")] == [1, 1, 1, 0, 0]
