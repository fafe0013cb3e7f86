"""Tables as loggers write them: what is read all the same, what is named, and what may be left out."""

import sys
import tracemalloc

import numpy as np
import pytest

from bouquet.client.data.own import load_table
from bouquet.client.data.table import samples_of
from bouquet.client.data.table_reader import read_table
from bouquet.client.data.table_text import columns_of
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.settings.sections import TableSettings

ONE = TableSettings(inputs=("a",), time=("t",))


def file(folder, content, name="data.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("columns", "cells"),
    [(("t",), "1e20"), (("t",), "31.02.2026"), (("t",), "nan"), (("t",), ""), (("y", "m"), "2026,3")]
    + [(("y", "m", "d"), cells) for cells in ("2026,13,1", "2026,2,30", "2026.5,1,1", "2026,1,NA", "1e99,1,1")],
)
def test_a_time_that_is_none_is_named(columns, cells, tmp_path):
    path = file(tmp_path, f"a,{','.join(columns)}\n1,{cells}\n")
    with pytest.raises(BouquetError, match=r"line 2, column .* it must be a time: ISO 8601, a date"):
        read_table(path, TableSettings(inputs=("a",), time=columns), strict=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,t\n1,5,10\n", "line 2 has 3 cells, its header 2"),  # a comma in a number
        ('a,t\n"5,10\n1,2\n', "line 2 has 1 cells, its header 2"),  # and not all that is below the quotation mark
        ("a,t\n1,10", "no rows below its header. The last line of data.csv has no end yet"),
        ("a,t\n", "no rows below its header"),
        ("A (cm);t\n1;10\n", r"has no column 'a'; its header has A \(cm\), t. Is it 'A \(cm\)'"),
        ("a,a,t\n1,1,1\n", "has two columns 'a'"),
        ("a,t\n1,1\nx7,2\n", "line 3, column 'a' holds 'x7'; it must be a number"),
        ("a,t\n1e99,1\n", "line 2, column 'a' holds '1e99'"),
        ("a,t\ninf,1\n", "line 2, column 'a' holds 'inf'"),
        ("a,t\n1,yesterday\n", "line 2, column 't' holds 'yesterday'; it must be a time"),
    ],
)
def test_what_is_no_such_table_is_named(content, said, tmp_path):
    with pytest.raises(BouquetError, match=said):
        read_table(file(tmp_path, content), ONE, strict=True)


