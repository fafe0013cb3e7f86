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
from matplotlib.ticker import MaxNLocator

from bouquet.common.errors import BouquetError
from bouquet.common.methods import find_method
from bouquet.common.plugins import is_loaded, load_object
from bouquet.experiments.plots.clients import identity_by_round, score_by_client, similarity_map
from bouquet.experiments.plots.style import PALETTE, bytes_figure, dots, legend_of, line_style, new_figure, rounds_axis
from bouquet.server.record.reader import Points, Run

PlotFunction = Callable[[Run], Figure | None]


def plots_of(run: Run) -> list[Figure]:
    """Every figure that the run's record has something for, the strategy's own last."""
    drawn = [plot(run) for plot in (*PLOTS, *plots_of_method(run.settings.strategy.name))]
    return [figure for figure in drawn if figure is not None]


def plots_of_method(name: str) -> Sequence[PlotFunction]:
    """The plots that only this method has; none where the record is of a method that is not installed here.

    A strategy that is named as ``module:Class`` or ``./file.py:Class`` has them as its class attribute ``plots``, which
    is looked at by the process of the run alone: to read a record is not to run code that the record names.
    """
    try:
        method = find_method(name)
        if ":" in name:
            return load_object(name, "Strategy").plots if is_loaded(name) else ()
        return importlib.import_module(method.plots).PLOTS if method.plots else ()
    except (BouquetError, ImportError):
        return ()


def score_by_round(run: Run) -> Figure | None:
    """Test score after each round: of the models handed out, and of each device's own after training."""
    lines = [
        ("macro over clients", *run.outcome(run.score.of("macro")), "-", PALETTE[0]),
        ("micro over examples", *run.outcome(run.score.of("micro")), "--", PALETTE[1]),
        ("macro, own model trained", *run.series(run.score.of("trained_macro")), ":", PALETTE[0]),
        ("micro, own model trained", *run.series(run.score.of("trained_micro")), "-.", PALETTE[1]),
    ]
    return _curves(f"Test {run.score.label} by round", run.score.title, lines)


def loss_by_round(run: Run) -> Figure | None:
    """Mean training loss of the models as received, and while the devices train."""
    lines = [
        ("models as received", *run.outcome("loss"), "-", PALETTE[0]),
        ("during local training", *run.series("train_loss"), ":", PALETTE[1]),
    ]
    return _curves("Training loss by round", "loss", lines)


def bytes_by_round(run: Run) -> Figure | None:
    """Payload in each round and in total, up (to the server) and down (to the devices)."""
    directions = [("up, to the server", "bytes_up"), ("down, to the devices", "bytes_down")]
    if not any(len(run.series(key)[0]) for _, key in directions):
        return None
    return bytes_figure("Bytes by round", [(label, *run.series(key)) for label, key in directions])


def clusters_by_round(run: Run) -> Figure | None:
    """Number of clusters, and where the true groups are known, how well the clusters agree with them."""
    x, count = run.series("clusters")
    if not len(x):
        return None
    agreement = [
        (label, *run.series(key), style, colour)
        for label, key, style, colour in (
            ("purity", "purity", "-", PALETTE[2]),
            ("adjusted Rand index", "ari", "--", PALETTE[5]),
        )
    ]
    known = any(len(points[1]) for points in agreement)
    figure, axes = new_figure("Clusters by round", 4.2 if known else 2.8, rows=2 if known else 1)
    axes[0].plot(x, count, color=PALETTE[0], **dots(x), drawstyle="steps-post", label="clusters found")
    if run.groups:
        true = len(set(run.groups.values()))
        axes[0].axhline(true, color="#666666", linestyle=":", linewidth=1.2, label="true groups")
    axes[0].set_ylabel("clusters")
    axes[0].set_ylim(0, max([*count, 1]) * 1.15 + 0.5)
    axes[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    if known:
        for label, at, values, style, colour in agreement:
            axes[1].plot(at, values, style, color=colour, **dots(at), label=label)
        axes[1].set_ylabel("agreement")
        axes[1].set_ylim(min(0.0, *(min(points[2], default=0.0) for points in agreement)) - 0.04, 1.04)
    for ax in axes:
        rounds_axis(ax, "round" if ax is axes[-1] else "")
    legend_of(figure, *axes)
    return figure


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


def _curves(title: str, label: str, lines: Sequence[tuple[str, np.ndarray, np.ndarray, str, str]]) -> Figure | None:
    """One axes with a line for each (label, x, y, dashes, colour) that has points."""
    present = [line for line in lines if len(line[1])]
    if not present:
        return None
    figure, (ax,) = new_figure(title, 3.4)
    for name, x, y, dashes, colour in present:
        ax.plot(x, y, dashes, color=colour, **dots(x), label=name)
    rounds_axis(ax)
    ax.set_ylabel(label)
    legend_of(figure, ax)
    return figure


PLOTS: tuple[PlotFunction, ...] = (
    score_by_round,
    loss_by_round,
    clusters_by_round,
    identity_by_round,
    score_by_client,
    similarity_map,
    bytes_by_round,
)
