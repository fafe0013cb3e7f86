"""The results of a comparison as tables: on the terminal, and as Markdown, CSV and a page with plots.

``table.csv`` has the form of the published figures, ``experiments/results``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from bouquet.common.system.files import write_atomically
from bouquet.experiments.comparison.claims import (
    by_seed,
    difference_text,
    differences,
    differences_in_the_mean,
    fewer_devices,
    p_text,
    references,
    row_ranks,
    worst_tenth,
)
from bouquet.experiments.comparison.measures import Metric
from bouquet.experiments.comparison.paper_comparison import paper_notes, paper_tables
from bouquet.experiments.comparison.row_notes import protocol
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.significance import Difference
from bouquet.experiments.comparison.table import missing_rows
from bouquet.experiments.comparison.tuning import choice_table, tuning_notes
from bouquet.experiments.plots.run import compared_by_round
from bouquet.experiments.report.pages import COMPARISON, embed, render

# How differences and ranks are to be read.
HOW = (
    "Differences are paired by client and seed, with their 95 % interval over seeds; ≈ no claim after Holm. Those of a "
    "row against all others are of the means over columns, with p after Holm."
)
HEADS = ("measure", "column", "row", "value", "deviation", "low", "high", "p", "note")
LATEX = str.maketrans(
    {"\\": "\\textbackslash{}", "±": "$\\pm$", "—": "---", "~": "\\~{}", "^": "\\^{}"}
    | {mark: f"\\{mark}" for mark in "&%$#_{}"}
)
_NUMBER = r"[+−-]?[\d.]+(?:e-\d+)?"
_CELL = re.compile(
    rf"(?P<mark>≈ )?(?P<value>{_NUMBER})(?: %)?(?: ± (?P<deviation>{_NUMBER}))?"
    rf"(?: \[(?P<low>{_NUMBER}), (?P<high>{_NUMBER})\])?(?:, p (?P<p>[< .\d]+|—))?(?: \((?P<note>.+)\))?"
)

TextTable = tuple[str, list[str], list[list[str]]]  # title, heads, rows


def print_results(results: Results, console: Console) -> None:
    """One table of rows by metrics, a part of it for each column; below it a line for each thing to know."""
    heads, *lines = one_table(results)
    columns = [Column(Text(head, overflow="fold"), justify="right") for head in heads[2:]]
    shown = RichTable(heads[1], *columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for data in results.table.data:
        if len(results.table.data) > 1:
            shown.add_row(Text(data, style="bold"))
        for _, *row in (line for line in lines if line[0] == data):
            shown.add_row(*map(Text, row))
        shown.add_section()
    console.print(shown)
    for line in (*verdicts(results), *(note for note in notes(results) if note != HOW)):
        console.print(Text(line), soft_wrap=True)


def verdicts(results: Results) -> list[str]:
    """Which rows are significantly better, and worse: a line for each reference row, and each of the table's claims."""
    by_column: dict[
        tuple[str, str], dict[str, list[bool | None]]
    ] = {}  # by column: True ahead, False behind, None neither
    for (row, _, reference), d in differences(results).items():
        line = ("Significantly better than {}: {}; worse: {}.", reference)
        by_column.setdefault(line, {}).setdefault(row, []).append(_ahead(d))
    for (row, other), d in differences_in_the_mean(results).items():
        line = ("{}, in the mean of the columns, is significantly better than: {}; worse than: {}.", row)
        by_column.setdefault(line, {})[other] = [_ahead(d)]
    return [text.format(one, _told(others, True), _told(others, False)) for (text, one), others in by_column.items()]


def _ahead(difference: Difference | None) -> bool | None:
    return None if difference is None or difference.is_noise else difference.mean > 0


def _told(rows: Mapping[str, list[bool | None]], ahead: bool) -> str:
    """The rows that are so in some column, and in how many of several."""
    counts = {row: (columns.count(ahead), len(columns)) for row, columns in rows.items()}
    return ", ".join(row + f" ({n} of {of} columns)" * (of > 1) for row, (n, of) in counts.items() if n) or "none"


def one_table(results: Results) -> list[list[str]]:
    """Heads and lines: the column, the strategy, and each metric's mean ± deviation."""
    metrics = results.table.metrics
    values = [dict(_texts(results, metric)) for metric in metrics]
    lines = [
        [data, row, *(of[row][place] for of in values)]
        for place, data in enumerate(results.table.data)
        for row in results.table.strategies
    ]
    return [["data", "strategy", *(metric.title for metric in metrics)], *lines]


