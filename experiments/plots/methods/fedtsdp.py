"""What only FedTSDP has to show: the Hopkins statistic by round and what followed from it.

Its matrix of Jensen–Shannon divergences is drawn by `bouquet.experiments.plots.clients.similarity_map`, as every
method's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bouquet.experiments.plots.style import PALETTE, dots, legend_below, new_figure, rounds_axis
from bouquet.server.record.reader import Run


def hopkins_by_round(run: Run) -> Figure | None:
    """H with the deviation of one draw and its threshold, and the layers shared; marks where they changed.

    A thin line is a round that formed the clusters anew, a thick one a round after which one layer less was shared.
    """
    seen = {line["round"]: line["strategy"] for line in run.rounds if _has_hopkins(line.get("strategy") or {})}
    if not seen:
        return None
    x = np.array(list(seen))
    h, deviation = (np.array([seen[r][key] for r in seen]) for key in ("hopkins", "hopkins_deviation"))
    figure, (top, bottom) = new_figure("Hopkins statistic by round", 4.4, rows=2, height_ratios=(2, 1))
    (curve,) = top.plot(x, h, color=PALETTE[0], **dots(x))
    top.fill_between(x, h - deviation, h + deviation, color=PALETTE[0], alpha=0.15, linewidth=0)
    threshold = top.axhline(seen[x[-1]]["hopkins_threshold"], color="#666666", linestyle=":", linewidth=1.2)
    shown: dict[str, Any] = {"H, and the deviation of one draw": curve, "threshold": threshold}
    for ax in (top, bottom):
        for r in (r for r in seen if seen[r]["clustered"]):
            shown["clustered anew"] = ax.axvline(r, color=PALETTE[5], linewidth=0.8, alpha=0.6)
        for r in _fewer_layers(seen):
            shown["one layer less is shared"] = ax.axvline(r, color=PALETTE[2], linewidth=2.2, alpha=0.8)
    (real,) = bottom.plot(x, [seen[r]["shared_layers"] for r in seen], color=PALETTE[3])
    (whole,) = bottom.plot(
        x, [seen[r]["whole_shared_layers"] for r in seen], "--", color=PALETTE[6], drawstyle="steps-post"
    )
    shown |= {"shared layers, as a real number": real, "shared layers": whole}
    top.set_ylabel("H")
    bottom.set_ylabel("layers")
    bottom.set_ylim(bottom=0)
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in (top, bottom):
        rounds_axis(ax, "round" if ax is bottom else "")
    legend_below(figure, list(shown.values()), list(shown))
    return figure


def _has_hopkins(record: Mapping[str, Any]) -> bool:
    """Rounds with fewer than two usable models have no H."""
    return record.get("hopkins") is not None


def _fewer_layers(seen: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Rounds that ended with fewer whole layers shared than the round before them."""
    rounds = list(seen)
    before = dict(zip(rounds[1:], rounds, strict=False))
    return [r for r, b in before.items() if seen[r]["whole_shared_layers"] < seen[b]["whole_shared_layers"]]


PLOTS = (hopkins_by_round,)
