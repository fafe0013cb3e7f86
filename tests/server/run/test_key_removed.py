"""A device whose key its owner removes in mid-round: it is "key removed", and has failed nowhere."""

import io
import json

from rich.console import Console

from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.keys.store import add_device, init_keys, remove_device
from bouquet.monitor.prometheus import metrics_text
from bouquet.monitor.round_table import RoundTable
from bouquet.monitor.status import collect
from bouquet.monitor.status_table import columns
from bouquet.monitor.web import Page
from bouquet.server.fleet.names import Names
from bouquet.server.record.reader import read_run
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds

SETTINGS = ["run.rounds=4", "data.clients=2", "model.hidden=[4]", "strategy.name=fedavg", "server.evaluate_every=1"]
SETTINGS += ["server.straggler_grace=0.1"]  # whom nobody hears of is waited for no longer


def test_no_failure_in_record_summary_table_page_and_metrics(tmp_path):
    settings = load_settings(None, SETTINGS)
    layout, initial = state_vector(initial_model(settings))
    keys, folder = tmp_path / "keys", tmp_path / "run"
    init_keys(keys, ["127.0.0.1"])
    names = Names(folder, registered=keys / "registered", nodes={1: "garden-pi", 2: "window-pi"})
    for name in names.nodes.values():
        add_device(keys, name)
        names.devices[name] = {"name": name}

    honest = {name: scripted_client(name, layout, lambda model, _: model + 1) for name in names.nodes.values()}

    def leaves(message):
        """In round 2 its owner takes it away; from then on whoever asks it hears nothing."""
        told = message.content.config_records.get(protocol.CONFIG) or {}
        if message.metadata.message_type == "train" and told["server-round"] == 2:
            remove_device(keys, "window-pi")
        there = (keys / "registered" / "window-pi.crt").exists()
        return honest["window-pi"](message) if there else None

    grid = InlineGrid({1: honest["garden-pi"], 2: leaves})
    screen = io.StringIO()
    table = RoundTable(Console(file=screen), settings.run.rounds, "plants")
    start = protocol.to_record(layout, initial)
    run_rounds(grid, settings, start, RunRecord(folder), names=names, follow=table)
    (folder / "devices.json").write_text(json.dumps(names.devices))

    run = read_run(folder)
    assert [(line["replies"], line["failures"], line["failed"]) for line in run.rounds] == [(2, 0, {})] + [
        (1, 0, {})
    ] * 3
    assert [line["evaluation"]["not_evaluated"] for line in run.rounds[:3]] == [{}] * 3
    assert [line["absent"] for line in run.rounds] == [[]] * 4
    assert run.summary["not_evaluated"] == {"window-pi": "It was removed."}
    assert run.summary["warnings"] == []
    assert "without window-pi" not in screen.getvalue()
    found = collect(folder)
    (shown,) = [
        dict(zip(columns(found, 0.0)[0], row, strict=True)) for row in columns(found, 0.0) if "window" in row[0]
    ]
    assert (shown["connected"], shown["failures"]) == ("key removed", "0")
    metrics = metrics_text(found).decode()
    assert 'bouquet_device_failures_total{device="window-pi",run="bouquet"} 0.0' in metrics
    assert 'bouquet_device_expected{device="window-pi",run="bouquet"} 0.0' in metrics
    page = Page(lambda: folder).html()
    assert "Failures</h2>" not in page
    assert "key removed" in page