def latex_table(results: Results) -> str:
    """`one_table` for a paper, with the rules of the package booktabs."""
    heads, *lines = ([text.translate(LATEX) for text in line] for line in one_table(results))
    parts = [[line for line in lines if line[0] == data] for data in dict.fromkeys(line[0] for line in lines)]
    body = " \\midrule\n".join("".join(f"{' & '.join(line)} \\\\\n" for line in part) for part in parts)
    return (
        f"\\begin{{tabular}}{{ll{'r' * (len(heads) - 2)}}}\n\\toprule\n{' & '.join(heads)} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}\n"
    )


def csv_table(results: Results) -> str:
    """`one_table` for a program or a spreadsheet."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(one_table(results))
    return buffer.getvalue()


def write_results(results: Results, out: Path) -> list[Path]:
    """Write the tables as Markdown, CSV and a page into ``out`` and return their paths."""
    texts = {
        "table.md": render_markdown(results),
        "table.csv": render_csv(results),
        "seeds.csv": render_seeds_csv(results),
        "compare.html": render_html(results),
    }
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [out / name for name in texts]


def render_markdown(results: Results) -> str:
    """One Markdown table a metric and a claim; where the columns are of several partitions, one for each of them."""
    parts = [f"# {results.table.name}", *notes(results)]
    for title, heads, rows in by_panel(results, metric_tables(results) + claim_tables(results)):
        lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
        cells = [[text.replace("|", "\\|") for text in line] for line in lines]
        parts += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in cells)]
    for result in results.every_failed:
        parts += [f"## Failed: {result.cell.slug}", f"```\n{result.error}\n```"]
    return "\n\n".join(parts) + "\n"


def by_panel(results: Results, tables: list[TextTable]) -> list[TextTable]:
    """The same tables, each that has all columns divided into one a partition (`ComparisonTable.panels`)."""
    panels = results.table.panels
    if len(panels) < 2:
        return tables
    columns = list(results.table.data)
    divided: list[TextTable] = []
    for title, (first, *heads), rows in tables:
        if heads != columns:
            divided.append((title, [first, *heads], rows))
            continue
        for panel, labels in panels.items():
            places = [1 + columns.index(column) for column in labels]
            own = [[row[0], *(row[place] for place in places)] for row in rows]
            divided.append((f"{title}: {panel}", [first, *labels.values()], own))
    return divided


def metric_tables(results: Results) -> list[TextTable]:
    """Mean ± deviation of each metric."""
    return [
        (metric.title, ["strategy", *results.table.data], [[row, *texts] for row, texts in _texts(results, metric)])
        for metric in results.table.metrics
    ]


def render_csv(results: Results) -> str:
    """One line for each measure, column and row; a column of a partition is ``PANEL: LABEL``."""
    panels = results.table.panels
    named = {column: f"{panel}: {label}" for panel, labels in panels.items() for column, label in labels.items()}
    lines = [
        {"measure": title, "column": named.get(head, head) if len(panels) > 1 else head, "row": row, **_cell(text)}
        for title, (_, *heads), rows in metric_tables(results) + claim_tables(results)
        for row, *texts in rows
        for head, text in zip(heads, texts, strict=True)
    ]
    return _csv(lines, HEADS)


def _cell(text: str) -> dict[str, str]:
    """The parts of ``≈ +.012 [−.004, +.020], p .045`` or of ``.851 ± .007 (4/5)``; other texts are a note."""
    if (match := _CELL.fullmatch(text)) is None:
        return {"note": text}
    parts = {key: (part or "").replace("−", "-") for key, part in match.groupdict().items()}
    note = parts.pop("mark").strip() or parts["note"]
    return {**parts, "note": note}


def render_seeds_csv(results: Results) -> str:
    """Every cell that is done: a line for each metric, without a client, and for the test score of each client."""
    table, key = results.table, results.table.score.key
    lines: list[dict[str, Any]] = []
    for row, data in ((row.label, data) for row in table.rows for data in table.data):
        place = {"strategy": row, "data": data}
        for metric in table.metrics:
            cells = zip(results.cells_of(row, data), results.values(metric, row, data), strict=True)
            lines += [
                {**place, "seed": one.cell.seed, "measure": metric.name, "value": value}
                for one, value in cells
                if one.run is not None
            ]
        lines += [
            {**place, "seed": seed, "client": client, "measure": key, "value": value}
            for seed, clients in by_seed(results, row, data).items()
            for client, value in clients.items()
        ]
    return _csv(lines, ["strategy", "data", "seed", "client", "measure", "value"])


def claim_tables(results: Results) -> list[TextTable]:
    """Ours beside the paper's, differences to the reference rows, ranks, what each row tests: (title, heads, rows)."""
    tables = paper_tables(results)
    score, columns = results.table.score, list(results.table.data)
    for what, measure in (
        (score.label if score.higher_is_better else f"{score.label}, less of it", None),
        ("worst tenth", worst_tenth),
    ):
        pairs = differences(results, measure)
        for reference in references(results.table):
            labels = [row.label for row in results.table.rows if row.label != reference]
            rows = [[one, *(difference_text(pairs[one, d, reference]) for d in columns)] for one in labels]
            if rows:
                tables.append((f"{what} against {reference}", ["strategy", *columns], rows))
    in_the_mean = differences_in_the_mean(results)
    for row in results.table.claims:
        texts = [[o, f"{difference_text(d)}, p {p_text(d)}"] for (one, o), d in in_the_mean.items() if one == row]
        tables.append((f"{row} against, mean of columns", ["strategy", "all"], texts))
    if (ranked := row_ranks(results)) is not None:
        limit = min(ranked.mean.values()) + ranked.critical_difference
        behind = " (significantly behind the first)"
        rows = [[row, f"{rank:.2f}{behind * (rank >= limit)}"] for row, rank in ranked.mean.items()]
        rows.append(["critical difference (Nemenyi, 5 %)", f"{ranked.critical_difference:.2f}"])
        rows += [] if ranked.p_value is None else [["Friedman's p", f"{ranked.p_value:.2g}"]]
        tables.append(("mean rank", ["strategy", "all"], rows))
    heads = ["strategy", "model", "clusters by", "budget", "trainings a round"]
    stated = [[one[k] for k in ("row", "tested", "clusters", "budget", "trainings")] for one in protocol(results.table)]
    return [*tables, ("protocol", heads, stated), *choice_table(results)]


