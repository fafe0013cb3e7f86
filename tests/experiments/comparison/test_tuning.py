"""Tables with ``[tune]``: what is run to choose, on what, and what the table's cells then take."""

import _thread
import io
import json
import threading

import pytest
from rich.console import Console

from bouquet.client.data.loading import part_of
from bouquet.client.data.own import load_table as load_own_table
from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison import tables
from bouquet.experiments.comparison.cell_process import CellFailed
from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.run import CellResult, Results
from bouquet.experiments.comparison.table import TableError, tuning_table
from bouquet.experiments.comparison.tables import render_csv, render_html, render_markdown, write_results
from bouquet.experiments.comparison.tuning import check_apart, run_comparison, tuning_notes
from bouquet.experiments.comparison.tuning_grids import choose
from bouquet.experiments.simulation.run import check, simulate

GRID = """
name = "small"
seeds = [0, 1]
[tune]
seeds = [100, 101]
"train.learning_rate" = [0.2, 0.05, 0.1]
[base.run]
rounds = 3
[base.data]
test_samples = 20
reserved_fraction = 0.2
[base.simulation]
engine = "inline"
[[strategy]]
label = "FedAvg"
name = "fedavg"
[[strategy]]
label = "FedAvg, after local training"
name = "fedavg"
tested = "trained"
[[strategy]]
label = "Prox"
name = "fedprox"
tune = { "strategy.proximal_mu" = [0.01, 1.0] }
[[data]]
label = "digits"
clients = 4
[[data]]
label = "more"
clients = 5
"""
# What each row does with each step size: as received, and after local training.
RECEIVED = {0.05: 0.5, 0.1: 0.7, 0.2: 0.6}
TRAINED = {0.05: 0.9, 0.1: 0.6, 0.2: 0.5}
TUNING = 2 * 2 * (3 + 6)  # seeds, columns, values of FedAvg, which the row beside it shares, and of Prox


class FakeRunner:
    """Writes a made-up run; on the table's seeds the worst step size is the best."""

    def __init__(self, write, edit, before):
        self.write, self.edit, self.before = write, edit, before
        self.ran, self.stopped = [], threading.Event()

    def __call__(self, settings, out, *, resume=False):
        self.ran.append(settings.run.name)
        self.before(settings)
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

    def stop(self):
        self.stopped.set()


@pytest.fixture
def load(tmp_path):
    def read(old="", new="", check=lambda settings: None):
        assert old in GRID
        path = tmp_path / "table.toml"
        path.write_text(GRID.replace(old, new, 1))
        return load_table(path, check)

    return read


@pytest.fixture
def compare(tmp_path, load, write_run, edit_round):
    """Run a part of the table, changed by ``old`` and ``new``; gives the results, the runner and what was said."""

    def run(old="", new="", before=lambda settings: None, part=((), (), ()), check=None):
        runner, console = FakeRunner(write_run, edit_round, before), Console(file=io.StringIO(), width=300)
        table = load(old, new)
        results = run_comparison(table, tmp_path / "out", 1, runner, console, part=part, check=check)
        return results, runner, console.file.getvalue()

    return run


def taken(results):
    """(row, column) → the step size of its cells that were run."""
    return {
        (one.cell.strategy, one.cell.data): one.run.settings.train.learning_rate for one in results.cells if one.run
    }


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


def test_a_part_is_tuned_alone_and_what_is_not_tuned_is_not_shown(compare, tmp_path, write_run, load):
    base = ("[base.run]", "[base.train]\nlearning_rate = 0.3\n[base.run]")
    for cell in load(*base).cells:  # run untuned, with the settings that the table has without its choices
        write_run(tmp_path / "out/cells" / cell.slug, cell.settings, clients=4, accuracy=1.0)
    row = "FedAvg, after local training"
    results, runner, _ = compare(*base, part=((row,), ("digits",), (0,)))

    assert len(runner.ran) == 2 * 3 + 1  # the seeds to tune on are all run
    assert runner.ran[-1] == "fedavg-after-local-training-digits-s0"
    assert taken(results) == {(row, "digits"): 0.05}
    assert results.missing == []
    assert "4 of 6 rows and columns are not tuned yet, and have no cells." in render_markdown(results)
    assert f"| {row} | .050 (1/2) |" in render_markdown(results)


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
            raise CellFailed("The run was ended by signal 2.")

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
            raise CellFailed("[boom]")

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


