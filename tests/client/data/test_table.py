"""Tables on a device: what is read of a CSV, which windows there are, and what is tested."""

import gzip
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from bouquet.client.data.own import load_table
from bouquet.client.data.table import divide, samples_of
from bouquet.client.data.table_reader import read_table
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.settings.sections import TableSettings

HOURLY = {"inputs": ("a",), "targets": ("a",), "time": ("t",)}


def csv(folder, *lines, name="data.csv", end="\n"):
    path = folder / name
    path.write_text("\n".join(lines) + end)
    return path


def hours(values, skip=()):
    """Rows of one value an hour, from 2026-01-01, without those of some hours."""
    return [f"2026-01-{1 + n // 24:02d}T{n % 24:02d}:00,{v}" for n, v in enumerate(values) if n not in skip]


def test_of_rows_of_the_same_time_the_last_counts_and_rows_are_sorted(tmp_path):
    table = read_table(csv(tmp_path, "a,t", "3,30", "1,10", "9,30"), TableSettings(inputs=("a",), time=("t",)))
    assert (table.inputs.tolist(), table.times.tolist()) == ([[1], [9]], [10, 30])
    assert "1 rows have a time that a later row has" in table.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv.gz", gzip.compress(b"a\n1\n" * 99, mtime=0)[:12], "cannot be read|cannot be unpacked"),
        ("a.csv.gz", gzip.compress(b"a\n1\n" * 99, mtime=0)[:20] + bytes(60), "cannot be unpacked|cannot be read"),
        ("a.csv.xz", lzma.compress(b"a\n1\n" * 99)[:30] + bytes(60), "cannot be unpacked|cannot be read"),
        ("a.csv", b"\xff\xfea\n1\n", "has no column 'a'"),
        ("a.csv", b'a\n"' + b"1" * 200_000 + b'"\n', "field larger than field limit"),
        ("a.csv", b'"' + b"a" * 200_000 + b'"\n1\n', "field larger than field limit"),
        ("a.csv", b"", "has no column 'a'; its header has nothing"),
    ],
)
def test_a_file_that_is_damaged_is_named(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BouquetError, match=said):
        read_table(tmp_path / name, TableSettings(inputs=("a",)))


def test_short_gaps_are_filled_in_the_inputs_and_never_in_a_target(tmp_path):
    path = csv(tmp_path, "t,a", *hours([0, 1, "", 3, "", "", 6, 7, 8]))
    about = TableSettings(**HOURLY, history=2, horizon=1, fill=1)
    samples = samples_of(read_table(path, about), about, is_forecast=True)
    assert samples.x[:, 0].tolist() == [[1, 1], [6, 7]]  # a gap of two is none of one; the target of 0, 1 is a gap
    assert samples.y[:, 0].tolist() == [3, 8]


@limits(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(st.integers(0, 99), st.none()), min_size=2, max_size=40),
    history=st.integers(1, 5),
    horizon=st.integers(1, 5),
    fraction=st.floats(0.05, 0.95),
)
def test_windows_and_their_division_against_a_plain_loop(values, history, horizon, fraction, tmp_path_factory):
    path = csv(
        tmp_path_factory.mktemp("t"), "t,a", *(f"{60 * i},{'' if v is None else v}" for i, v in enumerate(values))
    )
    about = TableSettings(**HOURLY, history=history, horizon=horizon)
    samples = samples_of(read_table(path, about), about, is_forecast=True)
    expected = [
        (values[i : i + history], values[i + history - 1 + horizon], i)
        for i in range(len(values) - history - horizon + 1)
        if None not in values[i : i + history] and values[i + history - 1 + horizon] is not None
    ]
    assert samples.x[:, 0].tolist() == [window for window, _, _ in expected]
    assert samples.y[:, 0].tolist() == [target for _, target, _ in expected]
    if not expected:
        return
    train, test = divide(samples, about, fraction)
    newest_trained = max((expected[i][2] + history - 1 + horizon for i in train), default=-1)
    assert all(expected[i][2] > newest_trained for i in test)  # not one row of a tested window is in training


