from bouquet.experiments.comparison.plots import score_by_bytes
from bouquet.server.record.reader import read_run


def test_bytes_are_on_a_logarithmic_axis_where_rows_differ_by_more_than_ten_times(write_run, edit_round):
    whole = read_run(write_run("whole", rounds=2))
    folder = write_run("packed", rounds=2)
    for round_ in (1, 2):
        edit_round(folder, round_, bytes_up=10, bytes_down=10)
    packed = read_run(folder)

    assert score_by_bytes("a", {"whole": [whole]}).axes[0].get_xscale() == "linear"
    assert score_by_bytes("b", {"whole": [whole], "packed": [packed]}).axes[0].get_xscale() == "log"
