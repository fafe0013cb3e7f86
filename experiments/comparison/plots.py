"""Plots of a comparison: accuracy against what it cost, and how it is spread over the clients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from bouquet.common.task.score import ACCURACY, Score
from bouquet.experiments.comparison.significance import BySeed, Difference
from bouquet.experiments.plots.style import (
    GRID,
    PALETTE,
    SMALL,
    WIDTH,
    bytes_axis,
    legend_of,
    line_style,
    log_axis,
    new_figure,
    titled_figure,
)
from bouquet.server.record.reader import Run

COLUMN_WIDTH = 0.6  # inches, of a column of a map with numbers in it
PANELS_ACROSS = 2
WIDE = 10  # where rows spent so many times more than others, their axis is logarithmic


def score_by_effort(
    title: str, runs: Mapping[str, Sequence[Run]], effort: Literal["bytes", "seconds"]
) -> Figure | None:
    """Macro score against the bytes (up and down) or seconds until then, mean over seeds."""
    figure, (ax,) = new_figure(title, 3.8)
    keys = ("bytes_up", "bytes_down") if effort == "bytes" else ("seconds",)
    for index, (name, seeds) in enumerate(runs.items()):
        curves = [_curve(run, keys) for run in seeds]
        count = min((len(y) for _, y in curves), default=0)
        if not count:
            continue
        x, y = (np.mean([curve[axis][:count] for curve in curves], axis=0) for axis in (0, 1))
        ax.plot(x, y, label=name, **line_style(index))
    if not ax.lines:
        return None
    ends = [x[-1] for x in (np.asarray(line.get_xdata()) for line in ax.lines) if len(x) and x[-1] > 0]
    if ends and max(ends) > WIDE * min(ends):
        log_axis(ax, vertical=False)
    if effort == "bytes":
        bytes_axis(ax, vertical=False)
    ax.set_xlabel("bytes up and down" if effort == "bytes" else "seconds")
    ax.set_ylabel(f"macro {next(run for seeds in runs.values() for run in seeds).score.title}")
    ax.grid(color=GRID, linewidth=0.6)
    legend_of(figure, ax)
    return figure


def compared_by_client(title: str, rows: Mapping[str, BySeed], score: Score = ACCURACY) -> Figure | None:
    """A box a row over the scores of all clients and seeds; whiskers from the worst tenth to the best."""
    found = {
        name: [accuracy for clients in seeds.values() for accuracy in clients.values()] for name, seeds in rows.items()
    }
    found = {name: values for name, values in found.items() if values}
    if not found:
        return None
    figure, (ax,) = new_figure(title, 0.8 + 0.26 * len(found))
    ax.boxplot(
        list(found.values())[::-1],
        orientation="horizontal",
        whis=(10, 90),
        widths=0.6,
        flierprops={"marker": ".", "markersize": 3},
        medianprops={"color": PALETTE[5]},
    )
    ax.set_yticks(range(1, len(found) + 1), list(found)[::-1], fontsize=SMALL)
    ax.set_xlabel(f"test {score.title}")
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    return figure


def gain_map(
    title: str, gains: Mapping[tuple[str, str], Difference], panels: Mapping[str, Mapping[str, str]]
) -> Figure | None:
    """Rows against data sets, a panel a partition: how much a row gains, in points; in brackets what is within noise.

    ``panels``: title → column of ``gains`` → its label there (`bouquet.experiments.comparison.grid.Table.panels`).
    """
    drawn = {column for _, column in gains}
    panels = {name: {c: label for c, label in columns.items() if c in drawn} for name, columns in panels.items()}
    panels = {name: columns for name, columns in panels.items() if columns}
    if not panels:
        return None
    rows = list(dict.fromkeys(row for row, _ in gains))
    most = max(1.0, *(abs(100 * gain.mean) for gain in gains.values()))
    across = min(len(panels), PANELS_ACROSS)
    down = math.ceil(len(panels) / across)
    widest = max(len(columns) for columns in panels.values())
    width = max(WIDTH, COLUMN_WIDTH * (widest * across + 4))
    figure = titled_figure(title, width, 1.1 + (0.5 + 0.24 * len(rows)) * down)
    axes = figure.subplots(down, across, sharey=True, squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (name, columns) in zip(axes.flat, panels.items(), strict=False):
        points = np.array([[100 * gains[r, c].mean if (r, c) in gains else np.nan for c in columns] for r in rows])
        shown = ax.imshow(points, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        for (y, row), (x, column) in itertools.product(enumerate(rows), enumerate(columns)):
            if (row, column) in gains:
                text = f"{points[y, x]:+.1f}"
                text = f"({text})" if gains[row, column].is_noise else text
                colour = "white" if abs(points[y, x]) > 0.6 * most else "black"
                ax.text(x, y, text, ha="center", va="center", fontsize=SMALL - 2, color=colour)
        ax.set_title(name, fontsize=SMALL + 1)
        ax.set_yticks(range(len(rows)), rows, fontsize=SMALL)
        ax.set_xticks(range(len(columns)), list(columns.values()), fontsize=SMALL - 1, rotation=35, ha="right")
    figure.colorbar(shown, ax=axes, label="points of accuracy", shrink=0.8)
    return figure


def _curve(run: Run, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """What had been spent after each round that the outcome is known of, and the outcome."""
    spent = np.cumsum([sum(line.get(key) or 0 for key in keys) for line in run.rounds])
    rounds, accuracy = run.outcome(run.score.of("macro"))
    there = (rounds >= 1) & (rounds <= len(spent))
    return spent[rounds[there].astype(int) - 1], accuracy[there]
