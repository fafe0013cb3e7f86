"""The plots that show each client by itself; legible from two clients to several hundred."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bouquet.experiments.plots.style import MISSING, SMALL, WIDTH, blocks, colours, legend_below, new_figure, thinned
from bouquet.server.record.reader import Run

MOST_LEGEND_ENTRIES = 12
MOST_SEPARATORS = 24


def cluster_colours(run: Run) -> dict[int, str]:
    """The colour of every cluster that the run ever had; the same in plots and on pages."""
    seen = set(run.assignment.values())
    for line in run.rounds:
        seen.update((line.get("assignment") or {}).values())
    return colours(sorted(seen))


def identity_by_round(run: Run) -> Figure | None:
    """Heat map, clients by rounds: the cluster that each client belonged to."""
    clients = run.by_group()
    if not clients or not any(line.get("assignment") for line in run.rounds):
        return None
    palette = cluster_colours(run)
    position = {cluster: index for index, cluster in enumerate(palette)}
    row = {client: index for index, client in enumerate(clients)}
    cells = np.full((len(clients), run.completed), np.nan)
    for line in run.rounds:
        for client, cluster in (line.get("assignment") or {}).items():
            cells[row[client], line["round"] - 1] = position[cluster]
    height = min(max(0.16 * len(clients) + 1.4, 2.6), 8.0)
    figure, (ax,) = new_figure("Cluster of each client by round", height)
    shades = ListedColormap(list(palette.values())).with_extremes(bad=MISSING)
    norm = BoundaryNorm(np.arange(len(palette) + 1) - 0.5, len(palette))
    image = ax.imshow(
        cells,
        aspect="auto",
        interpolation="nearest",
        cmap=shades,
        norm=norm,
        extent=(0.5, run.completed + 0.5, len(clients) - 0.5, -0.5),
    )
    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _name_rows(ax.yaxis, clients, height - 1.4)
    if run.groups:
        groups = [run.groups.get(client, "?") for client in clients]
        _name_blocks(ax.secondary_yaxis("right").yaxis, groups, "group", height - 1.4)
        _separate(ax, groups, vertical=False)
    if len(palette) <= MOST_LEGEND_ENTRIES:
        handles = {f"cluster {cluster}": Patch(color=colour) for cluster, colour in palette.items()}
        if np.isnan(cells).any():
            handles["not known"] = Patch(color=MISSING)
        legend_below(figure, list(handles.values()), list(handles))
    else:
        bar = figure.colorbar(image, ax=ax, orientation="horizontal", label="cluster", shrink=0.8, aspect=40)
        ticks = thinned(len(palette), WIDTH * 0.8, needed=0.3)
        bar.set_ticks(list(ticks), labels=[str(list(palette)[index]) for index in ticks])
    return figure


def _shortened(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 9] + "…" + name[-8:]


def _name_rows(axis: Axis, names: Sequence[str], room: float) -> None:
    """As many names along an axis as ``room`` inches hold."""
    shown = thinned(len(names), room)
    axis.set_ticks(list(shown), labels=[_shortened(names[index]) for index in shown], fontsize=SMALL)


def _name_blocks(axis: Axis, values: Sequence[object], kind: str, room: float) -> None:
    """The value of each block of equal neighbours at its middle; where room is short, of some of them."""
    runs = blocks(values)
    long = len(runs) * 0.7 <= room
    shown = thinned(len(runs), room, needed=0.7 if long else 0.3)
    axis.set_ticks(
        [(runs[index][1] + runs[index][2] - 1) / 2 for index in shown],
        labels=[f"{kind} {runs[index][0]}" if long else str(runs[index][0]) for index in shown],
        fontsize=SMALL,
    )
    axis.set_tick_params(length=0)
    if not long:
        axis.set_label_text(kind)


def _separate(ax: Axes, values: Sequence[object], vertical: bool) -> None:
    """A thin dark line between blocks of equal neighbours, unless there are so many that lines are all one sees."""
    draw = ax.axvline if vertical else ax.axhline
    runs = blocks(values)
    for _, first, _ in runs[1:] if len(runs) <= MOST_SEPARATORS else []:
        draw(first - 0.5, color="#444444", linewidth=0.8)
