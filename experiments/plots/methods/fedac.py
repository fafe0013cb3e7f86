"""What only FedAC has to show: how its number of clusters tuned itself, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bouquet.experiments.plots.style import GRID, PALETTE, dots, legend_of, new_figure, rounds_axis
from bouquet.server.record.reader import Run, is_number

# kind → marker, colour, name in the legend, how far from the line it is drawn
CHANGES = {
    "split": ("^", PALETTE[2], "clusters split", 0.35),
    "merge": ("v", PALETTE[5], "clusters merged", -0.35),
    "removal": ("x", "#444444", "empty clusters removed", -0.35),
}


def number_of_clusters_by_round(run: Run) -> Figure | None:
    """K after each round with its splits and merges, over the figures that a tuning looks at.

    A mark at the line of K bears the number of splits or merges in that round, and the figure that decided the first.
    Before the first round stands the K that it began with. Below are the silhouette of the best K, and the mean and the
    range of ρ over the clusters.
    """
    lines = [(line["round"], line.get("strategy") or {}) for line in run.rounds]
    lines = [(at, record) for at, record in lines if is_number(record.get("num_clusters"))]
    if not lines:
        return None
    figure, (count, figures) = new_figure("Number of clusters, splits and merges by round", 5.0, rows=2)
    # A round with too few replies leaves the record of an earlier one.
    changed = [(at, record) for at, record in lines if record.get("round") == at]
    before, clusters = _before(lines[0][1]), [record["num_clusters"] for _, record in lines]
    rounds, clusters = [lines[0][0] - 1, *(at for at, _ in lines)], [before, *clusters]
    count.plot(rounds, clusters, color=PALETTE[0], **dots(rounds), drawstyle="steps-post", label="clusters (K)")
    if run.groups:
        count.axhline(len(set(run.groups.values())), color="#666666", linestyle=":", linewidth=1.2, label="true groups")
    _mark_changes(count, changed)
    _draw_silhouettes(figures, changed)
    _draw_ratios(figures, changed)
    count.set_ylabel("clusters")
    count.set_ylim(0, max(clusters) * 1.25 + 1)
    count.yaxis.set_major_locator(MaxNLocator(integer=True))
    figures.set_ylabel("silhouette, ρ")
    figures.axhline(0, color=GRID, linewidth=0.8)
    for ax in (count, figures):
        rounds_axis(ax, "round" if ax is figures else "")
    legend_of(figure, count, figures)
    return figure


def _before(record: Mapping[str, Any]) -> int:
    """K before the changes of a round."""
    splits = sum(1 if change.get("kind") == "split" else -1 for change in record.get("changes", ()))
    return int(record["num_clusters"]) - splits


def _mark_changes(ax: Axes, lines: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    for kind, (marker, colour, label, offset) in CHANGES.items():
        at, height = [], []
        for round_, record in lines:
            found = [change for change in record.get("changes", ()) if change.get("kind") == kind]
            if not found:
                continue
            at.append(round_)
            height.append(record["num_clusters"] + offset)
            decided = f" at {found[0]['figure']:.2f}" if is_number(found[0].get("figure")) else ""
            ax.annotate(
                f"{len(found)}{decided}",
                (round_, height[-1]),
                xytext=(5, 0),
                textcoords="offset points",
                va="bottom" if offset > 0 else "top",
                fontsize=7,
                color=colour,
            )
        if at:
            ax.plot(at, height, marker, color=colour, markersize=5, linestyle="none", label=label)


def _draw_silhouettes(ax: Axes, lines: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    best = {at: max(record["silhouettes"].values()) for at, record in lines if record.get("silhouettes")}
    if best:
        ax.plot(list(best), list(best.values()), "-", color=PALETTE[3], **dots(list(best)), label="best silhouette")


def _draw_ratios(ax: Axes, lines: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    known = {at: [r for r in record.get("ratios", ()) if is_number(r)] for at, record in lines}
    known = {at: values for at, values in known.items() if values}
    if not known:
        return
    at = list(known)
    ax.plot(at, [np.mean(v) for v in known.values()], "--", color=PALETTE[1], **dots(at), label="ρ = intra / inter")
    low, high = [min(v) for v in known.values()], [max(v) for v in known.values()]
    ax.fill_between(at, low, high, color=PALETTE[1], alpha=0.15, linewidth=0)


PLOTS = (number_of_clusters_by_round,)
