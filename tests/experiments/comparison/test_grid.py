import pytest

from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.table import TableError

GRID = """
name = "small"
seeds = [5, 6]
metrics = ["accuracy_macro", "rounds_to_accuracy_0.8"]
[base.run]
rounds = 3
[base.train]
local_epochs = 1
batch_size = 8
[[strategy]]
label = "FeSEM (3)"
name = "fesem"
num_clusters = 3
set = { "train.local_epochs" = 4 }
[[strategy]]
name = "fedavg"
[[data]]
dataset = "digits"
clients = 4
set = { "train.batch_size" = 32, "train.local_epochs" = 2 }
[[partition]]
partition = "rotated"
groups = 2
[[partition]]
label = "β = 0.1"
partition = "dirichlet"
beta = 0.1
"""


@pytest.fixture
def load(tmp_path):
    """Load a table from text; ``old`` and ``new`` replace a part of it first."""

    def read(text=GRID, old="", new="", check=lambda settings: None):
        assert old in text
        path = tmp_path / "table.toml"
        path.write_text(text.replace(old, new, 1))
        return load_table(path, check)

    return read


def test_the_grid_has_a_cell_for_each_combination_seed_by_seed(load):
    table = load()

    assert table.strategies == ("FeSEM (3)", "fedavg")
    assert table.data == ("digits, rotated", "digits, β = 0.1")
    assert [cell.slug for cell in table.cells] == [
        "fesem-3-digits-rotated-s5",
        "fedavg-digits-rotated-s5",
        "fesem-3-digits-0-1-s5",
        "fedavg-digits-0-1-s5",
        "fesem-3-digits-rotated-s6",
        "fedavg-digits-rotated-s6",
        "fesem-3-digits-0-1-s6",
        "fedavg-digits-0-1-s6",
    ]
    assert [metric.name for metric in table.metrics] == ["accuracy_macro", "rounds_to_accuracy_0.8"]


def test_settings_are_laid_over_one_another_base_data_partition_strategy(load):
    fesem, fedavg = load().cells[2:4]

    assert (fesem.settings.train.local_epochs, fedavg.settings.train.local_epochs) == (4, 2)
    assert (fesem.settings.train.batch_size, fesem.settings.run.rounds) == (32, 3)
    assert (fesem.settings.data.partition, fesem.settings.data.beta, fesem.settings.data.groups) == (
        "dirichlet",
        0.1,
        None,
    )
    assert fesem.settings.strategy.options == {"num_clusters": 3}
    assert (fesem.settings.run.seed, fesem.settings.run.name) == (5, "fesem-3-digits-0-1-s5")


