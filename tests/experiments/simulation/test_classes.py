"""Samples and accuracy by class: said by devices whose owners allow it, checked, recorded and shown."""

import json
from types import SimpleNamespace

import pytest

from bouquet.client.rounds.reply import said_of_data
from bouquet.common import protocol
from bouquet.common.settings import load_settings
from bouquet.experiments.report.run_report import class_rows, render_report
from bouquet.experiments.simulation.run import simulate
from bouquet.server.record.reader import read_run
from bouquet.server.record.writer import RunRecord
from bouquet.strategies.base.reply_checks import read_classes, read_texts


def said(samples, tested, found):
    return {protocol.CLASS_SAMPLES: samples, protocol.CLASS_TESTED: tested, protocol.CLASS_FOUND: found}


def test_what_a_device_says_of_its_classes():
    assert read_classes(said([8, 0], [4, 0], [3, 0]), 2) == {"samples": [8, 0], "accuracy": [0.75, None]}


@pytest.mark.parametrize(
    "config",
    [
        {},
        said([8, 0], [4], [3]),
        said([8], [4], [5]),
        said([-1], [4], [3]),
        said([8.0], [4], [3]),
        said("8", "4", "3"),
        said([1] * 3, [1] * 3, [1] * 3),  # more than the run has, in each line of the record
    ],
)
def test_what_cannot_be_is_passed_over(config):
    assert read_classes(config, 2) == {}


def test_classes_that_the_run_does_not_know_are_fit_for_a_page():
    names = ["blight", "blight", "a\nb\x1b[31m", 7, " ", "x" * 999, *map(str, range(99))]
    found = read_texts({"said": names}, "said", 60)
    assert (found[-3:-1], len(found[-1]), len(found)) == (["a b [31m", "blight"], 60, 17)
    assert read_texts({"said": "blight"}, "said", 60) == read_texts({}, "said", 60) == []


def test_in_a_private_run_they_stay_on_the_device():
    for changes, expected in (
        ([], {protocol.UNKNOWN_CLASSES: ["blight"], protocol.DATA_WARNINGS: ["It is dark."]}),
        (["privacy.clip_norm=1"], {}),
    ):
        node = SimpleNamespace(data=SimpleNamespace(unknown_classes=("blight",)), settings=load_settings(None, changes))
        node.data_warnings = ("It is dark.",)
        assert said_of_data(node) == expected


def test_nothing_is_said_unless_the_owner_allows_it(tmp_path, monkeypatch):
    settings = load_settings(
        None, ["data.clients=2", "run.rounds=1", "simulation.engine=inline", "strategy.name=fedavg"]
    )
    simulate(settings, tmp_path / "silent")
    silent = RunRecord(tmp_path / "silent").rounds()[0]["by_client"]
    assert all("classes" not in numbers for numbers in silent.values())
    assert class_rows(read_run(tmp_path / "silent")) == []
    monkeypatch.setattr(
        "bouquet.client.context.ClientContext.config",
        property(lambda node: {**node.context.node_config, "report-classes": 1}),
    )
    simulate(settings, tmp_path / "open")
    numbers = RunRecord(tmp_path / "open").rounds()[0]["by_client"]["client-0"]
    assert sum(numbers["classes"]["samples"]) == numbers["samples"] + numbers["tested"]
    heads, first, _ = class_rows(read_run(tmp_path / "open"))
    assert heads == ["client", *"0123456789"]
    assert first[0] == "client-0"
    assert first[1].endswith(f" of {numbers['classes']['samples'][0]}")
    assert "Accuracy by class" in render_report(read_run(tmp_path / "open"))
    assert json.loads((tmp_path / "open" / "summary.json").read_text())["clients"] == 2
