"""The live page in a real browser: what it shows fits, on a desk and on a phone, and it renews itself."""

import html
import json
import re
import shutil
import subprocess
import time

import pytest

from bouquet.common.settings import parse_settings
from bouquet.common.system.locks import locked
from bouquet.common.system.ports import free_port
from bouquet.monitor.web import Page, serving
from tests.helpers.made_runs import make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
WIDTHS = (1300, 390)
LONG = "greenhouse-number-seventeen-behind-the-old-cider-press-" + "x" * 40
PATH = "/home/pi/" + "photos-of-a-summer" * 10
MAE = {"key": "mae", "label": "MAE", "unit": "µg/m³", "higher_is_better": False}
# What is wider than the page, or than what it is in: seen by the browser, which alone knows its fonts.
MEASURE = """
const found = [...document.querySelectorAll("iframe")].map((frame) => {
  const root = frame.contentDocument.documentElement, wide = [];
  if (root.scrollWidth > root.clientWidth) wide.push(`the page: ${root.scrollWidth}`);
  for (const one of root.querySelectorAll("body *")) {
    const right = one.getBoundingClientRect().right;
    if (right > root.clientWidth + 1 || (one.clientWidth && one.scrollWidth > one.clientWidth + 1))
      wide.push(`${one.tagName}.${one.className}: ${right}: ${one.textContent.trim().slice(0, 40)}`);
  }
  return [frame.title, wide];
});
document.querySelector("pre").textContent = JSON.stringify(found);
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


def opened(address, folder):
    """The page as it is once the browser has run its scripts."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
    command += [f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=30000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wide(folder, pages):
    """What does not fit, by page and width: each page in a frame as wide as a screen."""
    frames = [
        f'<iframe title="{name}, {width}" width="{width}" height="900" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in WIDTHS
    ]
    script = f'<script>window.addEventListener("load", () => {{ {MEASURE} }})</script>'
    (folder / "frames.html").write_text(f'<!doctype html><meta charset="utf-8">{"".join(frames)}<pre></pre>{script}')
    (said,) = re.findall(r"<pre>(\[.*\])</pre>", opened(f"file://{folder / 'frames.html'}", folder))
    found = dict(json.loads(html.unescape(said)))
    assert list(found) == [f"{name}, {width}" for name in pages for width in WIDTHS]
    return {name: some for name, some in found.items() if some}


def say(folder, **changes):
    """What the server says of the run."""
    now = time.time()
    content = {"run": "plants", "bouquet": "0.1.0", "state": "training", "started": now - 900, "updated": now}
    (folder / "status.json").write_text(json.dumps({**content, "connected": [], **changes}))


def much(folder, regression, clients=24):
    """A run of which there is much to say: many devices, long names and reasons, big figures, units, classes."""
    own = {"dataset": "own"} | (
        {} if regression else {"classes": ["healthy", "mildew", "rust"], "input_shape": [3, 32, 32]}
    )
    settings = {"run": {"name": "plants", "rounds": 20}, "data": own, "strategy": {"name": "fesem"}}
    if regression:
        settings |= {"task": {"kind": "regression", "unit": "µg/m³"}, "table": {"inputs": ["a"], "targets": ["b"]}}
    make_run(folder, parse_settings(settings, {}), clients=clients, groups=None, rounds=4, finished=False)
    text = (folder / "rounds.jsonl").read_text().replace('"client-7"', f'"{LONG}"')
    lines = [json.loads(line) for line in text.splitlines()]
    names = list(lines[0]["by_client"])
    for line in lines:
        line |= {f"bytes_{way}{plain}": 9_876_543_210 for way in ("up", "down") for plain in ("", "_plain")}
        line |= {"bytes_up": 170_000_000, "bytes_by_client": {name: [987_654_321, 9_876_543_210] for name in names}}
        line |= {"failures": 1, "failed": {"client-4": f"The device reported: {PATH} cannot be read."}}
        line |= {"absent": ["client-3"], "not_now": {LONG: "too hot; again below 60 °C"}}
        line["warnings"] = ["The training loss rises: 123.456, after 0.123 at its lowest."]
        for numbers in line["by_client"].values():
            numbers |= {"samples": 1_234_567.0, "left_out": 12.0, "kept": "own after training"}
            numbers["classes"] = {"accuracy": [0.5, 0.25, None], "samples": [100, 1000, 0]}
            numbers |= {"mae": 12345.6} if regression else {"accuracy": 0.5}
            numbers |= {"beside": {"own": 12345.6, "alone": 123456.7}} if regression else {}
            numbers |= {"temperature": 61.5, "battery": 0.8}
        if regression:
            line |= {"score": MAE, "mae_macro": 12345.6, "mae_worst_decile": 123456.7, "naive_macro": 1234.5}
    lines[-1]["diagnosis"] = {"releases": f"Another release is installed on {', '.join([LONG, *names])}."}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "devices.json").write_text(json.dumps({name: {"name": name, "release": "0.1.0"} for name in names}))
    resting = {LONG: "outside its hours; again after 22:00", "client-5": "too hot; again below 60 °C"}
    (folder / "service").mkdir()
    noted = [{"node": k, "name": name, "connected": k % 5 > 0, "seen": 1.7e9} for k, name in enumerate(names)]
    (folder / "service" / "connections.json").write_text(json.dumps(noted))
    not_now = {name: {"reason": reason, "until": 1.8e9} for name, reason in resting.items()}
    say(folder, not_now=not_now, service=str(folder / "service"))
    return folder


