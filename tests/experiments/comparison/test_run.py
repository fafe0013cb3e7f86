import _thread
import csv
import io
import json
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison import claims
from bouquet.experiments.comparison.cell_process import CellFailed
from bouquet.experiments.comparison.claims import references, row_ranks
from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.run import Results, cell_state, default_jobs, run_table
from bouquet.experiments.comparison.significance import Difference
from bouquet.experiments.comparison.tables import (
    HOW,
    csv_table,
    latex_table,
    notes,
    print_results,
    render_csv,
    render_markdown,
    write_results,
)
from bouquet.server import run_folder

GRID = """
name = "small"
seeds = [0, 1]
metrics = ["accuracy_macro", "bytes_up", "rounds_to_accuracy_0.8"]
[base.run]
rounds = 3
[base.simulation]
engine = "inline"
[[strategy]]
label = "FeSEM"
name = "fesem"
[[strategy]]
label = "Fed|Avg"
name = "fedavg"
[[data]]
label = "digits"
partition = "rotated"
clients = 4
groups = 2
"""
SLUGS = ["fesem-digits-s0", "fed-avg-digits-s0", "fesem-digits-s1", "fed-avg-digits-s1"]


class FakeRunner:
    """Writes a made-up run at once; ``before`` is called with the cell's name first, and may raise."""

    def __init__(self, write, before=lambda name: None):
        self.write, self.before = write, before
        self.ran, self.resumed, self.stopped = [], [], threading.Event()
        self.lock = threading.Lock()

    def __call__(self, settings, out, *, resume=False):
        with self.lock:
            self.ran.append(out.name)
            self.resumed += [out.name] if resume else []
        self.before(out.name)
        best = {"fesem": 0.9, "fedavg": 0.6, "standalone": 0.7}[settings.strategy.name] + 0.02 * settings.run.seed
        self.write(out, settings, clients=4, groups=2, rounds=settings.run.rounds, accuracy=best)

    def stop(self):
        self.stopped.set()


@pytest.fixture
def table(tmp_path):
    def load(old="", new=""):
        path = tmp_path / "table.toml"
        path.write_text(GRID.replace(old, new, 1))
        return load_table(path, lambda settings: None)

    return load


@pytest.fixture
def compare(tmp_path, table, write_run):
    """Run the table, changed by ``old`` and ``new``; gives the results, the runner and what was said."""

    def run(old="", new="", before=lambda name: None, jobs=1, resume=False, part=None):
        runner = FakeRunner(write_run, before)
        console = Console(file=io.StringIO(), width=300)
        loaded = table(old, new)
        asked = None if part is None else loaded.part(**part)
        results = run_table(loaded, tmp_path / "out", jobs, runner, console, resume, asked)
        return results, runner, console.file.getvalue()

    return run


def test_every_cell_is_run_once_and_then_kept(compare, tmp_path):
    first, runner, _ = compare()
    again, idle, said = compare()

    assert runner.ran == SLUGS
    assert idle.ran == []
    assert "4 of 4 cells are done already." in said
    assert render_csv(again) == render_csv(first)
    assert json.loads((tmp_path / "out/cells" / SLUGS[2] / "settings.json").read_text())["run"]["name"] == SLUGS[2]


def test_a_block_of_ranks_is_a_data_set_whatever_its_seeds(compare):
    other = '[[data]]\nlabel = "as well"\npartition = "rotated"\nclients = 4\ngroups = 2\n'
    results, _, _ = compare("[[data]]", f"{other}[[data]]")

    assert dict(row_ranks(results).mean) == {"FeSEM": 1.0, "Fed|Avg": 2.0}
    assert row_ranks(results).blocks == 2
    # 1.96 √(2 · 3 / (6 · 2)), in table 5 of Demšar
    assert "| critical difference (Nemenyi, 5 %) | 1.39 |" in render_markdown(results)
    # A seed that one row lacks is left out for all, not the data set.
    lacking = next(one for one in results.cells if one.cell.slug == "fesem-as-well-s1")
    lacking.run = None
    assert row_ranks(results).blocks == 2
    next(one for one in results.cells if one.cell.slug == "fesem-as-well-s0").run = None
    assert row_ranks(results) is None


