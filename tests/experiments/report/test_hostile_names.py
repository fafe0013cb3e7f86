"""What devices and users call things reaches plots, pages, tables and metrics, and breaks none of them."""

import io
import json
import os
import re
import subprocess
import sys
from urllib.parse import unquote

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from rich.console import Console

from bouquet import cli
from bouquet.common.protocol import METRICS, Encoder, Instruction, Payload
from bouquet.common.settings import parse_settings
from bouquet.experiments.plots.run import plots_of
from bouquet.experiments.report.run_report import write_report
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.federation import serve
from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.round_table import RoundTable, print_summary
from bouquet.monitor.status import collect
from bouquet.monitor.status_table import print_status
from bouquet.monitor.web import Page
from bouquet.server.record.reader import natural_order, read_run
from bouquet.server.record.traffic import Bytes

InlineGrid({})  # gives Flower's Message its sender
NAMES = [
    r"$\frac{$",
    "$x$",
    "[red]",
    "[/red]",
    "<script>alert(1)</script>",
    'a"\\n} 1\nbouquet_round 99',
    "7" * 5000,
    "{{ 1/0 }}%s",
    ":skull:",
]


def test_no_text_of_a_figure_goes_through_latex(tmp_path):
    """Which a file of the current folder can ask for."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    program = "import matplotlib, bouquet.experiments.plots.style; print(matplotlib.rcParams['text.usetex'])"
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert done.stdout == b"False\n", done.stderr


@pytest.fixture
def hostile(write_run):
    """A run of clients with these names, of a run with one of them; layers, reasons and warnings have them, too."""
    settings = {
        "run": {"rounds": 3, "name": "$x^{ [red]"},
        "data": {"clients": 9, "partition": "rotated", "classes": NAMES[:4], "input_shape": [4]},
    }
    folder = write_run(settings=parse_settings(settings, {}), clients=len(NAMES), layers=tuple(NAMES))
    for file in ("rounds.jsonl", "summary.json"):
        text = (folder / file).read_text()
        for index, name in enumerate(NAMES):
            text = text.replace(f'"client-{index}"', json.dumps(name))
        (folder / file).write_text(text)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"failed": dict.fromkeys(NAMES[:2], NAMES[0]), "failures": 2, "warnings": NAMES[:4], "absent": NAMES}
        line["by_client"][NAMES[0]]["classes"] = {"samples": [1] * 4, "accuracy": [1.0] * 4}
        line["strategy"] = {NAMES[0]: NAMES}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("method", ["fesem", "dc-pfl", "fedac", "fedtsdp", "gradient-loss"])
def test_no_name_breaks_the_report(hostile, method):
    settings = json.loads((hostile / "settings.json").read_text())
    settings["strategy"] = {"name": method}
    (hostile / "settings.json").write_text(json.dumps(settings))
    page = write_report(hostile).read_text()
    assert "<script>alert" not in page
    assert "bouquet report" not in page
    assert len(plots_of(read_run(hostile))) >= 2


def test_nor_the_live_page_nor_the_metrics(hostile):
    page = Page(lambda: hostile)
    for text in (page.html(), page.runs(hostile.name, hostile.name), *(page.device(None, name) for name in NAMES)):
        assert "<script>alert" not in text
    assert page.device(None, NAMES[4]).count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    (link,) = re.findall(r'href="device\?[^"]*name=([^"]*)"[^<]*<span class="name">&lt;script', page.html())
    assert unquote(link) == NAMES[4]
    said = metrics_text(collect(hostile)).decode()
    assert "\nbouquet_round 99" not in said
    assert r'device="a\"\\n} 1\nbouquet_round 99"' in said


def test_nor_what_a_terminal_shows(hostile):
    output = io.StringIO()
    cli.console.file = output
    try:
        lines = [json.loads(line) for line in (hostile / "rounds.jsonl").read_text().splitlines()]
        with RoundTable(cli.console, 3, "fesem, run $x^{ [red]") as table:
            for line in lines:
                table(line)
        cli.console.print(table.table)
        print_summary(cli.console, json.loads((hostile / "summary.json").read_text()))
        print_status(cli.console, collect(hostile))
        cli.report(hostile)
    finally:
        cli.console.file = None
    for name in (*NAMES[:4], ":skull:", "run $x^{ [red]"):
        assert name in output.getvalue()


def test_a_report_that_fails_is_said_and_ends_nothing(hostile, monkeypatch):
    def broken(run):
        raise ValueError("cannot be drawn\n\x1b[31m" + "x" * 1000)

    monkeypatch.setattr("bouquet.experiments.report.run_report.plots_of", broken)
    output = io.StringIO()
    (hostile / "status.json").write_text('{"state": "stopped"}')
    monkeypatch.setattr(serve, "in_hand", lambda server: type("Run", (), {"folder": hostile}))
    serve._report_last(hostile, Console(file=output))
    assert "could not be made (ValueError: cannot be drawn" in output.getvalue()
    assert "\x1b[31m" not in output.getvalue()


def test_only_layers_that_the_model_has_are_counted_by_layer(layout, initial):
    vector = np.zeros(layout.dim, dtype=np.float32)
    content = Encoder(layout).content(Instruction({"arrays": Payload(vector)}), 1, "", {})
    message = Message(content, dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = "m"
    arrays = ArrayRecord({**initial, r"$\frac{$.weight": Array(next(iter(initial.values())).numpy())})
    reply = Message(RecordDict({"arrays": arrays, METRICS: MetricRecord({"num-examples": 1})}), reply_to=message)
    counted, honest = Bytes(layout), Bytes(layout)
    counted.count([reply], {})
    honest.count([Message(RecordDict({"arrays": initial}), reply_to=message)], {})
    assert counted.by_layer == honest.by_layer == {"up": {"first": 280, "last": 136}, "down": {}}
    assert counted.up > honest.up
    counted.count([message], {})
    assert set(counted.by_layer["down"]) == {"first", "last"}


def test_a_name_of_many_digits_has_its_place():
    ordered = ["007", "7", "8", "12", "7" * 5000, "a", "a1"]
    assert sorted({*ordered}, key=natural_order) == ordered