def _csv(rows: Sequence[Mapping[str, Any]], heads: Sequence[str]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, heads, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def render_html(results: Results) -> str:
    """The tables, and by round the accuracy and the purity of the strategies on each data set."""
    table = results.table
    how, *warnings = notes(results)
    return render(
        COMPARISON,
        embed(plots_of_results(results)),
        title=table.name,
        lead=f"{len(table.strategies)} strategies, {len(table.data)} data sets and partitions, "
        f"{len(table.seeds)} seeds. {how} Bands in the plots are one sample deviation.",
        notes=warnings,
        tables=[
            {"title": title, "heads": heads, "rows": rows}
            for title, heads, rows in metric_tables(results) + claim_tables(results)
        ],
        failures=[(result.cell.slug, result.error) for result in results.every_failed],
    )


def plots_of_results(results: Results) -> list[Figure]:
    """The score by round, a data set at a time."""
    score = results.table.score
    what, key = f"{score.label[0].upper()}{score.label[1:]}", score.of("macro")
    figures: list[Figure | None] = []
    for data in results.table.data:
        runs = {row.label: results.runs(row.label, data) for row in results.table.rows if row.tested == "method"}
        figures.append(compared_by_round(f"{what}, {data}", f"macro {score.title}", runs, lambda run: run.outcome(key)))
    return [figure for figure in figures if figure is not None]


def notes(results: Results) -> list[str]:
    """How the tables are to be read, and which cells they lack."""
    seeds = results.table.seeds
    listed = ", ".join(map(str, seeds))
    many = f"Mean ± sample deviation over the seeds {listed}; (k/n): only k of n seeds have a value."
    said = [many if len(seeds) > 1 else f"Seed {listed} only.", HOW]
    if results.failed:
        said.append(f"{len(results.failed)} of {len(results.cells)} cells failed.")
    if results.missing:
        said.append(f"{len(results.missing)} of {len(results.cells)} cells have not been run yet.")
    if results.failed or results.missing:
        said.append("Rows do not all have the same seeds: differences are over the seeds that both rows have.")
    said += fewer_devices(results) + tuning_notes(results) + paper_notes(results)
    if lacking := missing_rows(results.table):
        said.append(
            f"The table lacks {'; '.join(lacking)}, without which it does not say whether federation pays; "
            'rows = "standard" adds them.'
        )
    return said


def _texts(results: Results, metric: Metric) -> list[tuple[str, list[str]]]:
    table = results.table
    return [
        (strategy, [metric.mean_text(results.values(metric, strategy, data)) for data in table.data])
        for strategy in table.strategies
    ]
