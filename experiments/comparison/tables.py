"""The results of a comparison as tables: on the terminal, and as Markdown, CSV, JSON and a page with plots."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from bouquet.common.system.files import write_atomically, write_json
from bouquet.experiments.comparison.claims import (
    by_seed,
    claims_json,
    difference_text,
    differences,
    differences_in_the_mean,
    equal_rows,
    fewer_devices,
    gains,
    p_text,
    references,
    row_ranks,
    worst_tenth,
)
from bouquet.experiments.comparison.measures import Metric
from bouquet.experiments.comparison.paper_comparison import paper_rows, paper_tables
from bouquet.experiments.comparison.plots import compared_by_client, gain_map, score_by_effort
from bouquet.experiments.comparison.row_notes import protocol
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.table import missing_rows
from bouquet.experiments.comparison.tuning import choice_table, tuned_json, tuning_notes
from bouquet.experiments.plots.run import compared_by_round
from bouquet.experiments.report.pages import COMPARISON, embed, render

# How differences are to be read.
HOW = "paired by client and seed, 95 % interval over seeds; ≈ no claim after Holm"

TextTable = tuple[str, list[str], list[list[str]]]  # title, heads, rows


def print_results(results: Results, console: Console) -> None:
    """One table a metric, with a row for each strategy."""
    for metric in results.table.metrics:
        table = RichTable("strategy", title=Text(metric.title), title_justify="left")
        for data in results.table.data:
            table.add_column(Text(data), justify="right")
        for strategy, row in _texts(results, metric):
            table.add_row(Text(strategy), *(Text(text) for text in row))
        console.print(table)
    for title, heads, rows in claim_tables(results):
        table = RichTable(*(Column(Text(head)) for head in heads), title=Text(title), title_justify="left")
        for row in rows:
            table.add_row(*(Text(text) for text in row))
        console.print(table)
    for note in notes(results):
        console.print(Text(note))


def write_results(results: Results, out: Path) -> list[Path]:
    """Write the tables as Markdown, CSV, JSON and a page into ``out`` and return their paths."""
    write_atomically(out / "table.md", render_markdown(results).encode())
    write_atomically(out / "table.csv", render_csv(results).encode())
    write_atomically(out / "clients.csv", render_clients_csv(results).encode())
    write_json(out / "table.json", render_json(results))
    write_atomically(out / "compare.html", render_html(results).encode())
    written = ["table.md", "table.csv", "clients.csv", "table.json", "compare.html"]
    if results.table.paper:
        write_atomically(out / "paper.csv", _csv(paper_rows(results)).encode())
        written.append("paper.csv")
    return [out / name for name in written]


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
    """The same tables, each that has all columns divided into one a partition (`Table.panels`)."""
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
    """One line for each metric, strategy and data set; bytes in bytes, what does not exist is empty."""
    return _csv(_summary_rows(results))


def render_clients_csv(results: Results) -> str:
    """The test score of every client in every cell that is done, one line each."""
    key = results.table.score.key
    found = [
        {"strategy": row.label, "data": data, "seed": seed, "client": client, key: value}
        for row in results.table.rows
        for data in results.table.data
        for seed, clients in by_seed(results, row.label, data).items()
        for client, value in clients.items()
    ]
    return _csv(found, ["strategy", "data", "seed", "client", key])


def claim_tables(results: Results) -> list[TextTable]:
    """Ours beside the paper's, differences to the reference rows, ranks, what each row tests: (title, heads, rows)."""
    tables = paper_tables(results)
    label = f"{results.table.score.label[0].upper()}{results.table.score.label[1:]}"
    gain = "" if results.table.score.higher_is_better else ", so much less of it"
    for what, measure in ((f"{label}{gain}", None), ("Worst tenth", worst_tenth)):
        found = differences(results, measure)
        for reference in references(results.table):
            labels = [row.label for row in results.table.rows if row.label != reference]
            rows = [[one, *(difference_text(found[one, d, reference]) for d in results.table.data)] for one in labels]
            if rows:
                tables.append((f"{what} against {reference}, {HOW}", ["strategy", *results.table.data], rows))
    tables += _tables_in_the_mean(results, label, gain)
    if (ranked := row_ranks(results)) is not None:
        least = min(ranked.mean.values())
        near = {row for row, rank in ranked.mean.items() if rank - least < ranked.critical_difference}
        title = (
            f"Mean rank over {ranked.blocks} data sets; critical difference {ranked.critical_difference:.2f} "
            "(Nemenyi, 5 %)" + ("" if ranked.p_value is None else f", Friedman's p = {ranked.p_value:.2g}")
        )
        rows = [[row, f"{rank:.2f}", "yes" if row in near else ""] for row, rank in ranked.mean.items()]
        tables.append((title, ["strategy", "rank", "not told from the first"], rows))
    heads = ["strategy", "model", "clusters by", "budget", "trainings a round"]
    stated = [[one[k] for k in ("row", "tested", "clusters", "budget", "trainings")] for one in protocol(results.table)]
    tables.append(
        ("Protocol: the model that is tested after the last round, and what a device does for it", heads, stated)
    )
    return tables + choice_table(results)


