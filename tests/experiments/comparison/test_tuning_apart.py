"""What is chosen on and what is tested on are apart; mistakes in [tune] are named."""

import io

import pytest
from rich.console import Console

from bouquet.client.data.loading import part_of
from bouquet.client.data.own import load_table as load_own_table
from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.run import CellResult, Results
from bouquet.experiments.comparison.table import TableError, tuning_table
from bouquet.experiments.comparison.tables import render_markdown
from bouquet.experiments.comparison.tuning import check_apart, run_comparison, tuning_notes
from bouquet.experiments.simulation.run import check, simulate
from tests.helpers.small_table import FakeRunner
from tests.helpers.tuned_table import TUNED, taken


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
        ('"strategy.proximal_mu"', '"strategy.mu"', r"Unknown setting strategy\.mu; the hyper-parameters of 'fedprox'"),
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
        path, base = tmp_path / "table.toml", TUNED[TUNED.index("test_samples") : TUNED.index("[base.sim")]
        column = f'dataset = "{tmp_path / "data_to_tune.py"}:{data}"\npartition = "{rule}"\n{given}\n'
        path.write_text(TUNED.replace(base, column))
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
    base = TUNED[TUNED.index("[base.data]") : TUNED.index("[base.sim")]
    path = tmp_path / "table.toml"
    path.write_text(TUNED.replace(base, "").replace("clients = 4", own).replace("clients = 5", own))
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
    class Runner(FakeRunner):
        def make(self, settings, out):
            simulate(settings, out)

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
    results = run_comparison(load_table(path), tmp_path / "out", 1, console, check=check, begin=Runner(None))
    assert taken(results) == {("fedavg", "digits"): 0.1, ("ditto", "digits"): 0.1}
    assert results.every_failed == results.missing == []
    assert "| ditto | personal | – | 3 rounds of 2 epochs, batch 16 | 2 |" in render_markdown(results)
