"""What only DC-PFL has to show: when groups were split and why, how, and what the slow layers saved."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import dendrogram

from bouquet.experiments.plots.style import (
    PALETTE,
    SMALL,
    WIDTH,
    bytes_figure,
    dots,
    legend_of,
    log_axis,
    new_figure,
    rounds_axis,
    thinned,
)
from bouquet.server.record.reader import Run, is_number

_MARKS = {True: ("^", PALETTE[2], "trial won"), False: ("v", PALETTE[5], "trial lost")}


def periods_by_round(run: Run) -> Figure | None:
    """The loss of the models as received, l(t), and the radius of curvature r(t), with the ends of the periods."""
    records = _records(run)
    losses = {x: record["loss"] for x, record in records.items() if is_number(record.get("loss"))}
    if not losses:
        return None
    figure, (loss, radius) = new_figure("Rapid decrease periods", 4.6, rows=2)
    loss.plot(list(losses), list(losses.values()), color=PALETTE[0], **dots(list(losses)), label="loss as received")
    radii = {x: record["radius"] for x, record in records.items() if is_number(record.get("radius"))}
    radius.plot(list(radii), list(radii.values()), "s", color=PALETTE[3], markersize=4, label="radius (where finite)")
    ends = {record["period_end"] for record in records.values() if is_number(record.get("period_end"))}
    for index, end in enumerate(sorted(ends)):
        for ax in (loss, radius):
            ax.axvline(
                end, color="#666666", linestyle=":", label="end of a period" if ax is loss and not index else None
            )
    for won, (mark, colour, label) in _MARKS.items():
        at = [x for x, record in records.items() if (trial := record.get("trial")) and trial["accepted"] is won]
        at = [x for x in at if x in losses]
        if at:
            loss.plot(at, [losses[x] for x in at], mark, color=colour, markersize=8, label=label)
    loss.set_ylabel("training loss")
    radius.set_ylabel("radius r(t)")
    log_axis(radius)
    for ax in (loss, radius):
        rounds_axis(ax, "round" if ax is radius else "")
    legend_of(figure, loss, radius)
    return figure


def group_graph(run: Run) -> Figure | None:
    """The dendrogram of the clients with a line at each γ̃ that cut it, from the round on in which it did."""
    records = _records(run)
    graph: dict[str, Any] | None = None
    for record in records.values():
        graph = record.get("graph") or graph
    if graph is None:
        return None
    linkage = np.array(graph["linkage"], dtype=float)
    linkage[:, 2] /= linkage[-1, 2] or 1.0
    drawn = dendrogram(linkage, labels=graph["clients"], no_plot=True)
    figure, (ax,) = new_figure("Hierarchical group graph, and where it was cut", 4.2)
    joints = [np.column_stack(joint) for joint in zip(drawn["icoord"], drawn["dcoord"], strict=True)]
    ax.add_collection(LineCollection(joints, colors="#444444", linewidths=1))
    count = len(graph["clients"])
    ax.set_xlim(0, 10 * count)
    ax.set_ylim(-0.02, 1.06)
    ax.set_ylabel("distance, as a fraction of γ_global")
    shown = thinned(count, WIDTH - 0.8)
    # SciPy puts leaf i at 10 · i + 5.
    ax.set_xticks([10 * leaf + 5 for leaf in shown], labels=[drawn["ivl"][leaf] for leaf in shown], fontsize=SMALL)
    ax.tick_params(axis="x", rotation=90)
    gamma = None
    for x, record in records.items():
        if is_number(record.get("gamma")) and record["gamma"] != gamma:
            gamma = record["gamma"]
            stage = len(ax.lines)
            label = f"γ̃ = {gamma:g}, {'at first' if stage == 0 else f'after round {x}'}"
            ax.axhline(gamma, color=PALETTE[stage % len(PALETTE)], linestyle="--", linewidth=1.2, label=label)
    legend_of(figure, ax)
    return figure


def bytes_against_fedavg(run: Run) -> Figure | None:
    """Payload of each round, up and down together, and since the start, against what FedAvg would have sent.

    FedAvg sends every device that is asked the whole model, and gets it from every one that replies; how much that is
    in bytes is read off the first round, in which this method does the same.
    """
    if not run.rounds or not run.rounds[0].get("bytes_by_client"):
        return None
    up, down = np.max(list(run.rounds[0]["bytes_by_client"].values()), axis=0)
    x = np.array([line["round"] for line in run.rounds], dtype=float)
    own = np.array([line["bytes_up"] + line["bytes_down"] for line in run.rounds], dtype=float)
    fedavg = np.array([line["replies"] * up + (line["replies"] + line["failures"]) * down for line in run.rounds])
    return bytes_figure("Bytes by round, against FedAvg", [("this run", x, own), ("FedAvg", x, fedavg)])


def _records(run: Run) -> dict[int, dict[str, Any]]:
    return {line["round"]: line.get("strategy") or {} for line in run.rounds}


PLOTS = (periods_by_round, group_graph, bytes_against_fedavg)
