"""The runs that a server with --keep-waiting is to do next."""

import pytest
from rich.console import Console

from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.system.locks import locked
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
)


def run(folder, *changes):
    return NextRun(load_settings(None, changes), folder)


@pytest.fixture
def server(tmp_path):
    """The run folder of a server that takes further runs."""
    folder = tmp_path / "runs" / "first"
    with locked(folder, "the run folder", ""):
        open_queue(folder)
        yield folder


def test_a_file_that_is_no_run_is_put_aside_and_named(server):
    (queue_of(server) / "1.json").write_text("{}")
    enqueue(server, run(server.parent / "a"))
    with pytest.raises(BouquetError, match=r"1\.json is no run to do"):
        take_next(server)
    assert take_next(server) is not None


def test_where_no_server_takes_it_or_its_folder_is_taken(server, tmp_path):
    (server.parent / "taken").mkdir()
    (server.parent / "taken" / "settings.json").write_text("{}")
    (server.parent / "taken" / "rounds.jsonl").write_text('{"round": 1, "replies": 1}\n')
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


def test_a_run_that_cannot_be_done_is_named_and_the_next_one_taken(server):
    bad = load_settings(None, ["run.name=bad", "model.name=nowhere:make"])
    enqueue(server, NextRun(bad, server.parent / "bad"))
    enqueue(server, run(server.parent / "good", "run.name=good"))
    console = Console(record=True, width=300)
    assert serve._wait_for_next(server, console).settings.run.name == "good"
    assert "A run that was asked for cannot be done: " in (said := console.export_text())
    assert "nowhere" in said
    assert interrupted(server).settings.run.name == "good"
