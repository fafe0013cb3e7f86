"""Several series in one table: named and refused, whatever says which is which; a table that only looks so is read."""

from datetime import date, timedelta

import numpy as np
import pytest

from bouquet.client.data.own import load_table
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings

HOURS = [str(np.datetime64("2026-10-14T00:00") + np.timedelta64(h, "h")) for h in range(200)]
A, B = np.round(np.sin(np.arange(200) / 4), 2), np.round(50 + np.cos(np.arange(200) / 4), 2)


def late(stamp, minutes=3):
    return str(np.datetime64(stamp) + np.timedelta64(minutes, "m"))


BY_TURNS = [row for k, t in enumerate(HOURS) for row in (f"{t},a,{A[k]}", f"{t},b,{B[k]}")]
MINUTES_APART = [row for k, t in enumerate(HOURS) for row in (f"{t},a,{A[k]}", f"{late(t)},b,{B[k]}")]
BELOW_EACH_OTHER = [f"{t},a,{v}" for t, v in zip(HOURS, A, strict=True)]
BELOW_EACH_OTHER += [f"{late(t, 7)},b,{v}" for t, v in zip(HOURS, B, strict=True)]
NUMBERED = [row.replace(",a,", ",1,").replace(",b,", ",2,") for row in BY_TURNS]
DOOR = [f"{late(t, k % 2 * (k * k % 50 - 50))},{'ab'[k % 2]},{A[k]}" for k, t in enumerate(HOURS)]
ONE = [f"{t},a,{v}" for t, v in zip(HOURS, A, strict=True)]
HALVES = [row for k, t in enumerate(HOURS) for row in (f"{t},a,{A[k]}", f"{late(t, 30)},b,{B[k]}")]
WORKDAYS = [day for k in range(200) if (day := date(2026, 1, 1) + timedelta(days=k)).weekday() < 5]
BOOTS = [row.replace(",a,", ",1,") for row in ONE]
LIVE = [row for k, row in enumerate(BOOTS) if k % 4]
# Ten hours in local time, of which one is there twice.
SUMMER = [f"{late(HOURS[0], 5 * k)},{'yn'[k >= 60]},{A[k]}" for k in range(60)]
SUMMER += [f"{late(HOURS[0], 5 * k - 60)},n,{A[k]}" for k in range(60, 120)]
DAYS = [str(np.datetime64("2026-01-01") + k) for k in range(200)]


def load(folder, tables, *more):
    for name, rows in tables.items():
        (folder / name).write_text("\n".join(["time,sensor,level", *rows, ""]))
    changes = ["data.dataset=own", "table.inputs=level", "table.targets=level", "table.time=time", "table.history=3"]
    return load_table(folder, load_settings(None, [*changes, "task.kind=forecast", *more]))


@pytest.mark.parametrize("rows", [BY_TURNS, MINUTES_APART, BELOW_EACH_OTHER, NUMBERED, BY_TURNS[::-1]])
def test_two_sensors_in_one_table_are_refused_by_the_column_that_tells_them(rows, tmp_path):
    with pytest.raises(BouquetError, match=r"data\.csv has 2 series, of which 'sensor' says which \((a, b|1, 2)\)"):
        load(tmp_path, {"data.csv": rows})
    told = ["task.kind=regression", "table.inputs=sensor", 'table.categories=["sensor=a,b,1,2"]']
    data = load(tmp_path, {"data.csv": rows}, *told)
    assert len(data.train_y) + len(data.test_y) == 400  # each row a sample, of which an input says the sensor


def test_two_sensors_in_two_files_are_refused_by_the_files(tmp_path):
    rows = {"a.csv": BY_TURNS[::2], "b.csv": BY_TURNS[1::2]}
    with pytest.raises(BouquetError, match=r"a\.csv and b\.csv are of the same time, with other values"):
        load(tmp_path, rows)


@pytest.mark.parametrize(
    "tables",
    [
        {"data.csv": ONE},
        {"data.csv": [f"{t},{'ab'[k // 3 % 2]},{A[k]}" for k, t in enumerate(HOURS)]},  # a valve
        {"data.csv": [f"{t},{k % 24},{A[k]}" for k, t in enumerate(HOURS)]},  # the hour
        {"data.csv": [f"{late(t, k * k % 5)},{k % 24},{A[k]}" for k, t in enumerate(HOURS)]},
        {"data.csv": [f"{t},{k % 7},{A[k]}" for k, t in enumerate(DAYS)]},  # the weekday
        {"data.csv": [f"{t},{'ab'[k >= 90]},{A[k]}" for k, t in enumerate(HOURS)]},  # a new sensor
        {"data.csv": [*ONE[100:], *ONE[:100]]},  # put together in another order
        {"a.csv": ONE, "b.csv": [f"{row}3" for row in ONE[60:]]},  # exported again, with more digits
        {"data.csv": [*ONE[:150], *ONE[50:]]},
        {f"{k}.csv": ONE[9 * k : 9 * k + 60] for k in range(15)},  # each week's, once a day
        {"9.csv": ONE[:60], "10.csv": ONE[60:]},
        {"data.csv": [f"{t},{t.weekday()},{A[k]}" for k, t in enumerate(WORKDAYS)]},
        {"data.csv": [f"{t},{t[11:13]},{A[k]}" for k, t in enumerate(HOURS) if 6 <= k % 24 <= 20]},
        {"data.csv": [f"{late(t, j)},{j},{A[k] + j / 100}" for k, t in enumerate(HOURS) for j in range(4)]},  # bursts
        {"data.csv": [*BOOTS[:150], *[row.replace(",1,", ",2,") for row in BOOTS[50:]]]},  # written again
        {"data.csv": [*BOOTS[:150], *[f"{row}3".replace(",1,", ",2,") for row in BOOTS[50:]]]},  # with more digits
        {"data.csv": [*LIVE, *[row.replace(",1,", ",2,") for k, row in enumerate(BOOTS) if k % 4 == 0]]},  # sent late
        {"data.csv": SUMMER},
        {
            "data.csv": [f"{late(t, k % 2 * (k * k % 50 - 50))},{'ab'[k % 2]},{A[k]}" for k, t in enumerate(HOURS)]
        },  # a door
    ],
)
def test_what_is_one_series_is_read(tables, tmp_path):
    data = load(tmp_path, tables)
    assert len(data.train_y) + len(data.test_y) >= 50
    assert not any("series" in note for note in data.notes)


def test_series_that_take_turns_are_pointed_out(tmp_path):
    """Nothing says for sure that they are two: a pump's states take turns, too."""
    data = load(tmp_path, {"data.csv": HALVES})
    assert any("data.csv has 2 series, of which 'sensor' says which (a, b): if" in note for note in data.notes)
