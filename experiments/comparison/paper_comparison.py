"""Ours beside what the papers report, where a table file holds their figures
(`bouquet.experiments.comparison.paper_figures`).
"""

from __future__ import annotations

import statistics

from bouquet.experiments.comparison.measures import NEVER, Metric, parse_metric
from bouquet.experiments.comparison.paper_figures import PaperFigures
from bouquet.experiments.comparison.run import Results


def paper_tables(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """As (title, heads, rows) for each [[paper]]: ours and the paper's, column by column."""
    tables = []
    for figures in results.table.paper:
        metric = parse_metric(figures.metric)
        columns = [
            column
            for column in results.table.data
            if any(column in figures_of_row for figures_of_row in figures.rows.values())
        ]
        heads = ["strategy", *(f"{column}: {whose}" for column in columns for whose in ("ours", "paper"))]
        rows = [
            [row, *(text for column in columns for text in _texts(results, figures, metric, row, column))]
            for row in figures.rows
        ]
        against = f", {figures.kind} against {figures.against}" if figures.against else ""
        tables.append((f"{metric.title}{against}, beside {figures.source}", heads, rows))
    return tables


def paper_notes(results: Results) -> list[str]:
    """Where ours is not the paper's setting."""
    return [f"{one.source} has another setting: {one.differs}" for one in results.table.paper if one.differs]


def _texts(results: Results, figures: PaperFigures, metric: Metric, row: str, column: str) -> tuple[str, str]:
    """Ours and the paper's; dashes where the paper has no figure."""
    if column not in figures.rows[row]:
        return NEVER, NEVER
    ours, paper = _ours(results, figures, metric, row, column), figures.rows[row][column]
    if figures.kind == "value":
        return metric.mean_text(ours), " ± ".join(metric.number_text(value, like=paper[0]) for value in paper)
    unit = metric if figures.kind == "difference" else None
    present = [value for value in ours if value is not None]
    share = f" ({len(present)}/{len(ours)})" if None in ours else ""
    return _signed(unit, statistics.fmean(present) if present else None) + share, _signed(unit, paper[0])


def _ours(results: Results, figures: PaperFigures, metric: Metric, row: str, column: str) -> list[float | None]:
    """By seed; a seed in which the other row has no value, or zero where a change from it is asked, has none."""
    own = results.values(metric, row, column)
    if figures.against is None:
        return own
    pairs = zip(own, results.values(metric, figures.against, column), strict=True)
    if figures.kind == "difference":
        return [None if a is None or b is None else a - b for a, b in pairs]
    return [None if a is None or not b else a / b - 1 for a, b in pairs]


def _signed(metric: Metric | None, value: float | None) -> str:
    """``+.012`` or, without a metric, ``−99 %``; a dash where nothing is known."""
    if value is None:
        return NEVER
    sign = "−" if value < 0 else "+"
    return sign + (f"{100 * abs(value):.0f} %" if metric is None else metric.number_text(abs(value)))