def _tables_in_the_mean(results: Results, label: str, gain: str) -> list[TextTable]:
    """Each row of the table's claims against all others."""
    found = differences_in_the_mean(results)
    whole = results.whole or results.table
    claims = len(whole.claims) * (len(whole.rows) - 1)
    return [
        (
            f"{label} of {row} less that of each other row{gain}, in the mean of "
            f"{len(results.table.data)} columns, paired by seed, 95 % interval; p after Holm over {claims} claims",
            ["strategy", "difference", "p"],
            [[other, difference_text(d), p_text(d)] for (one, other), d in found.items() if one == row],
        )
        for row in results.table.claims
    ]


def _csv(rows: list[dict[str, Any]], heads: list[str] | None = None) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, heads or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def render_json(results: Results) -> dict[str, Any]:
    """Everything: each cell with its settings, state and values, and the means over seeds."""
    table = results.table
    return {
        "name": table.name,
        "seeds": list(table.seeds),
        "metrics": [metric.name for metric in table.metrics],
        "means": _summary_rows(results),
        "paper": paper_rows(results),
        "protocol": protocol(table),
        "tuned": None if table.tune is None else tuned_json(table, table.choices),
        **claims_json(results),
        "cells": [
            {
                "strategy": result.cell.strategy,
                "data": result.cell.data,
                "seed": result.cell.seed,
                "folder": f"cells/{result.cell.slug}",
                "state": "failed" if result.error else "missing" if result.run is None else "done",
                "error": result.error,
                "values": {m.name: None if result.run is None else m.of(result.run) for m in table.metrics},
                table.score.of("by_client"): None if result.run is None else result.run.score_by_client,
                "settings": result.cell.settings.model_dump(mode="json"),
            }
            for result in results.cells
        ],
    }


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
            {"title": metric.title, "columns": table.data, "rows": _texts(results, metric)} for metric in table.metrics
        ],
        claims=[{"title": title, "heads": heads, "rows": rows} for title, heads, rows in claim_tables(results)],
        failures=[(result.cell.slug, result.error) for result in results.every_failed],
    )


def plots_of_results(results: Results) -> list[Figure]:
    """A data set at a time: accuracy by round, bytes and seconds, that of each client, purity where it is known."""
    score = results.table.score
    figures: list[Figure | None] = []
    if score.higher_is_better:  # the map is in points of a share
        figures = [
            gain_map(f"Gain over {' and '.join(references(results.table))}", gains(results), results.table.panels)
        ]
    what, key = f"{score.label[0].upper()}{score.label[1:]}", score.of("macro")
    for data in results.table.data:
        runs = {row.label: results.runs(row.label, data) for row in results.table.rows if row.tested == "method"}
        clients = {row.label: by_seed(results, row.label, data) for row in results.table.rows}
        figures += [
            compared_by_round(f"{what}, {data}", f"macro {score.title}", runs, lambda run: run.outcome(key)),
            score_by_effort(f"{what} by bytes, {data}", runs, "bytes"),
            score_by_effort(f"{what} by time, {data}", runs, "seconds"),
            compared_by_client(f"{what} of each client, {data}", clients, score),
            compared_by_round(f"Purity, {data}", "purity", runs, lambda run: run.series("purity")),
        ]
    return [figure for figure in figures if figure is not None]


def notes(results: Results) -> list[str]:
    """How the tables are to be read, and which cells they lack."""
    seeds = results.table.seeds
    listed = ", ".join(map(str, seeds))
    many = f"Mean ± sample deviation over the seeds {listed}; (k/n): only k of n seeds have a value."
    said = [many if len(seeds) > 1 else f"Seed {listed} only."]
    if results.failed:
        said.append(f"{len(results.failed)} of {len(results.cells)} cells failed.")
    if results.unrun:
        said.append(f"{len(results.unrun)} of {len(results.cells)} cells have not been run yet.")
    if results.failed or results.unrun:
        said.append("Rows do not all have the same seeds: differences are over the seeds that both rows have.")
    said += fewer_devices(results) + equal_rows(results) + tuning_notes(results)
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


def _summary_rows(results: Results) -> list[dict[str, Any]]:
    rows = []
    for metric in results.table.metrics:
        for strategy in results.table.strategies:
            for data in results.table.data:
                every = results.values(metric, strategy, data)
                present = [value for value in every if value is not None]
                rows.append(
                    {
                        "metric": metric.name,
                        "strategy": strategy,
                        "data": data,
                        "mean": statistics.fmean(present) if present else None,
                        "deviation": statistics.stdev(present) if len(present) > 1 else None,
                        "with_value": len(present),
                        "seeds": len(every),
                    }
                )
    return rows
