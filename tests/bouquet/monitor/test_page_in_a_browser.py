"""The live page in a real browser: it renews itself, and shows the devices that are looked for."""

import json
import re
import shutil
import subprocess
import time

import pytest

from bouquet.common.settings import parse_settings
from bouquet.common.system.ports import free_port
from bouquet.monitor.web import Page, serving
from tests.helpers.made_runs import make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


def opened(address, folder):
    """The page as it is once the browser has run its scripts."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
    command += [f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=30000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def say(folder, **changes):
    """What the server says of the run."""
    now = time.time()
    content = {"run": "plants", "bouquet": "0.1.0", "state": "training", "started": now - 900, "updated": now}
    (folder / "status.json").write_text(json.dumps({**content, "connected": [], **changes}))


def test_in_a_real_browser_the_page_renews_itself_and_shows_whom_one_looks_for(tmp_path, monkeypatch):
    """A round ends after the browser has loaded the page; in the end it shows that, and one device still."""
    monkeypatch.setattr("bouquet.monitor.web.RENEW_SECONDS", 1)
    monkeypatch.delenv("BOUQUET_WEB_TOKEN", raising=False)
    settings = parse_settings({"run": {"name": "plants", "rounds": 4}}, {})
    folder = make_run(tmp_path / "plants", settings, clients=30, rounds=2, finished=False)
    say(folder, round=3, rounds=4)
    served = []

    def page_html(page, run=None, newest=None):
        served.append(Page.html(page, run, newest))
        if len(served) == 1:
            with (folder / "rounds.jsonl").open("r+") as file:
                last = json.loads(file.readlines()[-1])
                file.write(json.dumps({**last, "round": 3}) + "\n")
            say(folder, round=4, rounds=4)
        return served[-1]

    monkeypatch.setattr("bouquet.monitor.web.Page", type("Watched", (Page,), {"html": page_html}))
    address = f"127.0.0.1:{free_port()}"
    with serving(lambda: folder, address, tmp_path, None):
        shown = opened(f"http://{address}/#find=CLIENT-7", tmp_path)
    assert "round 3 of 4" in served[0]
    assert "round 4 of 4" in shown
    assert "round 3 of 4" not in shown
    assert 'class="gone"' not in shown
    assert re.findall(r'<a class="card(?![^>]* hidden)[^>]*name=([^"]*)"', shown) == ["client-7"]
    assert ">1 of 30</output>" in shown