def test_parquet_takes_pyarrow_and_names_it(tmp_path, monkeypatch):
    path = file(tmp_path, b"PAR1", "data.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for given in (path, tmp_path):
        with pytest.raises(
            BouquetError, match=r"data\.parquet cannot be read \(this takes pyarrow: pip install pyarrow"
        ):
            read_table(given, ONE)
    file(tmp_path, "a,t\n1,10\n")
    assert any("data.parquet cannot be read" in note for note in read_table(tmp_path, ONE).notes)


def parquet(folder, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as arrow_parquet

    arrow_parquet.write_table(pyarrow.table(columns), folder / "data.parquet")
    return folder / "data.parquet"


HOURS = np.datetime64("2026-10-14T00") + np.arange(25_000)


@pytest.mark.parametrize(
    "times",
    [
        *(HOURS.astype(f"datetime64[{unit}]") for unit in ("s", "ms", "us", "ns")),
        HOURS.astype("datetime64[s]").astype(int),
        HOURS.astype(str),
    ],
)
def test_parquet_gives_what_the_same_csv_gives(times, tmp_path):
    values, more = np.random.default_rng(0).normal(size=(2, len(HOURS)))
    wind = ["N", "S", None, "O\u2028E"] * (len(HOURS) // 4)
    about = TableSettings(
        inputs=("PM2.5", "Wörd, x", "wind"), targets=("y",), time=("t",), categories=["wind=N,S,O\u2028E"]
    )
    path = parquet(
        tmp_path, **{"t": times, "PM2.5": values, "Wo\u0308rd, x": more.astype(np.float32), "wind": wind, "y": wind}
    )
    read = read_table(path, about, ("N", "S", "O\u2028E"))
    np.testing.assert_array_equal(read.inputs[:, 0], values)
    np.testing.assert_array_equal(read.inputs[:, 1].astype(np.float32), more.astype(np.float32))
    np.testing.assert_array_equal(read.inputs[2:5, 2:], [[np.nan] * 3, [0, 0, 1], [1, 0, 0]])
    assert read.classes[:4].tolist() == [0, 1, -1, 2]
    np.testing.assert_array_equal(read.times, HOURS.astype("datetime64[s]").astype(float))
    assert read.gaps == {"wind": 6250, "y": 6250}


def test_parquet_that_is_no_such_table_is_named(tmp_path):
    path = parquet(tmp_path, a=[1.0, 2.0], t=[10, 20], several=[[1], [2]], words=["x", "y"])
    assert columns_of(path) == ["a", "t", "words"]
    for column, said in (("b", "no column 'b'; its header has a, t, words"), ("several", "no column 'several'")):
        with pytest.raises(BouquetError, match=said):
            read_table(path, TableSettings(inputs=(column,), time=("t",)))
    with pytest.raises(BouquetError, match=r"line 2, column 'words' holds 'x'; it must be a number"):
        read_table(path, TableSettings(inputs=("words",), time=("t",)))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BouquetError, match=r"The table .*data\.parquet cannot be read \("):
        read_table(path, ONE)


def test_rows_that_do_not_fit_are_left_out_where_they_are_few(tmp_path):
    lines = ["a,t,kind", "1,0,x", "2,60,y,9", "3,120,z", "oops,180,x", "5,soon,y", "6,300,", "7,360,y"]
    good = [f"8,{420 + 60 * i},x" for i in range(74)]
    path = file(tmp_path, "\n".join([*lines, *good[:-1]]) + "\n")
    about = TableSettings(inputs=("a",), targets=("kind",), time=("t",))
    with pytest.raises(BouquetError, match=r"line 3 has 4 cells, its header 3\. Nothing is left out.*--strict"):
        read_table(path, about, ("x", "y"), strict=True)
    table = read_table(path, about, ("x", "y"))
    inputs, labels = table.inputs.ravel().tolist(), table.classes.tolist()
    assert (inputs[:3], labels[:3], table.left_out) == ([1, 6, 7], [0, -1, 1], 4)
    assert table.lines.tolist() == [2, 7, 8, *range(9, 82)]
    (note,) = table.notes
    assert note.startswith("Left out: 4 of 80 rows. ")
    assert [f"line {k}" in note for k in range(2, 9)] == [False, True, True, True, True, False, False]
    with pytest.raises(BouquetError, match=r"4 of 79 rows cannot be read, and at most 5% are left out\. .*line 3 has"):
        read_table(file(tmp_path, "\n".join([*lines, *good[:-2]]) + "\n"), about, ("x", "y"))


def test_parts_of_a_long_table_are_one(tmp_path, monkeypatch):
    monkeypatch.setattr("bouquet.client.data.table_reader.ROWS", 500)
    count = 20_003
    values = np.random.default_rng(0).permutation(count)
    path = file(tmp_path, "a,t\n" + "".join(f"{2 * v},{v}\n" for v in values))
    tracemalloc.start()
    table = read_table(path, ONE)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(table.times, np.arange(count))
    np.testing.assert_array_equal(table.inputs[:, 0], 2 * np.arange(count))
    np.testing.assert_array_equal(table.lines, np.argsort(values) + 2)
    assert most < 3e6  # where all rows are text at once, 6.2 MB


def test_a_gap_is_filled_by_time_not_by_row(tmp_path):
    lines = [f"{60 * i},{i},0" for i in range(6)] + ["999960,,0"] + [f"{1000020 + 60 * i},{i},0" for i in range(6)]
    about = TableSettings(inputs=("a",), targets=("b",), time=("t",), fill=1)
    table = read_table(file(tmp_path, "t,a,b\n" + "\n".join(lines) + "\n"), about)
    assert len(samples_of(table, about, is_forecast=False).x) == 12  # the value of eleven days before is no value
    lines[3] = "180,,0"
    table = read_table(file(tmp_path, "t,a,b\n" + "\n".join(lines) + "\n"), about)
    assert samples_of(table, about, is_forecast=False).x[3] == 2


def test_rounding_is_no_deviation(tmp_path):
    chosen = load_settings(
        None, ["task.kind=regression", "data.dataset=own", "table.inputs=a,b", "table.targets=c", "table.time=t"]
    )
    lines = [f"{60 * i},{-1.1 if i < 900 else 4},{1e6 + i % 2 / 100},{i}" for i in range(1000)]
    data = load_table(file(tmp_path, "t,a,b,c\n" + "\n".join(lines) + "\n"), chosen)
    assert np.full(800, -1.1).std() > 0
    assert data.scaling.std[0] == 1
    assert data.scaling.std[1] == pytest.approx(0.005, rel=1e-3)
    assert np.abs(data.test_x[:, 0]).max() < 10


@pytest.mark.parametrize("kind", ["regression", "forecast"])
def test_a_unit_that_jumps_is_said(kind, tmp_path):
    chosen = [f"task.kind={kind}", "data.dataset=own", "table.inputs=a,b", "table.targets=c", "table.time=t"]
    rng = np.random.default_rng(0)

    def loaded(factor):
        values = rng.normal((5, 5, 5), 1, (200, 3))
        values[190:, 0] *= factor
        lines = [f"{60 * i},{a},{b},{c}" for i, (a, b, c) in enumerate(values)]
        return load_table(file(tmp_path, "t,a,b,c\n" + "\n".join(lines) + "\n"), load_settings(None, chosen))

    assert (loaded(1).notes, loaded(1).warnings) == ((), ())
    found = loaded(1000)
    assert found.notes[0].startswith("a: 10 cells are far outside of the others")
    (said,) = found.warnings
    assert said.startswith("The newest values of 'a' are far from what is trained on: has its unit changed")
