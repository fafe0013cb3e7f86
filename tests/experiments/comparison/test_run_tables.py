"""The tables and claims of a comparison that was run."""

import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison import claims
from bouquet.experiments.comparison.claims import references, row_ranks
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.significance import Difference
from bouquet.experiments.comparison.tables import (
    HOW,
    csv_table,
    latex_table,
    notes,
    print_results,
    render_csv,
    render_markdown,
    verdicts,
    write_results,
)
from tests.helpers.small_table import GRID


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


def test_devices_without_a_score_are_said(compare, tmp_path):
    assert not [note for note in notes(compare()[0]) if "no score" in note]
    results, _, _ = compare()
    results.cells[0].run.summary["accuracy_by_client"].popitem()

    note = next(note for note in notes(results) if "no score" in note)
    assert note.startswith("FeSEM has no score of 1 devices that others have in digits (seeds 0): its mean")


def test_the_tables_hold_mean_and_sample_deviation(compare, tmp_path):
    results, _, _ = compare()
    paths = write_results(results, tmp_path / "out")

    assert [path.name for path in paths] == ["table.md", "table.csv", "seeds.csv", "compare.html"]
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
    lines = list(csv.DictReader(io.StringIO(paths[2].read_text())))
    clients = [one for one in lines if one["client"]]
    assert [len(clients), {one["measure"] for one in clients}] == [2 * 2 * 4, {"accuracy"}]
    assert sum(float(one["value"]) for one in clients if one["strategy"] == "FeSEM") / 8 == pytest.approx(0.91)
    whole = {(o["strategy"], o["seed"], o["measure"]): o["value"] for o in lines if not o["client"]}
    assert len(whole) == 2 * 2 * 3
    assert float(whole["FeSEM", "1", "accuracy_macro"]) == pytest.approx(0.92)
    assert [whole[row, "0", "rounds_to_accuracy_0.8"] for row in ("FeSEM", "Fed|Avg")] == ["3.0", ""]
    page = paths[3].read_text()
    assert ".910 ± .014" in page
    assert "≈ +.300" in page
    assert page.count('src="data:image/svg+xml;base64,') == 1  # accuracy by round


def test_all_claims_of_a_table_hold_together(compare, monkeypatch):
    """FeSEM against either reference, and these against each other."""
    results, _, _ = compare("[[data]]", '[[strategy]]\nlabel = "alone"\nname = "standalone"\n[[data]]')
    one = Difference(0.1, 0.05, 0.15, p_value=0.02)
    monkeypatch.setattr(claims, "paired_difference", lambda *_: one)
    assert [d.p_value for d in claims.differences(results).values()] == [0.08] * 4


def test_what_is_significant_is_a_line_for_each_reference_and_claim(claiming, monkeypatch):
    results = claiming(3, ["FeSEM"])

    def certain(row, other, measure=None):
        mean = sum(sum(row[seed].values()) - sum(other[seed].values()) for seed in row)
        return Difference(mean, mean, mean, p_value=0.001 if abs(mean) > 0.2 else 0.2)

    monkeypatch.setattr(claims, "paired_difference", certain)
    assert verdicts(results) == [
        "Significantly better than alone: FeSEM (1 of 2 columns), Fed|Avg (1 of 2 columns); "
        "worse: Fed|Avg (1 of 2 columns).",
        "Significantly better than Fed|Avg: FeSEM (1 of 2 columns), alone (1 of 2 columns); "
        "worse: FeSEM (1 of 2 columns), alone (1 of 2 columns).",
        "FeSEM, in the mean of the columns, is significantly better than: Fed|Avg, alone; worse than: none.",
    ]


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
    assert found.p_value == pytest.approx(stats.ttest_1samp(by_seed, 0).pvalue)


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

    assert [said.count(text) for text in ("accuracy_macro", "bytes_up (MB)", "Fed|Avg", ".910 ± .014")] == [1, 1, 2, 1]
    assert "\nSignificantly better than Fed|Avg: none; worse: none.\n" in said
    assert ("≈" in said, "protocol" in said) == (False, False)  # table.md has these
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
