"""How the figures look: their size, colours and labels, and their way into a page.

Figures are made for a column of about 540 pixels and stay legible at the width of a phone. Nothing here touches
pyplot, so that figures can be drawn in any thread; of what is global two things are set, once and for all: no text is
read as mathematics or goes through LaTeX, which a ``matplotlibrc`` in the current folder can ask for. Names are what
devices and users say: a ``$`` in one could make drawing fail, and an ``\\input`` put a file into the figure.
"""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

matplotlib.rcParams["text.parse_math"] = matplotlib.rcParams["text.usetex"] = False

WIDTH = 5.6  # inches
LABEL_HEIGHT = 0.135  # inches that a small label needs
LEGEND_LINE = 0.2  # inches
SMALL = 8  # points
GRID = "#dddddd"
MISSING = "#eeeeee"
# Okabe and Ito's palette for colour-blind readers; its yellow and black give way to purple and brown.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6a3d9a", "#8c564b")
LINES = ("-", "--", "-.", ":")


def titled_figure(title: str, width: float, height: float) -> Figure:
    """A figure of that many inches with a title and no axes yet."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def new_figure(title: str, height: float, rows: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with a title and ``rows`` axes under one another that share their horizontal axis."""
    figure = titled_figure(title, WIDTH, height)
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, **options)[:, 0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def rounds_axis(ax: Axes, label: str = "completed rounds") -> None:
    """Whole numbers below, a light grid behind."""
    ax.set_xlabel(label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under the axes, in as many columns as its longest entry leaves room for; the figure grows with it."""
    columns = max(1, min(len(labels), int(62 / (max(map(len, labels)) + 6))))
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (math.ceil(len(labels) / columns) - 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=SMALL + 1, frameon=False)


def legend_of(figure: Figure, *axes: Axes) -> None:
    """`legend_below` of what is drawn in these axes."""
    shown = [entry for ax in axes for entry in zip(*ax.get_legend_handles_labels(), strict=True)]
    legend_below(figure, [handle for handle, _ in shown], [label for _, label in shown])


def thinned(count: int, room: float, needed: float = LABEL_HEIGHT) -> range:
    """Which of ``count`` evenly spaced labels to show, so that in ``room`` inches none touches the next."""
    step = max(1, math.ceil(needed * count / room))
    return range(0, count, step)


def blocks(values: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Runs of equal neighbours as (value, first, one past the last)."""
    runs: list[tuple[Any, int, int]] = []
    for index, value in enumerate(values):
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1], index + 1)
        else:
            runs.append((value, index, index + 1))
    return runs


def colours(values: Sequence[int]) -> dict[int, str]:
    """A colour for each cluster: distinct up to 8, in pairs of shades up to 20, neighbouring hues beyond."""
    ordered = sorted(set(values))
    if len(ordered) <= len(PALETTE):
        return dict(zip(ordered, PALETTE, strict=False))
    name, steps = ("tab20", 20) if len(ordered) <= 20 else ("turbo", len(ordered))
    chosen = matplotlib.colormaps[name].resampled(steps)
    return {value: matplotlib.colors.to_hex(chosen(index)) for index, value in enumerate(ordered)}


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the line number ``index`` in a figure with many."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": LINES[index // len(PALETTE) % len(LINES)]}


def dots(x: Sequence[float] | NDArray[np.float64]) -> dict[str, Any]:
    """A mark at each point of a line, unless there are so many that they hide it."""
    return {"marker": "o", "markersize": 3} if len(x) <= 30 else {}


def svg(figure: Figure) -> bytes:
    """The figure as SVG with its text as text; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bouquet"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def data_uri(figure: Figure) -> str:
    """The figure as the source of an image in a page. In an image, the ids of one SVG do not meet another's."""
    return "data:image/svg+xml;base64," + b64encode(svg(figure)).decode("ascii")
