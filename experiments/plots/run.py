"""The plots of a run: plain functions from a `Run` to a figure, or to None where the record has nothing to draw.

A method adds its own: a module ``plots`` in its folder, named where the method is registered
(`bouquet.common.methods`), with ``PLOTS``, functions of the same kind, each of which gives its figure a title
(`bouquet.experiments.plots.style.new_figure` does). Plots by client are in `bouquet.experiments.plots.clients`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from bouquet.common.errors import BouquetError
from bouquet.common.methods import find_method
from bouquet.experiments.plots.clients import identity_by_round
from bouquet.experiments.plots.style import dots, legend_of, line_style, new_figure, rounds_axis
from bouquet.server.record.reader import Points, Run

PlotFunction = Callable[[Run], Figure | None]


def plots_of(run: Run) -> list[Figure]:
    """Every figure that the run's record has something for, the strategy's own last."""
    drawn = [plot(run) for plot in (*PLOTS, *plots_of_method(run.settings.strategy.name))]
    return [figure for figure in drawn if figure is not None]


def plots_of_method(name: str) -> Sequence[PlotFunction]:
    """The plots that only this method has; none where the record is of a method that is not installed here.

    To read a record runs no code that the record names, beside that of registered methods.
    """
    try:
        method = find_method(name)
        return importlib.import_module(method.plots).PLOTS if method.plots else ()
    except (BouquetError, ImportError):
        return ()


def compared_by_round(
    title: str, label: str, runs: Mapping[str, Sequence[Run]], points_of: Callable[[Run], Points]
) -> Figure | None:
    """A quantity by round for several strategies: mean over seeds, with a band of one sample deviation.

    ``runs`` maps a line's label to the runs of its seeds; ``points_of`` gives a run's rounds and values. Only rounds
    that every seed has a value for are drawn.
    """
    figure, (ax,) = new_figure(title, 3.8)
    for index, (name, seeds) in enumerate(runs.items()):
        points = [dict(zip(*points_of(run), strict=True)) for run in seeds]
        if not points:
            continue
        x = np.array(sorted(set.intersection(*(set(values) for values in points))))
        if not len(x):
            continue
        values = np.array([[seed[at] for at in x] for seed in points])
        mean = values.mean(axis=0)
        style = line_style(index)
        ax.plot(x, mean, label=name, **dots(x), **style)
        if len(values) > 1:
            deviation = values.std(axis=0, ddof=1)
            ax.fill_between(x, mean - deviation, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)
    if not ax.lines:
        return None
    rounds_axis(ax)
    ax.set_ylabel(label)
    legend_of(figure, ax)
    return figure


PLOTS: tuple[PlotFunction, ...] = (identity_by_round,)