@pytest.mark.parametrize(
    ("part", "slugs"),
    [
        ({"rows": ["Fed|Avg"]}, ["fed-avg-digits-s0", "fed-avg-digits-s1"]),
        ({"seeds": [1]}, ["fesem-digits-s1", "fed-avg-digits-s1"]),
        ({"rows": ["FeSEM"], "columns": ["digits"], "seeds": [0]}, ["fesem-digits-s0"]),
        ({}, SLUGS),
    ],
)
def test_a_part_of_a_table_is_run_alone_and_nothing_else_is_missed(compare, part, slugs):
    results, runner, _ = compare(part=part)

    assert runner.ran == slugs
    assert results.missing == []
    assert [result.cell.slug for result in results.cells if result.run is not None] == slugs
    # What is not missed is still not there, and the tables say so.
    assert (f"{4 - len(slugs)} of 4 cells have not been run yet." in render_markdown(results)) is (slugs != SLUGS)


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
    ],
)
def test_a_cell_that_was_tested_or_trained_otherwise_is_run_again(compare, other):
    compare()
    _, runner, said = compare("[base.simulation]", other)

    assert runner.ran == SLUGS  # a run may go on with it; a table would show a figure of another fleet
    assert f"{SLUGS[0]} was run with other settings" in said


def test_devices_without_a_score_are_said(compare, tmp_path):
    assert not [note for note in notes(compare()[0]) if "no score" in note]
    results, _, _ = compare()
    results.cells[0].run.summary["accuracy_by_client"].popitem()

    note = next(note for note in notes(results) if "no score" in note)
    assert note.startswith("FeSEM has no score of 1 devices that others have in digits (seeds 0): its mean")


def test_a_half_done_cell_is_run_anew_or_goes_on_from_its_checkpoint(compare, tmp_path):
    compare()
    cell = tmp_path / "out/cells" / SLUGS[0]
    for resume in (True, False):
        (cell / "summary.json").unlink()
        (cell / "checkpoint").mkdir()
        (cell / "checkpoint/round-2").touch()
        _, runner, _ = compare(resume=resume)
        assert runner.ran == [SLUGS[0]]
        assert runner.resumed == ([SLUGS[0]] if resume else [])
        assert (cell / "checkpoint").exists() == resume  # only a run that starts anew begins in an empty place
        if resume:
            (cell / "checkpoint/round-2").unlink()
            (cell / "checkpoint").rmdir()

    (cell / "summary.json").unlink()  # without a checkpoint there is nothing to go on from
    _, runner, _ = compare(resume=True)
    assert (runner.ran, runner.resumed) == ([SLUGS[0]], [])


def test_more_rounds_resume_what_is_shorter_and_fewer_start_anew(compare, tmp_path):
    compare()
    for slug in SLUGS:
        (tmp_path / "out/cells" / slug / "checkpoint").mkdir()
        (tmp_path / "out/cells" / slug / "checkpoint/round-3").touch()
    _, more, _ = compare("rounds = 3", "rounds = 5", resume=True)
    _, fewer, said = compare("rounds = 3", "rounds = 4", resume=True)

    assert more.resumed == SLUGS
    assert (fewer.ran, fewer.resumed) == (SLUGS, [])
    assert f"{SLUGS[0]} was run with other settings and is run again." in said


def test_a_shorter_cell_is_run_again_without_resume_and_that_is_said(compare):
    compare()
    _, runner, said = compare("rounds = 3", "rounds = 5")

    assert (runner.ran, runner.resumed) == (SLUGS, [])
    assert f"{SLUGS[0]} was run for fewer rounds and is run again." in said


