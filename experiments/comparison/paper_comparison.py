"""Ours beside what the papers report, where a table file holds their figures
(`bouquet.experiments.comparison.paper_figures`).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from bouquet.experiments.comparison.measures import NEVER, Metric, parse_metric
from bouquet.experiments.comparison.paper_figures import PaperFigures
from bouquet.experiments.comparison.run import Results


@dataclass(frozen=True)
class Beside:
    """One figure of a paper, and our values by seed: the metric's, or its differences to or changes from a row's."""

    figures: PaperFigures
    row: str
    data: str
    ours: tuple[float | None, ...]
    paper: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Over the seeds that have a value."""
        present = [value for value in self.ours if value is not None]
        return statistics.fmean(present) if present else None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None where nothing was run, or the setting is not the paper's."""
        return None if self.mean is None or self.figures.differs else self.mean - self.paper[0]


def beside_paper(results: Results) -> list[Beside]:
    """Every figure of the papers in the table, in the file's order."""
    return [
        Beside(figures, row, data, _ours(results, figures, row, data), paper)
        for figures in results.table.paper
        for row, by_data in figures.rows.items()
        for data, paper in by_data.items()
    ]


def paper_tables(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """As (title, heads, rows) for each [[paper]]: ours, the paper's and, in the paper's setting, what lies between."""
    found = beside_paper(results)
    tables = []
    for figures in results.table.paper:
        metric = parse_metric(figures.metric)
        against = f", {figures.kind} against {figures.against}" if figures.against else ""
        differs = f" – not the same setting: {figures.differs}" if figures.differs else ""
        heads = ["strategy", "data", "ours", "paper", *([] if figures.differs else ["ours − paper"])]
        rows = [[one.row, one.data, *_texts(one, metric)][: len(heads)] for one in found if one.figures is figures]
        tables.append((f"{metric.title}{against}, beside {figures.source}{differs}", heads, rows))
    return tables


def paper_rows(results: Results) -> list[dict[str, Any]]:
    """The same for a machine: a line for each figure, in bytes, seconds and shares."""
    return [
        {
            "source": one.figures.source,
            "metric": one.figures.metric,
            "kind": one.figures.kind,
            "against": one.figures.against,
            "differs": one.figures.differs or None,
            "strategy": one.row,
            "data": one.data,
            "ours": one.mean,
            "with_value": sum(value is not None for value in one.ours),
            "paper": one.paper[0],
            "paper_deviation": one.paper[1] if len(one.paper) > 1 else None,
            "ours_minus_paper": one.difference,
        }
        for one in beside_paper(results)
    ]


def _ours(results: Results, figures: PaperFigures, row: str, data: str) -> tuple[float | None, ...]:
    """By seed; a seed in which the other row has no value, or zero where a change from it is asked, has none."""
    metric = parse_metric(figures.metric)
    own = results.values(metric, row, data)
    if figures.against is None:
        return tuple(own)
    pairs = zip(own, results.values(metric, figures.against, data), strict=True)
    if figures.kind == "difference":
        return tuple(None if a is None or b is None else a - b for a, b in pairs)
    return tuple(None if a is None or not b else a / b - 1 for a, b in pairs)


def _texts(one: Beside, metric: Metric) -> list[str]:
    """Ours, the paper's, and the difference."""
    if one.figures.kind == "value":
        paper = " ± ".join(metric.number_text(value, like=one.paper[0]) for value in one.paper)
        return [metric.mean_text(one.ours), paper, _signed(metric, one.difference)]
    unit = metric if one.figures.kind == "difference" else None
    share = f" ({sum(value is not None for value in one.ours)}/{len(one.ours)})" if None in one.ours else ""
    return [_signed(unit, one.mean) + share, _signed(unit, one.paper[0]), _signed(unit, one.difference)]


def _signed(metric: Metric | None, value: float | None) -> str:
    """``+.012`` or, without a metric, ``−99 %``; a dash where nothing is known."""
    if value is None:
        return NEVER
    sign = "−" if value < 0 else "+"
    return sign + (f"{100 * abs(value):.0f} %" if metric is None else metric.number_text(abs(value)))