def test_defaults_are_one_seed_one_metric_and_labels_from_the_names(load):
    table = load('name = "least"\n[[strategy]]\nname = "fesem"\n[[data]]\npartition = "rotated"\n')

    assert [(cell.strategy, cell.data, cell.seed) for cell in table.cells] == [("fesem", "digits, rotated", 0)]
    assert [metric.name for metric in table.metrics] == ["accuracy_macro"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "small"', 'nmae = "small"', "The key 'name' is missing; a table has name, seeds, metrics, base"),
        ("seeds", "seed", "Unknown key 'seed'; a table has name, seeds, metrics, base, strategy, data, partition"),
        ("[5, 6]", '["five"]', r"seeds\.0 = 'five': input should be a valid integer"),
        ("[5, 6]", "[-1]", r"seeds\.0 = -1: input should be greater than or equal to 0"),
        ("[5, 6]", "[5, 5]", "seeds holds 5 twice"),
        ("[5, 6]", "[]", "seeds = "),
        ('"accuracy_macro"', '"accuracy"', "Unknown metric 'accuracy'; nearest are accuracy_micro, accuracy_macro"),
        ("[base.train]", "[base.trian]", r"\[base\] Unknown section 'trian'; nearest is train"),
        ("batch_size = 8", "batch = 8", r"\[base\] Unknown setting 'train.batch'; nearest is batch_size"),
        ("rounds = 3", "seed = 3", r"base\.run\.seed cannot be set"),
        ("[base.run]", "[base.strategy]\nname = 'x'\n[base.run]", r"\[base\.strategy\] does not exist"),
        ('name = "fedavg"', "label = 'x'", r"A \[\[strategy\]\] has name = None, expected a strategy"),
        ('"FeSEM (3)"', r'"Fe\nSEM"', r"A \[\[strategy\]\] has label = 'Fe\\nSEM', expected a line"),
        ('"FeSEM (3)"', "7", r"A \[\[strategy\]\] has label = 7, expected a line"),
        ('"FeSEM (3)"', '"β"', r"A \[\[strategy\]\] has label = 'β', expected a line with at least one letter"),
        ('"FeSEM (3)"', '"fedavg"', r"Two \[\[strategy\]\] have the label 'fedavg'"),
        ('"FeSEM (3)"', '"FedAvg!"', "would both be kept in the folder 'fedavg-digits-rotated-s5'"),
        (
            "clients = 4",
            "client = 4",
            r"Unknown key 'client' in \[\[data\]\] 'digits'; it may have label, set, dataset",
        ),
        ("clients = 4", 'clients = "many"', r"strategy 'FeSEM \(3\)', data 'digits, rotated': Setting data\.clients"),
        ("groups = 2", 'dir = "x"', r"Unknown key 'dir' in \[\[partition\]\] 'rotated'"),
        ('"train.local_epochs" = 4', '"local_epochs" = 4', "Unknown setting 'local_epochs'; nearest is train"),
        ('"train.local_epochs" = 4', "train.local_epochs = 4", r"quote the keys: set = \{ \"train\.local_epochs\" = 1"),
        ('"train.local_epochs" = 4', '"run.seed" = 4', r"\[\[strategy\]\] 'FeSEM \(3\)' sets run\.seed"),
        ("seeds = [5, 6]", "seeds = [5", r"The table .*table\.toml is not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_file_key_and_what_is_allowed(load, old, new, message):
    with pytest.raises(TableError, match=message) as caught:
        load(old=old, new=new)
    assert "table.toml" in str(caught.value)


def test_columns_that_are_judged_by_different_scores_are_refused(tmp_path):
    (tmp_path / "devices" / "a").mkdir(parents=True)
    path = tmp_path / "table.toml"
    path.write_text(
        f"""
name = "two"
[[strategy]]
name = "fedavg"
[[data]]
dataset = "digits"
clients = 4
[[data]]
dataset = "own"
data_dir = "{tmp_path / "devices"}"
set = {{ "task.kind" = "regression", "table.inputs" = ["a"], "table.targets" = ["b"] }}
"""
    )
    with pytest.raises(TableError, match="judged by 'accuracy_macro', 'mae_macro'; a table has one task"):
        load_table(path, lambda settings: None)


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TableError, match=r"absent\.toml cannot be read: No such file"):
        load_table(tmp_path / "absent.toml")


def test_what_the_check_refuses_is_refused_before_anything_runs(load):
    def check(settings):
        raise BouquetError(f"no {settings.strategy.name}")

    with pytest.raises(TableError, match=r"table\.toml: strategy 'FeSEM \(3\)', data 'digits, rotated': no fesem"):
        load(check=check)


def test_the_strategies_are_built_to_check_their_options(tmp_path):
    (tmp_path / "table.toml").write_text(GRID.replace("num_clusters", "clusters"))
    with pytest.raises(TableError, match=r"table\.toml: strategy 'FeSEM \(3\)'.*Unknown setting strategy\.clusters"):
        load_table(tmp_path / "table.toml")


def test_devices_with_data_of_their_own_are_as_many_as_their_folders(load, tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / "own" / name).mkdir(parents=True)
    own = f'dataset = "own"\ndata_dir = "{tmp_path / "own"}"\nclasses = ["a", "b"]\ninput_shape = [1, 8, 8]'
    table = load(GRID.partition("[[partition]]")[0], 'dataset = "digits"\nclients = 4', own)
    assert {cell.settings.data.clients for cell in table.cells} == {3}