def test_a_failed_cell_is_reported_and_the_others_go_on(compare):
    def before(name):
        if name == SLUGS[0]:
            raise CellFailed("The run exited with 1; the end of its log:\n[boom]")
        if name == SLUGS[1]:
            raise ZeroDivisionError("division by zero")

    results, runner, said = compare(before=before)

    assert runner.ran == SLUGS
    assert [result.cell.slug for result in results.failed] == SLUGS[:2]
    assert "failed  fesem-digits-s0" in said
    assert "[boom]" in said
    assert "ZeroDivisionError: division by zero" in said
    assert "| FeSEM | .920 (1/2) |" in render_markdown(results)
    assert "2 of 4 cells failed." in render_markdown(results)
    assert compare()[1].ran == SLUGS[:2]


def test_a_run_that_leaves_no_summary_has_failed(tmp_path, table, write_run):
    runner = FakeRunner(lambda out, settings, **options: write_run(out, settings, finished=False, **options))
    results = run_table(table(), tmp_path / "out", 1, runner, Console(file=io.StringIO()))

    assert len(results.failed) == 4
    assert "ended without a summary for these settings" in results.failed[0].error


@pytest.mark.parametrize("kill", [_thread.interrupt_main, lambda: os.kill(os.getpid(), signal.SIGTERM)])
def test_an_interrupt_stops_what_runs_and_keeps_what_is_done(tmp_path, table, write_run, kill):
    runner = FakeRunner(write_run)

    def before(name):
        if name == SLUGS[1]:
            kill()
            assert runner.stopped.wait(60)
            raise CellFailed("The run was ended by signal 2.")

    runner.before = before
    handler = signal.getsignal(signal.SIGTERM)
    results = run_table(table(), tmp_path / "out", 1, runner, Console(file=io.StringIO()))

    assert results.interrupted
    assert runner.ran == SLUGS[:2]
    assert [result.cell.slug for result in results.missing] == SLUGS[1:]
    assert (len(results.runs("FeSEM", "digits")), results.failed) == (1, [])
    assert "3 of 4 cells have not been run yet." in render_markdown(results)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_several_cells_run_at_once(compare):
    together = threading.Barrier(4, timeout=60)  # passes only when all four cells are there
    results, runner, _ = compare(before=lambda name: together.wait(), jobs=4)

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
    cut = tmp_path / "out/cells" / SLUGS[0]
    cut.mkdir(parents=True)
    for name in run_folder.EVERYTHING:
        (cut / name).touch()

    results, runner, _ = compare()
    assert runner.ran == SLUGS
    assert results.failed == []
    assert not (cut / run_folder.START).exists()


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
    assert cell_state(cell, folder) == "half-done"
    (folder / "summary.json").write_text("{}")  # it ended, in a release whose settings are others
    assert cell_state(cell, folder) == "other settings"
    write_run("cell", cell.settings.with_overrides({"run.rounds": 2}))
    assert cell_state(cell, folder) == "shorter"
    write_run("cell", cell.settings.with_overrides({"run.name": "another", "server.round_timeout": 9.0}))
    assert cell_state(cell, folder) == "done"


def test_jobs_by_default_leave_each_cell_its_cores(table, monkeypatch):
    monkeypatch.setattr("bouquet.experiments.comparison.run.available_cores", lambda: 8)

    assert default_jobs(table().cells) == 8
    assert default_jobs(table("rounds = 3", "rounds = 3\n[base.train]\nthreads = 3").cells) == 2
    assert default_jobs(table("rounds = 3", "rounds = 3\n[base.train]\nthreads = 0").cells) == 1
    assert default_jobs(table('engine = "inline"', 'engine = "ray"').cells) == 1


