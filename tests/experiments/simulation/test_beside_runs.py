"""Runs in which each device also trains alone, to say what the others are worth to it."""

import io
import json

import pytest
from rich.console import Console

from bouquet.client.rounds import serving
from bouquet.client.rounds.session import Session
from bouquet.client.state.device_state import DeviceState
from bouquet.common.errors import BouquetError
from bouquet.common.protocol.error_replies import NotNow
from bouquet.common.settings import load_settings
from bouquet.experiments.report.run_report import write_report
from bouquet.experiments.simulation.run import simulate
from bouquet.monitor.round_table import print_summary
from bouquet.monitor.status import collect
from bouquet.monitor.status_table import columns
from tests.helpers.stopped_runs import cut_after

BASE = ["data.clients=3", "data.public_fraction=0.1", "data.samples_per_client=40", "run.rounds=2", "run.seed=1"]
BASE += ["data.partition=pathological", "simulation.engine=inline", "model.hidden=16"]
BASE += ["personal.serve=own", "personal.compare=false"]
COMPARE = "personal.compare=true"


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def rounded(scores):
    return {client: round(value, 6) for client, value in scores.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What devices have that train alone."""
    return simulate(settings("strategy.name=standalone"), tmp_path_factory.mktemp("alone") / "run")


def plain(found):
    """A summary without what the comparison adds to it."""
    more = {"beside_by_client", "seconds", "accuracy_in_use_macro", "accuracy_alone_macro", "accuracy_received_macro"}
    return {k: v for k, v in found.items() if k not in more and not k.startswith("bytes_up")}


@pytest.mark.parametrize(
    "changes",
    [
        ["strategy.name=fedavg"],
        ["strategy.name=ditto"],
        ["strategy.name=fedper"],
        ["strategy.name=feddane"],
        ["strategy.name=fedavg", "personal.serve=mixture"],
        ["strategy.name=fedper", "personal.serve=mixture"],
    ],
    ids=" ".join,
)
def test_alone_is_what_standalone_gives_and_nothing_else_changes(changes, alone, tmp_path):
    found = simulate(settings(*changes, COMPARE), tmp_path / "compared")
    assert {c: b["alone"] for c, b in found["beside_by_client"].items()} == rounded(alone["accuracy_by_client"])
    without = simulate(settings(*changes), tmp_path / "plain")
    assert "beside_by_client" not in without
    assert plain(found) == plain(without)
    last = json.loads((tmp_path / "plain" / "rounds.jsonl").read_text().splitlines()[-1])
    assert not any("beside" in numbers for numbers in last["by_client"].values())
    method = found.get("accuracy_method_macro", found["accuracy_macro"])
    received = [b["received"] for b in found["beside_by_client"].values()]
    if "fedavg" in changes[0]:  # whose own model is the one that is sent
        assert sum(received) / len(received) == pytest.approx(method, abs=1e-6)
    if "personal.serve" in changes[-1] or "ditto" in changes[0]:  # what is tested is what is in use
        assert {c: b["own"] for c, b in found["beside_by_client"].items()} == rounded(found["accuracy_by_client"])


def test_of_a_device_that_is_alone_anyway_nothing_is_trained_twice(tmp_path, monkeypatch, alone):
    train, trained = Session.train, []
    monkeypatch.setattr(Session, "train", lambda session, *rest, **o: trained.append(1) or train(session, *rest, **o))
    found = simulate(settings("strategy.name=standalone", COMPARE), tmp_path)
    scores = rounded(alone["accuracy_by_client"])
    assert found["beside_by_client"] == {c: {"own": score, "alone": score, "tested": 8} for c, score in scores.items()}
    assert len(trained) == 3 * 2  # devices and rounds


def test_withheld_scores_are_withheld(tmp_path):
    found = simulate(settings("strategy.name=fedavg", COMPARE, "privacy.clip_norm=1"), tmp_path)
    assert "beside_by_client" not in found
    assert "beside" not in (tmp_path / "rounds.jsonl").read_text()


@pytest.mark.parametrize("changes", [[COMPARE], [COMPARE, "personal.serve=auto"]])
def test_a_full_disk_costs_the_comparison_and_no_round(changes, tmp_path, monkeypatch):
    def full(*_):
        raise BouquetError("no room")

    monkeypatch.setattr(DeviceState, "save_arrays", full)
    found = simulate(settings("strategy.name=fedavg", *changes), tmp_path)
    assert len(found["accuracy_by_client"]) == 3
    assert "beside_by_client" not in found  # at the end nothing is there any more


@pytest.fixture
def hot(monkeypatch):
    """The second training of a run is ended by the owner."""
    train, calls = Session.train, []

    def hot(session, start, *rest, **options):
        calls.append(1)
        if len(calls) == 2:
            raise NotNow("too hot; again below 60 °C", 5.0)
        return train(session, start, *rest, **options)

    monkeypatch.setattr(Session, "train", hot)


def first_line(folder):
    return json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])


@pytest.mark.usefixtures("hot")
@pytest.mark.parametrize("serve", ["own", "auto"])
def test_the_work_ends_in_the_training_alone_and_the_round_is_not_lost(serve, tmp_path):
    simulate(settings("strategy.name=fedavg", COMPARE, f"personal.serve={serve}"), tmp_path)
    first = first_line(tmp_path)
    assert (first["replies"], first["not_now"]) == (3, {})
    assert [client for client, numbers in first["by_client"].items() if "beside" not in numbers] == ["client-0"]


@pytest.mark.parametrize("serve", ["own", "auto"])
def test_where_one_more_training_may_come_too_late_there_is_none(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "SHARE_OF_ROUND", 0.0)
    train, trained = Session.train, []
    monkeypatch.setattr(Session, "train", lambda session, *rest, **o: trained.append(1) or train(session, *rest, **o))
    found = simulate(settings("strategy.name=fedavg", COMPARE, f"personal.serve={serve}"), tmp_path)
    assert first_line(tmp_path)["replies"] == 3
    assert len(trained) == 3 * 2
    assert "beside_by_client" not in found


def test_a_season_that_takes_twice_as_long_goes_on_without_it(tmp_path):
    cut_after(1, settings("strategy.name=fedavg", COMPARE), tmp_path)
    again = simulate(settings("strategy.name=fedavg", "personal.compare=false"), tmp_path, resume=True)
    assert again["rounds"] == 2


def test_the_owner_reads_it_at_the_end_in_the_status_and_on_the_page(tmp_path):
    found = simulate(settings("strategy.name=fedavg", COMPARE), tmp_path)
    out = io.StringIO()
    print_summary(Console(file=out, width=120), found)
    assert "Was it worth it?" in out.getvalue()
    own, other, received = (f"{found['beside_by_client']['client-2'][k]:.3f}" for k in ("own", "alone", "received"))
    cells = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    assert ["client-2", own, other, received] in cells
    assert "of 3 devices" in out.getvalue()
    status = collect(tmp_path)
    heads, *rows = columns(status, now=0.0)
    place = heads.index("in use")
    assert heads[place : place + 3] == ("in use", "alone", "received")
    assert rows[2][place : place + 3] == (own, other, received)
    assert "of 3 devices" in status["run"]["worth"]
    page = write_report(tmp_path).read_text()
    assert all(part in page for part in status["run"]["worth"].split(". ", 1))
    assert f'<span class="own">{own} <small>in use</small></span>' in page
    assert f'<span class="alone">{other} alone</span>' in page
