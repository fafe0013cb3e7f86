"""Every figure that a page takes from a table is the table's.

``docs/results/NAME.md`` is what ``bouquet compare experiments/tables/NAME.toml`` wrote; how a page cites it is in
:mod:`tests.helpers.citations`. On the papers' pages a paper's own figures may stand before ours.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bouquet.experiments.comparison.grid import load_table
from tests.helpers.citations import CITATION, blocks, lookup, sections, wrong_figures

DOCS = Path(__file__).parents[1] / "docs"
TABLES = DOCS.parent / "experiments" / "tables"
PUBLISHED = sorted((DOCS / "results").glob("*.md"))
CITING = [DOCS / "choosing-a-method.md"]
# Which have figures of other measurements, too.
QUOTING = [DOCS / name for name in ("results.md", "performance.md")]
PAPERS = [DOCS / "papers" / f"{name}.md" for name in ("dc-pfl", "fedac", "fedtsdp", "fesem", "gradient-loss")]


@pytest.mark.parametrize("page", CITING, ids=lambda page: page.name)
def test_figures_are_those_of_the_table_that_is_cited(page):
    tables = {one.stem: sections(one.read_text()) for one in PUBLISHED}
    assert [found for block in blocks(page.read_text()) for found in wrong_figures(block, tables)] == []


@pytest.mark.parametrize("page", QUOTING + PAPERS, ids=lambda page: page.name)
def test_where_a_page_cites_a_table_its_figures_are_those(page):
    tables = {one.stem: sections(one.read_text()) for one in PUBLISHED}
    citing = [block for block in blocks(page.read_text()) if CITATION.search(block)]
    assert citing
    assert [found for block in citing for found in wrong_figures(block, tables, page in PAPERS)] == []


@pytest.mark.parametrize("page", PUBLISHED, ids=lambda page: page.stem)
def test_a_published_table_is_whole_and_of_its_file(page):
    table = load_table(TABLES / page.name.replace(".md", ".toml"), lambda settings: None)
    text = page.read_text()
    assert text.startswith(f"# {table.name}\n")
    assert f"over the seeds {', '.join(map(str, table.seeds))};" in text
    assert "have not been run" not in text
    assert "failed" not in text.replace("tuning cells failed; a value that failed is not chosen", "")
    panels = table.panels if len(table.panels) > 1 else {"": {column: column for column in table.data}}
    for panel, labels in panels.items():
        for label in labels.values():
            scores = lookup(sections(text), table.score.of("macro"), f"{panel}: {label}" if panel else label)
            assert list(scores) == list(table.strategies)


PAGE = """# t

## accuracy_macro

| strategy | a | b |
| --- | ---: | ---: |
| X | .854 ± .014 | .500 ± .001 |
| Alone | .842 ± .010 | .100 ± .001 |

## bytes_up (MB)

| strategy | a | b |
| --- | ---: | ---: |
| X | 40.9 ± 0.0 | 1.0 ± 0.0 |
| Alone | 81.8 ± 0.0 | 2.0 ± 0.0 |

## Accuracy against Alone, paired

| strategy | a | b |
| --- | ---: | ---: |
| X | ≈ +.012 [−.001, +.025] | +.400 [+.3, +.5] |

## accuracy_worst_decile: rotated

| strategy | 80 samples |
| --- | ---: |
| X | .700 ± .014 |
"""
TESTED = f"""{PAGE}
## Accuracy of X less that of each other row, in the mean of 2 columns, paired by seed, 95 % interval; p after Holm