def test_the_tables_hold_mean_and_sample_deviation(compare, tmp_path):
    results, _, _ = compare()
    paths = write_results(results, tmp_path / "out")

    assert [path.name for path in paths] == ["table.md", "table.csv", "clients.csv", "compare.html"]
    text = paths[0].read_text()
    assert text.startswith(
        "# small\n\n"
        "Mean ± sample deviation over the seeds 0, 1; (k/n): only k of n seeds have a value.\n\n"
        f"{HOW}\n\n"
        "The table lacks Standalone; FedAvg, after local training; FedPer; Ditto, without which it does not say "
        'whether federation pays; rows = "standard" adds them.\n\n'
        "## accuracy_macro\n\n"
        "| strategy | digits |\n| --- | ---: |\n| FeSEM | .910 ± .014 |\n| Fed\\|Avg | .610 ± .014 |\n\n"
        "## bytes_up (MB)\n\n"
        "| strategy | digits |\n| --- | ---: |\n| FeSEM | 0.0024 ± 0.0000 |\n| Fed\\|Avg | 0.0024 ± 0.0000 |\n\n"
        "## rounds_to_accuracy_0.8\n\n"
        "| strategy | digits |\n| --- | ---: |\n| FeSEM | 3.0 ± 0.0 |\n| Fed\\|Avg | — (0/2) |\n"
    )
    rows = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    assert rows == list(csv.DictReader(io.StringIO(render_csv(results))))
    given = ("measure", "column", "row", "value", "deviation", "note")
    assert [rows[1][key] for key in given] == ["accuracy_macro", "digits", "Fed|Avg", ".610", ".014", ""]
    assert [rows[5][key] for key in given] == ["rounds_to_accuracy_0.8", "digits", "Fed|Avg", "", "", "— (0/2)"]
    against = next(row for row in rows if row["measure"] == "accuracy against Fed|Avg")
    assert [against[key] for key in given] == ["accuracy against Fed|Avg", "digits", "FeSEM", "+.300", "", "≈"]
    # Every client of the one is ahead by .3 in each seed: without a deviation nothing can be said of noise.
    assert "## accuracy against Fed|Avg\n" in text  # titles are no cells
    assert "| FeSEM | ≈ +.300 |" in text
    assert "critical difference" not in text  # of one data set, whatever its seeds, no rank is told
    assert "| FeSEM | received | uploaded models | 3 rounds of 2 epochs, batch 16 | 1 |\n" in text
    clients = list(csv.DictReader(io.StringIO(paths[2].read_text())))
    assert len(clients) == 2 * 2 * 4
    assert sum(float(one["accuracy"]) for one in clients if one["strategy"] == "FeSEM") / 8 == pytest.approx(0.91)
    page = paths[3].read_text()
    assert ".910 ± .014" in page
    assert "≈ +.300" in page
    assert page.count('src="data:image/svg+xml;base64,') == 2  # accuracy by round, and by bytes


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
        run_table(table(), tmp_path / "out", 1, runner, Console(file=io.StringIO()), check=check)
    assert runner.ran == []


def test_every_row_in_each_column_and_every_column_with_each_seed_is_checked_once(tmp_path, table, write_run):
    checked = []
    more = table("[[data]]", '[[data]]\nlabel = "others"\n[[data]]')
    console = Console(file=io.StringIO())
    run_table(more, tmp_path / "out", 1, FakeRunner(write_run), console, check=lambda s: checked.append(s.run.name))
    # With the second seed a column's data are new, and a row in it is not.
    assert checked == [
        *("fesem-others-s0", "fed-avg-others-s0", "fesem-digits-s0", "fed-avg-digits-s0"),
        *("fesem-others-s1", "fesem-digits-s1"),
    ]


def test_a_part_is_shown_alone(compare):
    results, _, _ = compare()
    part = results.part(["Fed|Avg"], [], [1])
    text = render_markdown(part)
    assert "Seed 1 only." in text
    assert "| Fed\\|Avg | .620 |" in text
    assert "FeSEM" not in text


def test_a_row_that_equals_another_to_the_digit_says_so(compare):
    twin = '[[strategy]]\nlabel = "twin"\nname = "fedavg"\nset = { "server.round_timeout" = 500 }\n[[data]]'
    results, _, _ = compare("[[data]]", twin)
    said = [note for note in notes(results) if "last digit" in note]
    assert said == ["twin is equal to Fed|Avg to the last digit."]


