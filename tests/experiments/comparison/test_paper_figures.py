import io
from pathlib import Path

import pytest
from rich.console import Console

from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.paper_comparison import paper_tables
from bouquet.experiments.comparison.run import CellResult, Results
from bouquet.experiments.comparison.table import TableError, missing_rows
from bouquet.experiments.comparison.tables import print_results, render_html, render_markdown
from bouquet.server.record.reader import read_run

TABLES = Path(__file__).parents[3] / "experiments" / "tables"
OF_PAPERS = sorted((TABLES / "papers").glob("*.toml"))
GRID = """
name = "small"
seeds = [0, 1]
metrics = ["accuracy_macro"]
[base.run]
rounds = 1
[base.simulation]
engine = "inline"
[[strategy]]
label = "FedAvg"
name = "fedavg"
[[strategy]]
label = "FeSEM (2)"
name = "fesem"
num_clusters = 2
[[data]]
label = "digits"
clients = 3
samples_per_client = 20
[[paper]]
source = "A paper, Table 1"
metric = "accuracy_macro"
[paper.rows]
FedAvg = { digits = 0.75 }
"FeSEM (2)" = { digits = [0.875, 0.0125] }
"""
CHANGE = """
[[paper]]
source = "A paper, Fig. 2"
metric = "rounds_to_accuracy_0.3"
kind = "change"
against = "FedAvg"
[paper.rows]
"FeSEM (2)" = { digits = -0.5 }
"""


@pytest.fixture
def load(tmp_path):
    def read(text=GRID):
        path = tmp_path / "table.toml"
        path.write_text(text)
        return load_table(path)

    return read


@pytest.fixture
def made_up(load, write_run):
    """Results of made-up runs of four rounds: FedAvg with .7 and .72 at the end, FeSEM with .9 and .92."""

    def make(text):
        table = load(text.replace("rounds = 1", "rounds = 4"))
        best = {"fedavg": 0.7, "fesem": 0.9}
        done = []
        for cell in table.cells:
            accuracy = best[cell.settings.strategy.name] + 0.02 * cell.seed
            folder = write_run(cell.slug, cell.settings, clients=3, rounds=4, accuracy=accuracy)
            done.append(CellResult(cell, read_run(folder)))
        return Results(table, done)

    return make


@pytest.mark.parametrize("path", sorted(TABLES.rglob("*.toml")), ids=lambda path: path.stem)
def test_every_table_of_the_house_is_valid(path):
    assert load_table(path).cells


@pytest.mark.parametrize("path", OF_PAPERS, ids=lambda path: path.stem)
def test_a_table_of_a_paper_has_the_standard_rows_and_says_how_it_is_run(path):
    table = load_table(path)

    assert missing_rows(table) == []
    assert table.name == f"paper-{path.stem}"
    assert f"bouquet compare experiments/tables/papers/{path.name}" in path.read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("FedAvg = {", "FedAvg2 = {", "names the row 'FedAvg2'; the table has 'FedAvg', 'FeSEM \\(2\\)'"),
        ("{ digits = 0.75", "{ digit = 0.75", "names the column 'digit'; the table has 'digits'"),
        ('against = "FedAvg"', 'against = "IFCA"', r"'A paper, Fig\. 2' names the row 'IFCA'"),
        ('kind = "change"\nagainst = "FedAvg"', 'kind = "change"', "kind = 'change' and against = None"),
        ('kind = "change"\n', "", "kind = 'value' and against = 'FedAvg'"),
        ('kind = "change"', 'kind = "ratio"', r"paper\.1\.kind = 'ratio': input should be 'value', 'difference'"),
        ('metric = "accuracy_macro"\n[paper', 'metric = "accuracy"\n[paper', "Unknown metric 'accuracy'"),
        ("0.75", "75.0", "has 75 for 'FedAvg', 'digits'; accuracy_macro is a share from 0 to 1"),
        ("{ digits = 0.75 }", "{}", r"paper\.0\.rows\.FedAvg = {}"),
        ("0.75", '"many"', r"paper\.0\.rows\.FedAvg\.digits\.0 = 'many'"),
        ("[0.875, 0.0125]", "[0.8, 0.1, 0.1]", r"paper\.0\.rows\.FeSEM \(2\)\.digits"),
        ("0.75", "nan", r"paper\.0\.rows\.FedAvg\.digits\.0 = nan: input should be a finite number"),
        ("source =", "from =", r"The key 'paper\.0\.source' is missing; a \[\[paper\]\] has source, metric"),
        ("source =", 'note = ""\nsource =', r"Unknown key 'paper\.0\.note'; a \[\[paper\]\] has source, metric"),
    ],
)
def test_a_mistake_in_a_papers_figures_is_named(load, old, new, message):
    text = GRID + CHANGE
    assert old in text
    with pytest.raises(TableError, match=message):
        load(text.replace(old, new, 1))


def test_ours_and_the_papers_stand_side_by_side(made_up):
    results = made_up(GRID)

    assert paper_tables(results) == [
        (
            "accuracy_macro, beside A paper, Table 1",
            ["strategy", "digits: ours", "digits: paper"],
            [["FedAvg", ".710 ± .014", ".750"], ["FeSEM (2)", ".910 ± .014", ".875 ± .013"]],
        )
    ]


def test_a_change_is_from_the_other_row_and_lacks_seeds_in_which_one_has_no_value(made_up):
    change = made_up(GRID.replace("seeds = [0, 1]", "seeds = [0]") + CHANGE)
    never = made_up(GRID + CHANGE.replace("accuracy_0.3", "accuracy_0.71"))

    # .7 and .9 in four rounds: .3 is reached after two of both; .71 by FedAvg with seed 1 alone.
    title, _, rows = paper_tables(change)[1]
    assert title == "rounds_to_accuracy_0.3, change against FedAvg, beside A paper, Fig. 2"
    assert rows == [["FeSEM (2)", "+0 %", "−50 %"]]
    assert paper_tables(never)[1][2] == [["FeSEM (2)", "+0 % (1/2)", "−50 %"]]


def test_a_difference_is_in_the_metrics_own_unit(made_up):
    text = GRID + CHANGE.replace("rounds_to_accuracy_0.3", "accuracy_macro").replace("change", "difference")

    assert paper_tables(made_up(text))[1][2] == [["FeSEM (2)", "+.200", "−.500"]]


def test_where_the_setting_is_not_the_papers_the_notes_say_so(made_up):
    results = made_up(GRID.replace('metric = "accuracy_macro"\n', 'metric = "accuracy_macro"\ndiffers = "CIFAR-10"\n'))
    console = Console(file=io.StringIO(), width=200)
    print_results(results, console)
    files = [render_markdown(results), render_html(results)]
    assert all("A paper, Table 1 has another setting: CIFAR-10" in text for text in (console.file.getvalue(), *files))
    assert all("accuracy_macro, beside A paper, Table 1" in text for text in files)
