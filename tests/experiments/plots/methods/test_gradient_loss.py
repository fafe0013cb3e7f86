from bouquet.experiments.plots.methods.gradient_loss import gaps_by_round, identities_by_round
from bouquet.server.record.reader import read_run


def points(ax):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def record(**changes):
    return {"moved": 2, "told": 0, "empty": 1, "loss_gap": 0.05, "similarity_gap": None, **changes}


def test_the_gaps_are_drawn_where_there_are_any(write_run, edit_round):
    folder = write_run(rounds=3)
    edit_round(folder, 1, strategy=record())
    edit_round(folder, 2, strategy=record(loss_gap=0.1, similarity_gap=0.7))
    (ax,) = gaps_by_round(read_run(folder)).axes
    assert points(ax) == {"gap in loss": ([1, 2], [0.05, 0.1]), "gap in similarity": ([2], [0.7])}


def test_devices_and_empty_clusters_are_counted(write_run, edit_round):
    folder = write_run(rounds=2)
    edit_round(folder, 1, strategy=record())
    edit_round(folder, 2, strategy=record(told=1, empty=0))
    devices, clusters = identities_by_round(read_run(folder)).axes
    assert points(devices) == {
        "chose another": ([1, 2], [2, 2]),
        "were told a cluster": ([1, 2], [0, 1]),
    }
    assert points(clusters) == {"clusters that nobody chose": ([1, 2], [1, 0])}