def test_a_row_that_equals_another_in_one_column_says_where_and_why(tmp_path, table, write_run):
    class OneClusterOnIID(FakeRunner):
        def __call__(self, settings, out, *, resume=False):
            if settings.data.partition != "iid":
                return super().__call__(settings, out, resume=resume)
            rounds = settings.run.rounds
            self.write(out, settings, clients=4, groups=None, rounds=rounds, accuracy=0.5 + 0.02 * settings.run.seed)

    iid = '[[data]]\nlabel = "IID"\nclients = 4\n[[data]]'
    console = Console(file=io.StringIO())
    results = run_table(table("[[data]]", iid), tmp_path / "out", 1, OneClusterOnIID(write_run), console)
    assert [note for note in notes(results) if "last digit" in note] == [
        "Fed|Avg is equal to FeSEM to the last digit in IID: Fed|Avg and FeSEM ended with one cluster in each run."
    ]


def test_all_claims_of_a_table_hold_together(compare, monkeypatch):
    """FeSEM against either reference, and these against each other."""
    results, _, _ = compare("[[data]]", '[[strategy]]\nlabel = "alone"\nname = "standalone"\n[[data]]')
    one = Difference(0.1, 0.05, 0.15, seeds=2, ahead=2, pairs=8, p_value=0.02)
    monkeypatch.setattr(claims, "paired_difference", lambda *_: one)
    assert [d.p_value for d in claims.differences(results).values()] == [0.08] * 4
    part = claims.differences(results.part(["FeSEM", "Fed|Avg"], [], []))
    assert {key: d.p_value for key, d in part.items()} == {("FeSEM", "digits", "Fed|Avg"): 0.08}  # still of four


SCORES = {  # three seeds of two clients
    ("FeSEM", "IID"): [[0.5, 0.7], [0.6, 0.8], [0.6, 0.6]],
    ("FeSEM", "rotated"): [[0.9, 0.9], [0.8, 0.8], [0.7, 0.9]],
    ("Fed|Avg", "IID"): [[0.4, 0.6], [0.4, 0.6], [0.5, 0.5]],
    ("Fed|Avg", "rotated"): [[0.9, 0.9], [0.9, 0.9], [0.8, 0.9]],
    ("alone", "IID"): [[0.51, 0.71], [0.609, 0.809], [0.608, 0.608]],
    ("alone", "rotated"): [[0.8, 0.6], [0.8, 0.65], [0.8, 0.7]],
}


@pytest.fixture
def claiming(table, monkeypatch):
    """Results of which all that is known is ``SCORES``."""

    def scores(results, row, column):
        return {seed: dict(zip("ab", two, strict=True)) for seed, two in enumerate(SCORES[row, column])}

    monkeypatch.setattr(claims, "by_seed", scores)

    def make(rows, asked):
        columns = '[[data]]\nlabel = "IID"\npartition = "iid"\n[[data]]\nlabel = "rotated"\npartition = "rotated"\n'
        more = '[[strategy]]\nlabel = "alone"\nname = "standalone"\n' if rows == 3 else ""
        grid = GRID.replace("seeds = [0, 1]", f"seeds = [0, 1, 2]\nclaims = {json.dumps(asked)}", 1).replace(
            "[[data]]", f"{more}{columns}#", 1
        )
        return Results(table(GRID, grid.partition("#")[0]))

    return make


def test_a_claim_is_of_the_mean_of_the_columns_paired_by_seed(claiming):
    found = claims.differences_in_the_mean(claiming(2, ["FeSEM"]))["FeSEM", "Fed|Avg"]
    by_seed = [(0.1 + 0.0) / 2, (0.2 - 0.1) / 2, (0.1 - 0.05) / 2]
    assert found.mean == pytest.approx(np.mean(by_seed))
    assert (found.seeds, found.p_value) == (3, pytest.approx(stats.ttest_1samp(by_seed, 0).pvalue))


