"""`bouquet server` learns at once that a run's ServerApp was killed, and goes on with the run."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from bouquet.federation import run as federation
from bouquet.federation import serve
from bouquet.federation.queue import NextRun
from bouquet.federation.run import Life, ServerAppLost
from common.settings import load_settings
from server.run_folder import FAILURE, ROUNDS, SERVER_LOG, SERVERAPP, SUMMARY
from server.superlink.process import RunStatus

RUN = 12


@pytest.fixture
def held(monkeypatch):
    """Whether the file counts as held; a lock of this process's own would not show."""
    now = SimpleNamespace(it_is=False)
    monkeypatch.setattr(federation, "is_held", lambda file: now.it_is)
    return now


@pytest.fixture
def over(tmp_path, held, monkeypatch):
    """`_is_over` of a run whose SuperLink says what is given."""
    (tmp_path / SERVERAPP).write_text(str(RUN))
    life = Life(tmp_path / SERVERAPP, RUN)

    def ask(status, log_alive=True):
        monkeypatch.setattr(federation, "run_status", lambda superlink, run_id: RunStatus(status, ""))
        superlink = SimpleNamespace(process=SimpleNamespace(alive=True))
        return federation._is_over(superlink, RUN, SimpleNamespace(alive=log_alive), tmp_path, None, life)

    return ask


def test_it_is_over_when_it_was_there_and_is_no_more(tmp_path, held):
    life = Life(tmp_path / SERVERAPP, RUN)
    assert not life.over  # not begun
    (tmp_path / SERVERAPP).write_text("11")
    held.it_is = True
    assert not life.over
    held.it_is = False
    assert not life.over  # that of the run before
    (tmp_path / SERVERAPP).write_text(str(RUN))
    assert not life.over  # which has not been seen yet
    held.it_is = True
    assert not life.over
    held.it_is = False
    assert life.over


def test_a_death_is_told_from_an_end(over, held, tmp_path):
    (tmp_path / SERVER_LOG).write_text("Round 3 begins.\n")
    held.it_is = True
    assert not over("running")
    held.it_is = False
    with pytest.raises(ServerAppLost, match=r"was killed, or crashed(.|\n)*Round 3 begins\."):
        over("running")
    assert over("finished:failed")  # it told SuperLink before it ended


@pytest.mark.parametrize("name", [SUMMARY, FAILURE])
def test_whose_result_is_there_was_not_killed(over, held, tmp_path, name):
    held.it_is = True
    assert not over("running")
    (tmp_path / name).write_text("{}")
    held.it_is = False
    assert over("running")


def in_turn(monkeypatch, tmp_path, lines):
    """`_do_in_turn` with a run that is lost after so many recorded rounds each time, and then ends well."""
    folder, resumed, output = tmp_path / "run", [], io.StringIO()
    folder.mkdir()
    left = list(lines)

    def do(group, superlink, run, options, look):
        resumed.append('"resume": true' in (tmp_path / "queue" / serve.CURRENT).read_text())
        if not left:
            return
        (folder / ROUNDS).write_text('{"round": 1}\n' * left.pop(0))
        raise ServerAppLost("The ServerApp was killed.")

    (tmp_path / "queue").mkdir()
    monkeypatch.setattr(serve, "_do", do)
    superlink = SimpleNamespace(process=SimpleNamespace(alive=True))
    options = SimpleNamespace(console=Console(file=output))
    run = NextRun(load_settings(None, []), folder)
    serve._do_in_turn(None, superlink, run, False, tmp_path, options, lambda: None)
    return resumed, output.getvalue()


def test_a_server_that_takes_further_runs_goes_on_with_it(monkeypatch, tmp_path):
    resumed, said = in_turn(monkeypatch, tmp_path, [2, 3])
    assert resumed == [False, True, True]
    assert said.count("Going on with") == 2
    assert "failed" not in said


@pytest.mark.parametrize("lines", [[0], [2, 2]])
def test_but_not_where_it_comes_no_further(monkeypatch, tmp_path, lines):
    resumed, said = in_turn(monkeypatch, tmp_path, lines)
    assert len(resumed) == len(lines)
    assert "failed: The ServerApp was killed." in said
