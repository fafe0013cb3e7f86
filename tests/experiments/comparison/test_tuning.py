"""Tables with ``[tune]``: what is run to choose, on what, and what the table's cells then take."""

import _thread
import io
import json
import time

import pytest
from rich.console import Console

from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison import tables
from bouquet.experiments.comparison.tables import render_csv, render_html, render_markdown, write_results
from bouquet.experiments.comparison.tuning import run_comparison
from bouquet.experiments.comparison.tuning_grids import choose
from tests.helpers.small_table import FakeRunner
from tests.helpers.tuned_table import taken

# What each row does with each step size: as received, and after local training.
RECEIVED = {0.05: 0.5, 0.1: 0.7, 0.2: 0.6}


TRAINED = {0.05: 0.9, 0.1: 0.6, 0.2: 0.5}


TUNING = 2 * 2 * (3 + 6)  # seeds, columns, values of FedAvg, which the row beside it shares, and of Prox


class TuningRunner(FakeRunner):
    """On the table's seeds the worst step size is the best; ``before`` is called with a cell's settings."""

    def __init__(self, write, edit, before):
        super().__init__(write)
        self.edit, self.look = edit, before

    def make(self, settings, out):
        self.look(settings)
        sign = 1 if settings.run.seed >= 100 else -1
        rate = settings.train.learning_rate
        accuracy, trained = 0.5 + sign * RECEIVED[rate] / 2, 0.5 + sign * TRAINED[rate] / 2
        if settings.strategy.name == "fedprox" and settings.strategy.options["proximal_mu"] == 1.0:
            accuracy -= 0.2
        if settings.data.clients == 5:
            accuracy = 1 - accuracy
        self.write(out, settings, clients=settings.data.clients, rounds=settings.run.rounds, accuracy=accuracy)
        clients = [f"client-{i}" for i in range(settings.data.clients)]
        self.edit(out, settings.run.rounds, by_client={name: {"accuracy_trained": trained} for name in clients})


@pytest.fixture
def compare(tmp_path, load, write_run, edit_round):
    """Run the table, changed by ``old`` and ``new``; gives the results, the runner and what was said."""

    def run(old="", new="", before=lambda settings: None, check=None):
        runner, console = TuningRunner(write_run, edit_round, before), Console(file=io.StringIO(), width=300)
        table = load(old, new)
        results = run_comparison(table, tmp_path / "out", 1, console, check=check, begin=runner)
        return results, runner, console.file.getvalue()

    return run


CHOSEN = {
    ("FedAvg", "digits"): 0.1,
    ("FedAvg, after local training", "digits"): 0.05,
    ("Prox", "digits"): 0.1,
    ("FedAvg", "more"): 0.05,
    ("FedAvg, after local training", "more"): 0.05,
    ("Prox", "more"): 0.05,
}


def test_each_row_takes_in_each_column_what_was_best_on_the_tune_seeds(compare, tmp_path):
    results, runner, said = compare()

    assert taken(results) == CHOSEN
    assert len(runner.ran) == TUNING + 2 * 2 * 3
    assert runner.ran[0] == "fedavg-digits-learning-rate-0-05-s100"
    assert runner.ran[3] == "prox-digits-learning-rate-0-05-proximal-mu-0-01-s100"
    assert runner.ran[TUNING:][:3] == ["fedavg-digits-s0", "fedavg-after-local-training-digits-s0", "prox-digits-s0"]
    assert sorted(path.name for path in (tmp_path / "out/tune/cells").iterdir()) == sorted(runner.ran[:TUNING])
    assert f"Tuning is {TUNING} cells on the seeds 100, 101, then 12 are run." in said
    weights = {one.cell.data: one.run.settings.strategy.options for one in results.cells if one.cell.strategy == "Prox"}
    assert weights == {"digits": {"proximal_mu": 0.01}, "more": {"proximal_mu": 1.0}}

    again, idle, _ = compare()
    assert idle.ran == []
    assert render_csv(again) == render_csv(results)


def test_what_was_chosen_is_in_the_tables_and_files(compare, tmp_path):
    results, _, _ = compare()
    write_results(results, tmp_path / "out")
    text = (tmp_path / "out/table.md").read_text()
    assert (
        "## chosen\n\n| strategy | digits | more |\n"
        "| --- | ---: | ---: |\n| FedAvg | learning_rate 0.1 | learning_rate 0.05 (end) |\n"
    ) in text
    assert "| Prox | learning_rate 0.1, proximal_mu 0.01 (end) |" in text
    assert "train.learning_rate were chosen for each row and column by the best mean accuracy_macro" in text
    assert "on the seeds 100, 101, which the table does not show." in text
    assert (
        "At an end of its grid, so that a better value may lie beyond: strategy.proximal_mu in 2 of 2 choices, "
        "1 at the least and 1 at the greatest; "
        "train.learning_rate in 4 of 6 choices, 4 at the least and 0 at the greatest."
    ) in text
    assert "| FedAvg | received | – | 3 rounds of 2 epochs, batch 16 | 1 |" in text

    tuned = json.loads((tmp_path / "out/tuned.json").read_text())
    assert tuned["seeds"] == [100, 101]
    first = tuned["chosen"][0]
    assert (first["row"], first["data"], first["values"]) == ("FedAvg", "digits", {"train.learning_rate": 0.1})
    assert first["at_end_of_grid"] == []
    assert [one["values"]["train.learning_rate"] for one in first["tried"]] == [0.05, 0.1, 0.2]
    assert first["tried"][1]["accuracy_by_seed"] == {"100": pytest.approx(0.85), "101": pytest.approx(0.85)}