@pytest.mark.parametrize(("asked", "p", "of"), [(["FeSEM"], 0.0377 * 2, 2), (["FeSEM", "alone"], 0.0377 * 4, 4)])
def test_all_claims_of_the_mean_hold_together(claiming, asked, p, of):
    results = claiming(3, asked)
    found = claims.differences_in_the_mean(results)
    assert len(found) == of
    assert found["FeSEM", "Fed|Avg"].p_value == pytest.approx(p, rel=2e-3)
    text = render_markdown(results)
    assert "## FeSEM against, mean of columns\n" in text
    assert f"| Fed\\|Avg | ≈ +.042 [+.006, +.078], p .{round(1000 * p):03d} |\n" in text
    assert f"FeSEM against, mean of columns,all,Fed|Avg,+.042,,+.006,+.078,.{round(1000 * p):03d},≈" in (
        render_csv(results).replace('"', "")
    )
    part = replace(results, table=results.table.narrowed(["FeSEM", "Fed|Avg"], [], []), whole=results.table)
    assert claims.differences_in_the_mean(part)["FeSEM", "Fed|Avg"].p_value == pytest.approx(p, rel=2e-3)


def test_a_claim_is_of_a_row_that_is_there(table):
    for asked, why in (
        ('["FedAvg"]', "claims holds 'FedAvg', which is no row; nearest is 'Fed|Avg'."),
        ('["FeSEM", "FeSEM"]', "claims holds 'FeSEM' twice."),
    ):
        with pytest.raises(BouquetError) as error:
            table("seeds", f"claims = {asked}\nseeds")
        assert str(error.value).endswith(why)


def test_a_reference_is_a_row_that_serves_what_its_method_sent(table):
    mixed = '[[strategy]]\nlabel = "mixed"\nname = "fedavg"\nset = { "personal.serve" = "mixture" }\n[[strategy]]'
    assert references(table("[[strategy]]", mixed)) == ["Fed|Avg"]


def test_one_table_of_rows_by_metrics_for_the_terminal_a_paper_and_a_program(table, compare):
    console = Console(file=io.StringIO(), width=100)
    results = compare()[0]
    print_results(results, console)
    said = console.file.getvalue()

    assert [said.count(text) for text in ("accuracy_macro", "bytes_up (MB)", "Fed|Avg", ".910 ± .014")] == [1, 1, 4, 1]
    heads, *lines = csv.reader(io.StringIO(csv_table(results)))
    assert heads == ["data", "strategy", *(metric.title for metric in results.table.metrics)]
    assert [line[:2] for line in lines] == [[*results.table.data, row] for row in results.table.strategies]
    assert sum(".910 ± .014" in line for line in lines) == 1
    latex = latex_table(results)
    assert latex.count(" \\\\\n") == len(lines) + 1
    assert "accuracy\\_macro & " in latex
    assert " & .910 $\\pm$ .014" in latex


def test_signs_of_latex_in_a_label_are_text_there(compare):
    results = compare('label = "Fed|Avg"', 'label = "50 % of R&D_{x}\\\\"')[0]
    assert "50 \\% of R\\&D\\_\\{x\\}\\textbackslash{} & " in latex_table(results)


def test_the_columns_of_each_partition_are_a_table_of_their_own(compare):
    partitions = """[[partition]]
partition = "rotated"
groups = 2
[[partition]]
label = "IID"
partition = "iid"
"""
    results, _, _ = compare('partition = "rotated"\nclients = 4\ngroups = 2\n', f"clients = 4\n{partitions}")
    text = render_markdown(results)
    assert "## accuracy_macro: rotated\n\n| strategy | digits |" in text
    assert "## accuracy_macro: IID\n\n| strategy | digits |" in text
    assert "## accuracy_macro\n" not in text
    assert "## protocol\n" in text  # whose heads are not the columns
    assert "accuracy_macro,IID: digits,FeSEM," in render_csv(results)
