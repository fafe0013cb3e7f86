"""The runs that a server with --keep-waiting is to do next."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from bouquet.federation import serve
from bouquet.federation.queue import (
    CURRENT,
    NextRun,
    enqueue,
    interrupted,
    open_queue,
    put_down,
    queue_of,
    take_next,
    waiting_server,
    was_ended,
)
from common.errors import BouquetError
from common.settings import load_settings
from common.system.locks import locked
from server.run.torch_worker import Checked
from server.run_folder import MADE
from server.superlink.process import LEAST_MESSAGE_BYTES, SuperLink

WIRES = {"plain": [], "packed": ["wire.up=float16"]}


def run(folder, *changes):
    return NextRun(load_settings(None, changes), folder)


@pytest.fixture
def server(tmp_path):
    """The run folder of a server that takes further runs."""
    folder = tmp_path / "runs" / "first"
    with locked(folder, "the run folder", ""):
        open_queue(folder)
        yield folder


def test_runs_are_done_in_turn_with_the_settings_that_were_asked_for(server):
    first = run(server.parent / "b", "run.rounds=3", "strategy.name=dc-pfl", "data.classes=['a', 'b']")
    second = run(server.parent / "a")
    enqueue(server, first)
    enqueue(server, second)
    assert take_next(server) == first
    assert take_next(server) == second
    assert take_next(server) is None


def test_a_file_that_is_no_run_is_put_aside_and_named(server):
    (queue_of(server) / "1.json").write_text("{}")
    enqueue(server, run(server.parent / "a"))
    with pytest.raises(BouquetError, match=r"1\.json is no run to do"):
        take_next(server)
    assert take_next(server) is not None


def test_where_no_server_takes_it_or_its_folder_is_taken(server, tmp_path):
    (server.parent / "taken").mkdir()
    (server.parent / "taken" / "settings.json").write_text("{}")
    (server.parent / "taken" / "rounds.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(BouquetError, match="taken holds a run already"):
        enqueue(server, run(server.parent / "taken"))
    with pytest.raises(BouquetError, match="first is in use"):
        enqueue(server, run(server))
    enqueue(server, run(server.parent / "twice"))
    with pytest.raises(BouquetError, match="twice was asked for already"):
        enqueue(server, run(server.parent / "twice"))
    with pytest.raises(BouquetError, match="No server that takes further runs works in"):
        enqueue(tmp_path / "runs" / "other", run(tmp_path / "new"))
    assert waiting_server(tmp_path / "runs") == server
    with pytest.raises(BouquetError, match="none"):
        waiting_server(tmp_path)


def test_after_a_restart_an_interrupted_run_goes_on_and_one_that_was_ended_does_not(server):
    second = run(server.parent / "second")
    assert interrupted(server) is None
    run(server).write(queue_of(server) / CURRENT)
    assert interrupted(server) is None  # its first run, which it begins with anyway
    second.write(queue_of(server) / CURRENT)
    assert interrupted(server) == second
    second.folder.mkdir()
    (second.folder / "status.json").write_text(json.dumps({"state": "stopped"}))
    assert was_ended(second.folder)
    assert interrupted(server) is None


def test_a_server_that_starts_goes_on_with_the_run_it_was_at_and_with_its_first(server):
    first, second = run(server), run(server.parent / "second")
    assert serve.to_begin_with(first, resume=False, over=False) == [(first, False)]
    second.write(queue_of(server) / CURRENT)
    assert serve.to_begin_with(first, resume=True, over=True) == [(second, True)]
    # bouquet stop, then another run that failed, then bouquet server --resume: what was asked for comes, too.
    assert serve.to_begin_with(first, resume=True, over=False) == [(second, True), (first, True)]


def test_a_server_that_is_killed_as_it_takes_a_run_comes_back_to_it(server):
    second = run(server.parent / "second")
    enqueue(server, second)
    take_next(server)
    assert interrupted(server) == second
    assert take_next(server) is None
    put_down(server)
    assert interrupted(server) is None


@pytest.mark.parametrize(
    ("files", "drawn"),
    [
        ({}, False),
        ({"summary.json": "{}"}, True),
        ({"summary.json": "{}", "report.html": ""}, False),
        ({"status.json": '{"state": "stopped"}'}, True),
        ({"status.json": '{"state": "stopped"}', "report.html": ""}, False),
    ],
)
def test_a_report_that_was_not_drawn_before_the_server_went_down_is_drawn(server, monkeypatch, files, drawn):
    found = []
    monkeypatch.setattr(serve, "_report_line", lambda folder: found.append(folder) or str(folder))
    second = run(server.parent / "second")
    serve._report_last(server, Console(quiet=True))
    second.write(queue_of(server) / CURRENT)
    second.folder.mkdir()
    for name, content in files.items():
        (second.folder / name).write_text(content)
    serve._report_last(server, Console(quiet=True))
    assert found == [second.folder] * drawn


def test_the_model_that_the_check_made_is_there_before_the_server_starts(tmp_path, monkeypatch):
    def start_server(*_, **__):
        raise BouquetError("as far as here")

    monkeypatch.setattr(serve, "check_settings", lambda *_: Checked(0, b"its model"))
    monkeypatch.setattr(serve, "start_server", start_server)
    options = serve.Options("127.0.0.1", 9092, None, Console(quiet=True))
    with pytest.raises(BouquetError, match="as far as here"):
        serve.serve(NextRun(load_settings(None, []), tmp_path / "run"), False, options)
    assert (tmp_path / "run" / MADE).read_bytes() == b"its model"


def test_a_run_whose_model_devices_could_not_send_at_once_is_not_begun(server, monkeypatch):
    """This server was started for a smaller one; as arrays a model of any size comes in parts."""
    monkeypatch.setattr(serve, "check_settings", lambda settings: Checked(LEAST_MESSAGE_BYTES, b"its model"))
    link = SuperLink(SimpleNamespace(alive=True), "", "", server, None)
    plain, packed = (load_settings(None, [f"run.name={name}", *more]) for name, more in WIRES.items())
    console = Console(record=True, width=300)
    enqueue(server, NextRun(packed, server.parent / "packed"))
    enqueue(server, NextRun(plain, server.parent / "plain"))
    assert serve._wait_for_next(link, server, console, lambda: None).settings.run.name == "plain"
    assert (server.parent / "plain" / MADE).read_bytes() == b"its model"
    assert not (server.parent / "packed").exists()
    assert "The model of packed takes 33554432 bytes, more than this server lets a device send" in console.export_text()
    assert SuperLink(link.process, "", "", server, None, None, 2 * LEAST_MESSAGE_BYTES).takes(LEAST_MESSAGE_BYTES)