def test_the_cut_is_one_for_all_and_no_row_of_a_tested_window_is_before_it(tmp_path):
    path = csv(tmp_path, "t,a", *hours(range(48)))
    about = TableSettings(**HOURLY, history=3, horizon=2, cut="2026-01-02")
    samples = samples_of(read_table(path, about), about, is_forecast=True)
    train, test = divide(samples, about, 0.2)
    assert samples.y[train].max() == 23  # the last hour of the first day
    assert samples.x[test].min() == 24
    until = TableSettings(**HOURLY, history=3, horizon=2, until="2026-01-02T10:00")
    assert samples_of(read_table(path, until), until, is_forecast=True).y.max() == 33


def test_naive_forecasts_are_the_last_value_and_that_of_a_day_before(tmp_path):
    path = csv(tmp_path, "t,a", *hours(range(60)))
    about = TableSettings(**HOURLY, history=24, horizon=6)
    samples = samples_of(read_table(path, about), about, is_forecast=True)
    assert samples.naive_names == ("the last value", "the value of a day before")
    np.testing.assert_array_equal(samples.naive[0], samples.y - 6)
    np.testing.assert_array_equal(samples.naive[1], samples.y - 24)


def test_a_time_that_is_years_away_is_no_table_of_a_million_steps(tmp_path):
    path = csv(tmp_path, "t,a", "0,1", "60,2", "120,3", "999999999,4")
    about = TableSettings(**HOURLY)
    with pytest.raises(BouquetError, match="is a time wrong"):
        samples_of(read_table(path, about), about, is_forecast=True)


def test_windows_that_do_not_fit_the_memory_are_refused_before_they_are_made(tmp_path, monkeypatch):
    path = csv(tmp_path, "t,a", *hours(range(48)))
    about = TableSettings(**HOURLY, history=8)
    monkeypatch.setattr(
        "bouquet.client.data.table.available_bytes", lambda: 3 * 40 * 8 * 8
    )  # 40 windows of 8 values, thrice
    assert len(samples_of(read_table(path, about), about, is_forecast=True).x) == 40
    monkeypatch.setattr("bouquet.client.data.table.available_bytes", lambda: 3 * 40 * 8 * 8 - 1)
    with pytest.raises(BouquetError, match="40 windows of 8 rows and 1 columns take 0 MB"):
        samples_of(read_table(path, about), about, is_forecast=True)


@pytest.mark.parametrize("rows", [[], ["0,1"], ["0,1", "60,2"], ["0,NA", "60,NA", "120,NA"], ["0,5"] * 9])
def test_a_table_without_a_single_window_is_an_error_and_no_crash(rows, tmp_path):
    chosen = ["task.kind=forecast", "data.dataset=own", "table.inputs=a", "table.targets=a", "table.time=t"]
    with pytest.raises(BouquetError):
        load_table(csv(tmp_path, "t,a", *rows), load_settings(None, [*chosen, "table.history=2"]))


def test_everything_is_standardised_by_what_is_trained_on(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{60 * i},{a},{b}" for i, (a, b) in enumerate(rng.normal((10, -5), (3, 2), (200, 2)))]
    chosen = load_settings(
        None, ["task.kind=regression", "data.dataset=own", "table.inputs=a", "table.targets=b", "table.time=t"]
    )
    data = load_table(csv(tmp_path, "t,a,b", *rows), chosen)
    assert (data.train_x.shape, data.train_y.shape, data.test_y.shape) == ((160, 1), (160, 1), (40, 1))
    assert abs(data.train_x.mean()) < 1e-6
    assert abs(data.train_y.std() - 1) < 1e-6
    true = np.array([float(row.split(",")[2]) for row in rows])
    np.testing.assert_allclose(data.scaling.undone(data.test_y)[:, 0], true[160:], rtol=1e-5)
    assert data.naive_names == ("the mean",)
    np.testing.assert_allclose(data.naive[0], np.full((40, 1), true[:160].mean()))
