"""What only the joint gradient and loss method, and IFCA, have to show: what the devices chose by, and what came of it.

Who chose what in which round is drawn by `bouquet.experiments.plots.clients.identity_by_round`, as for every method.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bouquet.experiments.plots.style import PALETTE, dots, legend_of, new_figure, rounds_axis
from bouquet.server.record.reader import Run, is_number


def gaps_by_round(run: Run) -> Figure | None:
    """How far apart the models were to a device: in loss, and in the similarity of their steps; mean over devices.

    The larger gap decides early. In the first round nothing has moved, and there is no similarity.
    """
    figure, (ax,) = new_figure("What the devices chose by", 3.2)
    _draw(ax, run, {"loss_gap": "gap in loss", "similarity_gap": "gap in similarity"})
    if not ax.lines:
        return None
    rounds_axis(ax, "round")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("most − least")
    legend_of(figure, ax)
    return figure


def identities_by_round(run: Run) -> Figure | None:
    """How many devices chose another cluster than before, and were told; and empty clusters."""
    figure, (devices, clusters) = new_figure("Devices choosing, and clusters left empty", 4.2, rows=2)
    _draw(devices, run, {"moved": "chose another", "told": "were told a cluster"})
    _draw(clusters, run, {"empty": "clusters that nobody chose"}, first=3)
    if not devices.lines:
        return None
    for ax, label in ((devices, "devices"), (clusters, "clusters")):
        rounds_axis(ax, "round" if ax is clusters else "")
        ax.set_ylim(bottom=-0.05)
        ax.set_ylabel(label)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend_of(figure, devices, clusters)
    return figure


def _draw(ax: Axes, run: Run, labels: dict[str, str], first: int = 0) -> None:
    """A line for each key of the strategy's record that some round has a number for."""
    for index, (key, label) in enumerate(labels.items(), start=first):
        seen = {line["round"]: (line.get("strategy") or {}).get(key) for line in run.rounds}
        points = {x: y for x, y in seen.items() if is_number(y)}
        if points:
            ax.plot(list(points), list(points.values()), color=PALETTE[index], **dots(list(points)), label=label)


PLOTS = (gaps_by_round, identities_by_round)
