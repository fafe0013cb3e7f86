"""``status.json``: what the server is doing now."""

import json

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.experiments.simulation.run import simulate
from bouquet.server.fleet.names import Names
from bouquet.server.record.status import Progress, note_failure, read_status
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds
from bouquet.server.run.stop import RunStopped, ask_to_stop

SETTINGS = load_settings(None, ["run.name=plants", "server.min_clients=3", "server.wait_for_clients=0.5"])


def names(folder):
    devices = {"key-a": {"name": "garden-pi"}, "key-b": {"name": "window-pi"}, "key-c": {"name": "door-pi"}}
    (folder / "devices.json").write_text(json.dumps(devices))
    return Names(folder, nodes={1: "garden-pi", 2: "window-pi"})


def test_while_it_waits_it_says_who_is_there_and_who_is_missing(tmp_path):
    progress = Progress(tmp_path, SETTINGS, names(tmp_path))
    said = progress.waiting([1, 2])
    assert said == "2 of 3 devices are connected (garden-pi, window-pi); missing: door-pi."
    status = read_status(tmp_path)
    assert (status["state"], status["missing"], status["needed"]) == ("waiting", ["door-pi"], 3)
    written = (tmp_path / "status.json").stat().st_mtime_ns
    progress.waiting([1, 2])
    assert (tmp_path / "status.json").stat().st_mtime_ns == written  # nothing changed, nothing is written
    # a server that is started again keeps the time at which the run began
    assert Progress(tmp_path, SETTINGS, None).content["started"] == status["started"]


def test_a_server_that_waited_in_vain_names_who_did_not_come(tmp_path):
    record = RunRecord(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with pytest.raises(BouquetError, match=r"Only 2 of 3 clients .* missing: door-pi\."):
        run_rounds(InlineGrid({1: print, 2: print}), SETTINGS, None, record, names=names(tmp_path / "run"))


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (BouquetError("no disk"), "failed", "no disk"),
        (KeyError("x"), "failed", "KeyError: 'x'"),
        (RunStopped("as asked"), "stopped", "as asked"),
    ],
)
def test_a_run_that_ends_before_its_end_says_why(tmp_path, error, state, reason):
    note_failure(tmp_path, error)
    assert read_status(tmp_path) == {}  # it had not begun
    Progress(tmp_path, SETTINGS, None).waiting([])
    note_failure(tmp_path, error)
    assert (read_status(tmp_path)["state"], read_status(tmp_path)["reason"]) == (state, reason)


def test_a_run_with_a_summary_is_finished_whatever_its_server_could_still_write(tmp_path):
    Progress(tmp_path, SETTINGS, None).say("testing")
    (tmp_path / "summary.json").write_text("{}")  # the disk was full then
    assert read_status(tmp_path)["state"] == "finished"


def test_a_run_ends_after_the_round_in_hand_where_its_owner_asks_and_goes_on_later(tmp_path):
    changes = ["data.clients=3", "run.rounds=4", "simulation.engine=inline", "strategy.num_clusters=1"]
    settings, folder = load_settings(None, changes), tmp_path / "run"
    with pytest.raises(RunStopped, match=r"Stopped after round 2, as asked; --resume goes on\."):
        simulate(settings, folder, follow=lambda line: ask_to_stop(folder) if line["round"] == 2 else None)
    assert (read_status(folder)["state"], len(RunRecord(folder).rounds())) == ("stopped", 2)
    assert simulate(settings, folder, resume=True)["rounds"] == 4
    assert read_status(folder)["state"] == "finished"
    whole = simulate(settings, tmp_path / "whole")
    assert {**whole, "seconds": 0} == {**json.loads((folder / "summary.json").read_text()), "seconds": 0}


def test_a_run_that_went_well_says_so_and_its_record_has_each_devices_numbers(tmp_path):
    changes = ["data.clients=3", "run.rounds=2", "simulation.engine=inline", "strategy.num_clusters=1"]
    simulate(load_settings(None, changes), tmp_path / "run")
    status = read_status(tmp_path / "run")
    assert (status["state"], status["round"]) == ("finished", 2)
    assert status["started"] <= status["ended"]
    lines = RunRecord(tmp_path / "run").rounds()
    assert list(lines[0]["by_client"]) == ["client-0", "client-1", "client-2"]
    known = {"samples", "tested", "loss", "accuracy", "accuracy_trained", "beside"}
    assert set(lines[0]["by_client"]["client-0"]) == known
    assert lines[0]["absent"] == []