| strategy | difference | p |
| --- | ---: | ---: |
| Alone | ≈ +.206 [−.1, +.5] | .120 |
| Y | +.300 [+.1, +.5] | < .001 |
"""


def refused(block, page):
    """What is wrong with a block that cites the page as ``t``."""
    try:
        return wrong_figures(block, {"t": sections(page)})
    except AssertionError as claim:
        return [str(claim)]


@pytest.mark.parametrize(
    ("block", "right"),
    [
        ("X has .854, alone .842 <!-- t / a / X; Alone -->", True),
        ("X has .855, alone .842 <!-- t / a / X; Alone -->", False),
        ("X has .842, alone .854 <!-- t / a / X; Alone -->", False),  # in the wrong order
        ("X has .854, alone .842 <!-- t / a / X -->", False),
        ("a figure that cites nothing: .854", False),
        ("no figure, `0.5` in code, [a link](page.md#v1.5)", True),
        ("| X | ≈ +1.2 | +40.0 | <!-- t / a / X - Alone --> <!-- t / b / X - Alone -->", True),
        ("| X | .854 | .500 | <!-- t / * / X -->", True),
        ("| X | .500 | .854 | <!-- t / * / X -->", False),
        ("| X | .854 | <!-- t / * / X -->", False),
        ("| X | .700 | <!-- t / rotated: * / X @ accuracy_worst_decile -->", True),
        ("| X | +1.2 | <!-- t / a / X - Alone -->", False),  # noise that is told as a gain
        ("X is ahead by +40.0. <!-- t / b / X - Alone -->", True),  # at the end of a sentence
        ("X is ahead by +41.0. <!-- t / b / X - Alone -->", False),
        ("it sends 40.9 MB <!-- t / a / X @ bytes_up -->", True),
        ("a tenth has .700 <!-- t / rotated: 80 samples / X @ accuracy_worst_decile -->", True),
        ("X is ≈ 1.2 points ahead <!-- t / a / X ahead of Alone -->", True),
        ("X is 1.2 points ahead <!-- t / a / X ahead of Alone -->", False),  # noise that is told as a gain
        ("X is ≈ 1.4 points ahead <!-- t / a / X ahead of Alone -->", False),
        ("X is 40 points ahead <!-- t / b / X ahead of Alone -->", True),
        ("X is 41 points ahead <!-- t / b / X ahead of Alone -->", False),
        ("X is 40 points behind <!-- t / b / X behind Alone -->", False),
        ("X is ≈ 1 to 40 points ahead <!-- t / a & b / X ahead of Alone -->", True),
        ("X is ≈ 1 to 40 points ahead <!-- t / * / X ahead of Alone -->", True),
        ("X is ≈ 2 to 40 points ahead <!-- t / a & b / X ahead of Alone -->", False),
        ("X is ≈ 1 to 39 points ahead <!-- t / a & b / X ahead of Alone -->", False),
        ("Alone is 40 points behind <!-- t / b / Alone behind X -->", True),
        ("X has .677 in the mean <!-- t / a & b / X in the mean -->", True),
        ("X has .679 in the mean <!-- t / a & b / X in the mean -->", False),
        ("X has 40.9 and 1.0 MB <!-- t / a / X @ bytes_up in all --> <!-- t / b / X @ bytes_up in all -->", True),
        ("X has .50 of the bytes <!-- t / a / X over Alone @ bytes_up -->", True),
        ("X has .52 of the bytes <!-- t / a / X over Alone @ bytes_up -->", False),
        ("X has .5, 40 points ahead <!-- t / b / X; X ahead of Alone -->", False),  # two kinds in one comment
        ("X is 40.0 points ahead, of .9 <!-- t / b / X ahead of Alone -->", False),  # .9 is of nothing
    ],
)
def test_what_is_refused(block, right):
    found = refused(block, PAGE)
    assert (found == []) is right, found


@pytest.mark.parametrize(
    ("block", "right"),
    [
        (
            "X is ≈ 20.6 points ahead (p .120) <!-- t / * / X ahead of Alone in the mean --> "
            "<!-- t / * / p of X ahead of Alone -->",
            True,
        ),
        ("X is ≈ 20.6 points ahead <!-- t / * / X ahead of Alone in the mean -->", True),
        ("X is 20.6 points ahead <!-- t / * / X ahead of Alone in the mean -->", False),  # noise told as a lead
        ("Alone is ≈ 20.6 points behind <!-- t / * / Alone behind X in the mean -->", True),
        ("X is 1.2 points ahead <!-- t / a / X ahead of Alone in the mean -->", True),  # of one column it is not tested
        ("ahead, p .119 <!-- t / * / p of X ahead of Alone -->", False),
        ("ahead, p .120 <!-- t / a / X; Alone --> of .854 and .842", False),  # a p-value that cites nothing
        ("| Y | p < .001 | <!-- t / * / p of X ahead of Y -->", True),
        ("| Y | p < .01 | <!-- t / * / p of X ahead of Y -->", False),
        ("ahead of both, p ≤ .120 <!-- t / * / p of X ahead of Y & Alone -->", True),
        ("ahead of both, p ≤ .001 <!-- t / * / p of X ahead of Y & Alone -->", False),
    ],
)
def test_what_is_refused_of_tests_of_means(block, right):
    found = refused(block, TESTED)
    assert (found == []) is right, found


def test_a_papers_figure_may_stand_before_ours_and_not_among_them():
    tables = {"t": sections(PAGE)}
    assert not wrong_figures("| 0.9 | .854, alone .842 <!-- t / a / X; Alone --> |", tables, others=True)
    assert wrong_figures("| .854 | 0.9, alone .842 <!-- t / a / X; Alone --> |", tables, others=True)
    assert wrong_figures("| 0.9 | .853, alone .842 <!-- t / a / X; Alone --> |", tables, others=True)


@pytest.mark.parametrize("page", PUBLISHED, ids=lambda page: page.stem)
def test_ranks_of_a_published_table_follow_from_its_means(page):
    """Computed anew from the means on the page, whose three digits tie some rows."""
    found = sections(page.read_text())
    title = next((title for title in found if title.startswith("Mean rank")), None)
    if title is None:
        pytest.skip("a table without ranks")
    metric = next(one for one in (title.split(":")[0] for title in found) if one in ("accuracy_macro", "mae_macro"))
    sign = 1 if metric.startswith("mae") else -1
    rows = found[title]["rank"]
    panels = [columns for name, columns in found.items() if name.split(":")[0] == metric]
    means = np.array(
        [[sign * float(one[row].split(" ± ")[0]) for row in rows] for columns in panels for one in columns.values()]
    )
    said = np.array([float(rank) for rank in rows.values()])
    lowest, highest = (stats.rankdata(means, method, axis=1).mean(axis=0) for method in ("min", "max"))
    assert f"over {len(means)} data sets" in title
    assert (lowest - 0.006 <= said).all()
    assert (said <= highest + 0.006).all()