def test_one_tune_seed_is_called_one(compare):
    _, _, said = compare("seeds = [100, 101]", "seeds = [100]")
    assert "cells on the seed 100, then" in said


def test_a_row_of_trained_models_is_not_plotted_as_received(compare, monkeypatch):
    seen = []
    monkeypatch.setattr(tables, "compared_by_round", lambda title, axis, runs, of: seen.append(set(runs)))
    tables.plots_of_results(compare()[0])
    assert seen == [{"FedAvg", "Prox"}] * 2  # of two columns


def test_the_tables_own_cells_are_never_read_to_choose(compare, tmp_path, write_run):
    before, _, _ = compare()
    for result in before.cells:  # all the same, and better than whatever was tried
        write_run(tmp_path / "out/cells" / result.cell.slug, result.cell.settings, clients=4, accuracy=1.0)
    after, runner, _ = compare()

    assert runner.ran == []
    assert after.table.choices == before.table.choices


def test_other_values_are_run_and_what_they_change(compare):
    compare()
    results, runner, said = compare("[0.2, 0.05, 0.1]", "[0.2, 0.05]")

    # What was tried is there; FedAvg and Prox take the second best on digits.
    assert runner.ran == ["fedavg-digits-s0", "prox-digits-s0", "fedavg-digits-s1", "prox-digits-s1"]
    assert taken(results)["FedAvg", "digits"] == 0.2
    assert "fedavg-digits-s0 was run with other settings and is run again." in said


@pytest.mark.parametrize(
    ("at", "chosen", "left"),
    [
        ("fedavg-digits-learning-rate-0-1-s101", 0, 12),
        ("prox-more-learning-rate-0-2-proximal-mu-1-0-s101", 5, 12),  # what is chosen already waits for the others
        ("prox-more-s1", 6, 1),
    ],
)
def test_what_was_interrupted_goes_on_where_it_was(compare, tmp_path, at, chosen, left):
    def interrupt(settings):
        if settings.run.name == at:
            _thread.interrupt_main()
            time.sleep(60)

    results, runner, _ = compare(before=interrupt)
    assert results.interrupted
    assert runner.ran[-1] == at
    assert len(json.loads((tmp_path / "out/tuned.json").read_text())["chosen"]) == chosen
    assert len(results.missing) == left
    again, rest, _ = compare()
    assert sorted(runner.ran[:-1] + rest.ran) == sorted({*runner.ran, *rest.ran})
    assert len(runner.ran[:-1] + rest.ran) == TUNING + 12
    assert taken(again) == CHOSEN


def test_a_value_that_fails_is_not_chosen_and_what_has_none_is_not_run(compare):
    def fail(settings):
        at_best = settings.train.learning_rate == 0.1 and settings.run.seed == 101 and settings.data.clients == 4
        if (at_best or settings.strategy.name == "fedprox") and settings.run.seed >= 100:
            raise BouquetError("[boom]")

    results, runner, _ = compare(before=fail)
    assert taken(results)["FedAvg", "digits"] == 0.2
    assert not any(name.startswith("prox") for name in runner.ran[TUNING:])
    text = render_markdown(results)
    assert "25 tuning cells failed; a value that failed is not chosen: " in text
    assert "## Failed: fedavg-digits-learning-rate-0-1-s101\n\n```\n[boom]" in text
    assert "fedavg-digits-learning-rate-0-1-s101" in render_html(results)
    assert {one.cell.strategy for one in results.missing} == {"Prox"}
    assert len(results.every_failed) == 25
    assert len(results.missing) == 4


def test_of_equals_the_one_in_the_middle_is_chosen():
    grid = {"train.learning_rate": (0.01, 0.02, 0.05, 0.1, 0.2)}

    def best(*accuracies):
        tried = [({"train.learning_rate": rate}, one) for rate, one in zip(*grid.values(), accuracies, strict=True)]
        return choose(grid, tried)

    equal = best(*[[0.5, 0.5]] * 5)
    assert (equal.values, equal.at_end) == ({"train.learning_rate": 0.05}, ())
    assert best([0.6], [0.6], [0.5], [0.6], [0.6]).values == {"train.learning_rate": 0.02}  # the first of two as near
    assert best([0.6], [0.5], [0.5], [0.5], [0.7]).at_end == ("train.learning_rate",)
    assert best([0.6, 0.6], [0.9, None], [0.5, 0.5], [0.1, 0.1], [0.1, 0.1]).values == {"train.learning_rate": 0.01}
    assert best(*[[None]] * 5) is None


def test_every_cell_of_the_table_is_checked_before_anything_is_tuned(compare):
    def refuse(settings):
        if settings.run.seed == 1:
            raise BouquetError("This cannot be.")

    with pytest.raises(BouquetError, match=r"Nothing was run(?s:.*)fedavg-digits-s1: This cannot be\."):
        compare(check=refuse, before=lambda settings: pytest.fail("run"))