def test_a_part_does_not_forget_what_failed_in_another_row(compare):
    def fail(settings):
        if settings.strategy.name == "fedprox" and settings.train.learning_rate == 0.2 and settings.run.seed >= 100:
            raise CellFailed("[boom]")

    whole, _, _ = compare(before=fail)
    part, runner, _ = compare(part=(("FedAvg",), (), ()))
    assert runner.ran == []
    assert part.table.choices == whole.table.choices
    assert render_markdown(part) == render_markdown(whole)
    assert (len(whole.failed_now), part.failed_now) == (8, [])
    again, runner, _ = compare()
    assert {one.cell.slug for one in whole.failed_now} <= set(runner.ran)
    assert again.every_failed == []


def test_what_failed_with_other_settings_is_as_if_it_had_not_been_run(compare):
    def fail(settings):
        raise CellFailed("[boom]")

    compare(before=fail)
    part, runner, _ = compare("rounds = 3", "rounds = 4", part=(("FedAvg",), (), ()))
    assert not any(name.startswith("prox") for name in runner.ran)
    assert part.every_failed == []


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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[100, 101]", "[100, 1]", "tune.seeds holds 1, which is a seed of the table; give others than 0, 1"),
        ("[100, 101]", "[100, 100]", r"tune\.seeds holds 100 twice"),
        ("[100, 101]", '["a"]', r"tune\.seeds\.0 = 'a': input should be a valid integer"),
        ("[100, 101]", "[]", r"tune\.seeds = \[\]: list should have at least 1 item"),
        ("seeds = [100, 101]\n", "", r"The key 'tune\.seeds' is missing; \[tune\] has seeds and, in quotes, settings"),
        ('"train.learning_rate" = [0.2, 0.05, 0.1]\n', "", r"\[tune\] has no setting to choose; give one, such as"),
        ("[0.2, 0.05, 0.1]", "[]", r"\[tune\] has train\.learning_rate = \[\]; expected a list of the values to try"),
        ("[0.2, 0.05, 0.1]", "0.2", r"\[tune\] has train\.learning_rate = 0\.2; expected a list of the values to try"),
        ("[0.2, 0.05, 0.1]", "[0.2, 0.2]", r"which holds 0\.2 twice"),
        (
            "[0.2, 0.05, 0.1]",
            '["fast"]',
            r"'FedAvg, train\.learning_rate = fast'.*Setting train\.learning_rate = 'fast'",
        ),
        ("[0.2, 0.05, 0.1]", "[0.2, -1]", r"Setting train\.learning_rate = -1: input should be greater than 0"),
        (
            '"train.learning_rate"',
            '"train.step"',
            r"Unknown setting 'train\.step'; the section 'train' has local_epochs",
        ),
        (
            '"train.learning_rate"',
            "train.learning_rate",
            r"\[tune\] has the key 'train'; .* train, strategy, in quotes",
        ),
        (
            '"train.learning_rate"',
            '"run.rounds"',
            r"\[tune\] has the key 'run\.rounds'; what may be chosen are settings",
        ),
        ('"strategy.proximal_mu"', '"strategy.name"', r"'Prox': tune has the key 'strategy\.name'"),
        (
            '"strategy.proximal_mu"',
            '"strategy.mu"',
            r"Unknown setting strategy\.mu; the hyper-parameters of 'fedprox'",
        ),
        ('tune = { "strategy.proximal_mu" = [0.01, 1.0] }', "tune = 3", r"'Prox': tune has no setting to choose"),
        (
            'tested = "trained"',
            'set = { "train.learning_rate" = 1 }',
            r"\[\[strategy\]\] 'FedAvg, after .*' sets train",
        ),
        (
            "clients = 5",
            'clients = 5\nset = { "train.learning_rate" = 1 }',
            r"\[\[data\]\] 'more' sets train\.learning",
        ),
        (
            '[tune]\nseeds = [100, 101]\n"train.learning_rate" = [0.2, 0.05, 0.1]',
            "",
            r"\[\[strategy\]\] 'Prox' has tune, and the table no \[tune\]",
        ),
    ],
)
def test_a_mistake_is_named_with_key_value_and_what_is_allowed(load, old, new, message):
    from bouquet.experiments.comparison.grid import check_strategy

    with pytest.raises(TableError, match=message) as caught:
        load(old, new, check_strategy)
    assert "table.toml" in str(caught.value)


