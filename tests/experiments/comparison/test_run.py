"""Which cells of a comparison are run, and what becomes of those that fail."""

import _thread
import io
import json
import os
import signal
import time

import pytest
from rich.console import Console

from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison.run import cell_state, default_jobs, run_table
from bouquet.experiments.comparison.tables import render_csv, render_markdown
from bouquet.server import run_folder
from tests.helpers.small_table import FakeRunner

SLUGS = ["fesem-digits-s0", "fed-avg-digits-s0", "fesem-digits-s1", "fed-avg-digits-s1"]


def test_every_cell_is_run_once_and_then_kept(compare, tmp_path):
    first, runner, shown = compare()
    again, idle, said = compare()

    assert runner.ran == SLUGS
    assert "4/4 cells" in shown
    assert "running" not in shown
    assert idle.ran == []
    assert "4 of 4 cells are done already." in said
    assert render_csv(again) == render_csv(first)
    assert json.loads((tmp_path / "out/cells" / SLUGS[2] / "settings.json").read_text())["run"]["name"] == SLUGS[2]


def test_a_table_that_grows_runs_only_what_is_new(compare):
    compare()
    results, runner, _ = compare("seeds = [0, 1]", "seeds = [0, 1, 2]")

    assert runner.ran == ["fesem-digits-s2", "fed-avg-digits-s2"]
    assert len(results.runs("FeSEM", "digits")) == 3


def test_cells_of_other_settings_are_said_and_run_again(compare):
    compare()
    _, runner, said = compare('name = "fesem"', 'name = "fesem"\nnum_clusters = 2')

    assert runner.ran == [SLUGS[0], SLUGS[2]]
    assert f"{SLUGS[0]} was run with other settings and is run again." in said
    assert f"{SLUGS[1]} was run" not in said


@pytest.mark.parametrize(
    "other",
    [
        "[base.server]\nfraction_evaluate = 0.5\n[base.simulation]",
        "[base.simulation]\nspeeds = [10.0, 20.0]",
        "[base.personal]\ncompare = true\n[base.simulation]",
        '[base.train]\nbudget = "fleet"\n[base.simulation]',
    ],
)
def test_a_cell_that_was_tested_or_trained_otherwise_is_run_again(compare, other):
    compare()
    _, runner, said = compare("[base.simulation]", other)

    assert runner.ran == SLUGS  # a run may go on with it; a table would show a figure of another fleet
    assert f"{SLUGS[0]} was run with other settings" in said


def test_a_failed_cell_is_reported_and_the_others_go_on(compare):
    def before(name):
        if name == SLUGS[0]:
            raise BouquetError("The run exited with 1; the end of its log:\n[boom]")
        if name == SLUGS[1]:
            raise BouquetError("The run was ended by signal 9.")

    results, runner, said = compare(before=before)

    assert runner.ran == SLUGS
    assert [result.cell.slug for result in results.failed] == SLUGS[:2]
    assert "failed  fesem-digits-s0" in said
    assert "[boom]" in said
    assert "The run was ended by signal 9." in said
    assert "| FeSEM | .920 (1/2) |" in render_markdown(results)
    assert "2 of 4 cells failed." in render_markdown(results)
    assert compare()[1].ran == SLUGS[:2]


def test_a_run_that_leaves_no_summary_has_failed(tmp_path, table, write_run):
    runner = FakeRunner(lambda out, settings, **options: write_run(out, settings, finished=False, **options))
    results = run_table(table(), tmp_path / "out", 1, Console(file=io.StringIO()), begin=runner)

    assert len(results.failed) == 4
    assert "ended without a summary for these settings" in results.failed[0].error


@pytest.mark.parametrize("kill", [_thread.interrupt_main, lambda: os.kill(os.getpid(), signal.SIGTERM)])
def test_an_interrupt_stops_what_runs_and_keeps_what_is_done(tmp_path, table, write_run, kill):
    runner = FakeRunner(write_run)

    def before(name):
        if name == SLUGS[1]:
            kill()
            time.sleep(60)

    runner.before = before
    handler = signal.getsignal(signal.SIGTERM)
    results = run_table(table(), tmp_path / "out", 1, Console(file=io.StringIO()), begin=runner)

    assert results.interrupted
    assert runner.ran == SLUGS[:2]
    assert [result.cell.slug for result in results.missing] == SLUGS[1:]
    assert (len(results.runs("FeSEM", "digits")), results.failed) == (1, [])
    assert "3 of 4 cells have not been run yet." in render_markdown(results)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_several_cells_run_at_once(compare):
    results, runner, _ = compare(jobs=4, ended=lambda runner: len(runner.ran) == 4)

    assert sorted(runner.ran) == sorted(SLUGS)
    assert results.missing == results.failed == []


