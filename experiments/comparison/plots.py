"""The plot of a comparison that its runs alone do not have: the score against what was sent for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from bouquet.experiments.plots.style import GRID, bytes_axis, legend_of, line_style, log_axis, new_figure
from bouquet.server.record.reader import Run

WIDE = 10  # where rows sent so many times more than others, their axis is logarithmic


def score_by_bytes(title: str, runs: Mapping[str, Sequence[Run]]) -> Figure | None:
    """Macro score against the bytes, up and down, until then, mean over seeds."""
    figure, (ax,) = new_figure(title, 3.8)
    for index, (name, seeds) in enumerate(runs.items()):
        curves = [_curve(run) for run in seeds]
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
    bytes_axis(ax, vertical=False)
    ax.set_xlabel("bytes up and down")
    ax.set_ylabel(f"macro {next(run for seeds in runs.values() for run in seeds).score.title}")
    ax.grid(color=GRID, linewidth=0.6)
    legend_of(figure, ax)
    return figure


def _curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """What had been sent after each round that the outcome is known of, and the outcome."""
    sent = np.cumsum([sum(line.get(key) or 0 for key in ("bytes_up", "bytes_down")) for line in run.rounds])
    rounds, score = run.outcome(run.score.of("macro"))
    there = (rounds >= 1) & (rounds <= len(sent))
    return sent[rounds[there].astype(int) - 1], score[there]
