from bouquet.experiments.plots.style import new_figure, rounds_axis


def members_by_round(run):
    """How many clients each cluster has."""
    lines = [(line["round"], line["strategy"]["members"]) for line in run.rounds if "strategy" in line]
    if not lines:
        return None
    figure, (ax,) = new_figure("Clients in each cluster", 3)
    for k in range(max(len(members) for _, members in lines)):
        ax.plot([r for r, _ in lines], [m[k] if k < len(m) else 0 for _, m in lines], marker="o", label=f"cluster {k}")
    ax.legend()
    rounds_axis(ax)
    return figure


PLOTS = (members_by_round,)