def test_nothing_is_wider_than_the_page_or_than_its_card_on_a_desk_and_on_a_phone(tmp_path):
    pages = {}
    for name, clients in (("classification", 24), ("regression", 24), ("many", 60)):
        folder = much(tmp_path / "runs" / f"{name}-of-a-run-with-a-long-name", name == "regression", clients)
        page = Page(lambda folder=folder: folder)
        with locked(folder, "the run folder", ""):
            pages[name] = page.html()
            pages[f"{name}, a device"] = page.device(None, LONG)
    for name in ("classification", "regression", "many"):
        for text in (LONG, "missing", "39.5 GB uncompressed", "asked again at", "serves own after training", "61 °C"):
            assert text.replace("61 °C", "62 °C") in pages[name], text
        assert "iid" not in pages[name]
    assert "12346" in pages["regression"]
    names = [folder.name for folder in (tmp_path / "runs").iterdir()]
    pages["runs"] = page.runs(*names[:2])
    assert names[2] in pages["runs"]
    pages["too wide"] = f"<p>{'x' * 1000}</p>"
    found = wide(tmp_path, pages)
    assert set(found) == {"too wide, 1300", "too wide, 390"}, found


def test_in_a_real_browser_the_page_renews_itself(tmp_path, monkeypatch):
    """A round ends after the browser has loaded the page; what it shows in the end has it."""
    monkeypatch.setattr("bouquet.monitor.web.RENEW_SECONDS", 1)
    monkeypatch.delenv("BOUQUET_WEB_TOKEN", raising=False)
    settings = parse_settings({"run": {"name": "plants", "rounds": 4}}, {})
    folder = make_run(tmp_path / "plants", settings, rounds=2, finished=False)
    say(folder, round=3, rounds=4)
    served = []

    def page_html(page, run=None):
        served.append(Page.html(page, run))
        if len(served) == 1:
            with (folder / "rounds.jsonl").open("r+") as file:
                last = json.loads(file.readlines()[-1])
                file.write(json.dumps({**last, "round": 3}) + "\n")
            say(folder, round=4, rounds=4)
        return served[-1]

    monkeypatch.setattr("bouquet.monitor.web.Page", type("Watched", (Page,), {"html": page_html}))
    address = f"127.0.0.1:{free_port()}"
    with serving(lambda: folder, address, tmp_path, None):
        shown = opened(f"http://{address}/", tmp_path)
    assert "round 3 of 4" in served[0]
    assert "round 4 of 4" in shown
    assert "round 3 of 4" not in shown
    assert 'class="gone"' not in shown
