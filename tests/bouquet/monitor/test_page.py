"""The page of a run: what it shows, and to whom."""

import http.server
import json
import re
import ssl
import stat
import threading
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.common.errors import BouquetError
from bouquet.common.system.locks import locked
from bouquet.common.system.ports import free_port
from bouquet.keys.store import renew_server
from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.status import collect, fetch
from bouquet.monitor.web import COOKIE, Access, is_loopback, kept_token, make_app, serving
from bouquet.server.service.certificates import Certificates
from tests.helpers.made_runs import make_run

TOKEN = "a-token-that-nobody-guesses"


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


def test_runs_beside_the_one_in_hand_are_listed_and_two_are_held_against_each_other(run):
    client = TestClient(make_app(lambda: run.folder, Access(None)), base_url="http://127.0.0.1:8090")
    second = make_run(run.folder.parent / "winter & <b>", accuracy=0.75)
    (run.folder.parent / "broken").mkdir()
    (run.folder.parent / "broken" / "settings.json").write_text("{")
    make_run(run.folder.parents[1] / "elsewhere")
    make_run(run.folder.parent / "going", finished=False, accuracy=0.6)
    listed = client.get("/runs").text
    for text in (">plants</a>", "winter &amp; &lt;b&gt;</a>", "0.750", "finished", ">0.400<"):
        assert text in listed, text
    assert "elsewhere" not in listed
    assert "broken" not in listed
    held = client.get("/runs", params={"a": "plants", "b": second.name}).text
    rows = re.findall(r"<tr>(.*?)</tr>", held, re.S)
    cells = [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row, re.S)] for row in rows]
    assert ["verdict", "Accuracy 0.200", "Accuracy 0.750"] in cells
    assert ["run.rounds", "4", "3"] in cells
    assert not any(row[0] == "run.seed" for row in cells if row)  # in which they do not differ
    assert (
        held.index(">run.rounds<")
        < held.index(">verdict<")
        < held.index("<figcaption>Accuracy")
        < held.index("All runs")
    )
    assert "No setting differs" in client.get("/runs", params={"a": "going", "b": "winter & <b>"}).text
    for by, first in (("score", second.name), ("-score", "plants"), ("took", "plants")):
        names = re.findall(r'<tr class="row"><td>.*?>(.*?)</a>', client.get("/runs", params={"sort": by}).text)
        assert (unescape(names[0]), len(names)) == (first, 3), by
    assert client.get("/runs", params={"sort": "<b>"}).text.count('class="row"') == 3
    assert "Accuracy 0.750" in client.get("/", params={"run": second.name}).text
    assert "<figcaption>Accuracy" in client.get("/", params={"run": second.name, "last": 2}).text
    assert client.get("/", params={"last": 1}).status_code == 422
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
        before = ssl.get_server_certificate(("127.0.0.1", port))
        renew_server(run.keys)
        ssl.get_server_certificate(("127.0.0.1", port))  # looks for a new one
        assert ssl.get_server_certificate(("127.0.0.1", port)) != before
        fetch(f"https://127.0.0.1:{port}", token, authority)
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
    with pytest.raises(
        BouquetError, match=r"BOUQUET_WEB_TOKEN is not set, and the folder .* cannot be written to by this user"
    ):
        kept_token(tmp_path)


def test_a_short_token_is_refused_and_loopback_is_known(run, monkeypatch):
    monkeypatch.setenv("BOUQUET_WEB_TOKEN", "short")
    with pytest.raises(BouquetError, match="at least 16 characters"):
        serving(lambda: run.folder, f"127.0.0.1:{free_port()}", run.keys, None).__enter__()
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "server")] == [1, 1, 1, 0, 0]