def test_every_cell_of_the_table_is_checked_before_anything_is_tuned(compare):
    def refuse(settings):
        if settings.run.seed == 1:
            raise BouquetError("This cannot be.")

    with pytest.raises(BouquetError, match=r"Nothing was run(?s:.*)fedavg-digits-s1: This cannot be\."):
        compare(check=refuse, before=lambda settings: pytest.fail("run"))


DATA = """
import numpy as np
from bouquet.common.data.catalog import DatasetInfo, described
from bouquet.common.data.datasets import Dataset

def samples(owners=None, **test):
    x, y = np.arange(400, dtype=np.float32).reshape(400, 1, 1, 1), np.arange(400) % 2
    return Dataset("whole", x, y, owners=owners, **test)

@described(DatasetInfo(input_shape=(1, 1, 1), num_classes=2))
def whole(data_dir):
    return samples(test_x=np.arange(900, 980, dtype=np.float32).reshape(80, 1, 1, 1), test_y=np.arange(80) % 2)

@described(DatasetInfo(input_shape=(1, 1, 1), num_classes=2))
def persons(data_dir):
    return samples(np.arange(400) // 40)

@described(DatasetInfo(input_shape=(1, 1, 1), num_classes=2))
def both(data_dir):
    return samples(np.arange(400) // 40, test_x=np.zeros((80, 1, 1, 1), np.float32), test_y=np.arange(80) % 2)
"""


@pytest.fixture
def own_data(tmp_path):
    """The table with columns of one of the data sets above."""

    def read(data, rule, given):
        (tmp_path / "data_to_tune.py").write_text(DATA)
        path, base = tmp_path / "table.toml", GRID[GRID.index("test_samples") : GRID.index("[base.sim")]
        column = f'dataset = "{tmp_path / "data_to_tune.py"}:{data}"\npartition = "{rule}"\n{given}\n'
        path.write_text(GRID.replace(base, column))
        return load_table(path)

    return read


@pytest.mark.parametrize(
    ("data", "rule", "given", "lacks"),
    [
        ("whole", "iid", "", r"Set data\.test_samples, e\.g\. to 400, in"),
        (
            "persons",
            "natural",
            "",
            r"Set data\.test_samples, e\.g\. to 400 and data\.reserved_fraction, e\.g\. to 0\.2, in",
        ),
        ("persons", "natural", "test_samples = 20", r"Set data\.reserved_fraction, e\.g\. to 0\.2, in \[base\.data\]"),
        ("persons", "iid", "test_samples = 20", r"Set data\.reserved_fraction, e\.g\. to 0\.2, in \[base\.data\]"),
        # Each owner is tested on samples of its own: the official test part is not used.
        ("both", "natural", "test_samples = 20", r"Set data\.reserved_fraction, e\.g\. to 0\.2, in \[base\.data\]"),
        ("persons", "iid", "reserved_fraction = 0.2", r"Set data\.test_samples, e\.g\. to 400, in \[base\.data\]"),
    ],
)
def test_a_table_that_may_test_on_what_was_chosen_on_is_refused(own_data, tmp_path, data, rule, given, lacks):
    with pytest.raises(BouquetError, match=lacks):
        run_comparison(own_data(data, rule, given), tmp_path / "out", 1, None, Console(file=io.StringIO()))


BOTH = "test_samples = 20\nreserved_fraction = 0.3"