def test_a_folder_that_holds_something_else_is_left_alone(compare, tmp_path):
    strange = tmp_path / "out/cells" / SLUGS[3]
    strange.mkdir(parents=True)
    (strange / "thesis.tex").touch()

    with pytest.raises(BouquetError, match=r"fed-avg-digits-s1 holds 'thesis\.tex', which no run leaves there"):
        compare()
    assert (strange / "thesis.tex").exists()


def test_whatever_a_run_that_was_cut_short_left_is_cleared_away(compare, tmp_path):
    compare()
    cut = tmp_path / "out/cells" / SLUGS[0]
    for name in run_folder.EVERYTHING:
        (cut / name).touch()
    (cut / "summary.json").unlink()
    (cut / "checkpoint").unlink()
    (cut / "checkpoint").mkdir()

    results, runner, said = compare()
    assert runner.ran == [SLUGS[0]]
    assert results.failed == []
    assert "was run" not in said
    assert not (cut / run_folder.START).exists()
    assert not (cut / "checkpoint").exists()


def test_two_comparisons_do_not_share_a_folder(compare, tmp_path):
    def before(name):
        if name == SLUGS[0]:
            with pytest.raises(BouquetError, match=r"The comparison's folder .*out is in use by process \d+\. Another"):
                compare()

    results, _, _ = compare(before=before)
    assert results.failed == []


def test_states_of_a_cell(table, write_run, tmp_path):
    cell = table().cells[0]
    folder = tmp_path / "cell"

    assert cell_state(cell, folder) == "missing"
    folder.mkdir()
    assert cell_state(cell, folder) == "missing"
    (folder / "settings.json").write_text("{")
    assert cell_state(cell, folder) == "missing"  # it was cut short
    (folder / "summary.json").write_text("{}")  # it ended, in a release whose settings are others
    assert cell_state(cell, folder) == "other settings"
    write_run("cell", cell.settings.with_overrides({"run.rounds": 2}))
    assert cell_state(cell, folder) == "other settings"
    write_run("cell", cell.settings.with_overrides({"run.name": "another", "server.round_timeout": 9.0}))
    assert cell_state(cell, folder) == "done"


def test_jobs_by_default_leave_each_cell_its_cores(table, monkeypatch):
    monkeypatch.setattr("bouquet.experiments.comparison.run.available_cores", lambda: 8)

    assert default_jobs(table().cells) == 8
    assert default_jobs(table("rounds = 3", "rounds = 3\n[base.train]\nthreads = 3").cells) == 2
    assert default_jobs(table("rounds = 3", "rounds = 3\n[base.train]\nthreads = 0").cells) == 1
    assert default_jobs(table('engine = "inline"', 'engine = "ray"').cells) == 1


STANDARD = ('name = "small"', 'name = "small"\nrows = "standard"')


def test_a_row_of_trained_models_is_read_from_the_cells_of_its_twin(compare):
    twin = '[[strategy]]\nlabel = "trained"\nname = "fedavg"\ntested = "trained"\n[[data]]'
    results, runner, _ = compare("[[data]]", twin)

    assert sorted(runner.ran) == sorted(SLUGS)
    metric = results.table.metrics[0]
    last = [line["by_client"] for run in results.runs("trained", "digits") for line in run.rounds[-1:]]
    own = [one["accuracy_trained"] for clients in last for one in clients.values()]
    found = results.values(metric, "trained", "digits")
    assert sum(found) / len(found) == pytest.approx(sum(own) / len(own))
    assert found != results.values(metric, "Fed|Avg", "digits")


def test_the_standard_rows_come_first_and_those_that_are_there_are_not_repeated(table):
    assert table(*STANDARD).strategies == (
        "Standalone",
        "FedAvg, after local training",
        "FedPer",
        "Ditto",
        "FeSEM",
        "Fed|Avg",
    )


def test_what_cannot_be_run_is_said_before_the_first_cell(tmp_path, table, write_run):
    runner = FakeRunner(write_run)

    def check(settings):
        if settings.strategy.name == "fedavg":
            raise BouquetError("This cannot be.")

    with pytest.raises(BouquetError, match=r"(?s)Nothing was run.*fed-avg-digits-s0: This cannot be\."):
        run_table(table(), tmp_path / "out", 1, Console(file=io.StringIO()), check=check, begin=runner)
    assert runner.ran == []


def test_every_row_in_each_column_and_every_column_with_each_seed_is_checked_once(tmp_path, table, write_run):
    checked = []
    more = table("[[data]]", '[[data]]\nlabel = "others"\n[[data]]')
    console, runner = Console(file=io.StringIO()), FakeRunner(write_run)
    run_table(more, tmp_path / "out", 1, console, check=lambda s: checked.append(s.run.name), begin=runner)
    # With the second seed a column's data are new, and a row in it is not.
    assert checked == [
        *("fesem-others-s0", "fed-avg-others-s0", "fesem-digits-s0", "fed-avg-digits-s0"),
        *("fesem-others-s1", "fesem-digits-s1"),
    ]