@pytest.mark.parametrize(
    ("data", "rule", "given"),
    [("whole", "iid", "test_samples = 20"), ("persons", "iid", BOTH), ("persons", "natural", BOTH)],
)
def test_no_sample_that_is_chosen_on_is_tested_on_by_the_table(own_data, data, rule, given):
    table = own_data(data, rule, given)
    shown, chosen_on, trained = set(), set(), set()
    for cell in (*table.cells, *tuning_table(table).cells):
        check_apart(cell.settings.data.model_copy(update={"test_samples": 20}), cell.data)
        for number in range(cell.settings.data.clients):
            part = part_of(cell.settings, number)
            (shown if cell.seed < 100 else chosen_on).update(part.test_x.ravel().tolist())
            trained.update(part.train_x.ravel().tolist())
    assert len(shown) > 30
    assert len(chosen_on) > 30
    assert not shown & (chosen_on | trained)


def test_of_devices_own_data_the_notes_say_that_nothing_is_apart(tmp_path):
    for client in "ab":
        (tmp_path / "own" / client).mkdir(parents=True)
    own = f'dataset = "own"\ndata_dir = "{tmp_path / "own"}"\nclasses = ["a", "b"]\ninput_shape = [1, 2, 2]'
    base = GRID[GRID.index("[base.data]") : GRID.index("[base.sim")]
    path = tmp_path / "table.toml"
    path.write_text(GRID.replace(base, "").replace("clients = 4", own).replace("clients = 5", own))
    table = load_table(path, lambda settings: None)
    results = Results(table, [CellResult(cell) for cell in table.cells])
    said = "digits, more: chosen on devices' own samples, which the table may test on under another seed."
    assert said in tuning_notes(results)


def test_what_is_of_the_cut_or_later_is_not_read_in_tuning(tmp_path):
    (tmp_path / "own").mkdir()
    for client in "abcd":
        rows = "".join(f"{day},{day * 10},{day}\n" for day in range(1, 29))
        (tmp_path / "own" / f"{client}.csv").write_text("t,a,b\n" + rows)
    about = f"""
        name = "own"
        seeds = [0]
        metrics = ["mae_macro"]
        [tune]
        seeds = [100]
        "train.learning_rate" = [0.1, 0.2]
        [base.task]
        kind = "regression"
        [base.data]
        dataset = "own"
        data_dir = "{tmp_path / "own"}"
        clients = 4
        [base.table]
        inputs = ["a"]
        targets = ["b"]
        time = ["t"]
        cut = "1970-01-01T00:00:20"
        [[strategy]]
        label = "FedAvg"
        name = "fedavg"
        [[data]]
        label = "days"
    """
    path = tmp_path / "table.toml"
    path.write_text(about)
    table = load_table(path, lambda settings: None)

    def read(cell):
        data = load_own_table(tmp_path / "own" / "a.csv", cell.settings)
        return [sorted(data.scaling.undone(y).round().ravel()) for y in (data.train_y, data.test_y)]

    assert read(table.cells[0]) == [list(range(1, 20)), list(range(20, 29))]
    trained, tested = read(tuning_table(table).cells[0])
    assert trained + tested == list(range(1, 20))
    assert tested == [16, 17, 18, 19]
    said = tuning_notes(Results(table, [CellResult(cell) for cell in table.cells]))
    assert not any("may test on" in note for note in said)


def test_a_real_table_is_tuned_on_digits(tmp_path):
    class Runner:
        def __call__(self, settings, out, *, resume=False):
            simulate(settings, out)

        def stop(self):
            raise AssertionError

    path = tmp_path / "table.toml"
    path.write_text("""
        name = "real"
        seeds = [3]
        [tune]
        seeds = [7]
        "train.learning_rate" = [0.0001, 0.1]
        [base.run]
        rounds = 3
        [base.data]
        test_samples = 50
        reserved_fraction = 0.2
        [base.simulation]
        engine = "inline"
        [[strategy]]
        name = "fedavg"
        [[strategy]]
        name = "ditto"
        [[data]]
        label = "digits"
        clients = 3
        samples_per_client = 60
    """)
    console = Console(file=io.StringIO())
    results = run_comparison(load_table(path), tmp_path / "out", 1, Runner(), console, check=check)
    assert taken(results) == {("fedavg", "digits"): 0.1, ("ditto", "digits"): 0.1}
    assert results.every_failed == results.missing == []
    assert "| ditto | personal | – | 3 rounds of 2 epochs, batch 16 | 2 |" in render_markdown(results)
