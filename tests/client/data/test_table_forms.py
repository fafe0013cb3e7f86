"""Tables as loggers and spreadsheets write them: what is recognised and said, and what is refused until it is set."""

import gzip
import lzma
import os

import numpy as np
import pytest

from bouquet.client.data.table_reader import read_table
from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings

ABOUT = TableSettings(inputs=("level", "temp"), targets=("level",), time=("time",))
HOURS = 1_791_936_000 + 3600 * np.arange(400)  # from 2026-10-14
LEVEL = np.round(np.linspace(40, 80, 400), 1)
TEMP = np.round(np.linspace(-5, 25, 400), 1)


def stamps(form, ahead=0):
    return [np.datetime64(int(t) + 3600 * ahead, "s").item().strftime(form) for t in HOURS]


def rows(times=None, sep=",", point=".", head=("time", "level", "temp"), end=""):
    times = stamps("%Y-%m-%dT%H:%M:%S") if times is None else times
    cells = [[t, *(f"{v}{end}".replace(".", point) for v in pair)] for t, *pair in zip(times, LEVEL, TEMP, strict=True)]
    return [sep.join(row) for row in ([list(head), *cells] if head else cells)]


def written(folder, lines, encoding="utf-8", end="\n", name="data.csv"):
    path = folder / name
    content = (end.join(lines) + end).encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return path


LATER = ["Station 12", "firmware 3.1; 2026"]
UNITS = ["time,level,temp", ",cm,degC"]
TOA5 = ['"TOA5","CR1000","12"', '"time","level","temp"', '"TS","cm","degC"', '"","Avg","Smp"']
TABLES = {
    "a point": (rows(), []),
    "spreadsheet": (rows(sep=";", point=","), ["cells apart by ';'", "decimal comma"]),
    "tabs": (rows(sep="\t", point=","), ["cells apart by tabs", "decimal comma"]),
    "spaces": (rows(sep="   "), ["cells apart by spaces"]),
    "points": (rows(stamps("%d.%m.%Y %H:%M")), ["day first"]),
    "short years": (rows(stamps("%d.%m.%y %H:%M:%S")), ["day first"]),
    "slashes": (rows(stamps("%d/%m/%Y %H:%M")), ["day first"]),
    "american": (rows(stamps("%m/%d/%Y %I:%M:%S %p")), ["month first"]),
    "months": (rows(stamps("%d-%b-%Y %H:%M")), []),
    "year first": (rows(stamps("%Y/%m/%d %H:%M")), []),
    "without a zero": (rows([s.replace(" 0", " ") for s in stamps("%Y-%m-%d %H:%M")]), []),
    "midnight is 24": (rows([s.replace("T00:", "T24:") if "T00" in s else s for s in stamps("%Y-%m-%dT%H:%M")]), None),
    "zone": (rows(stamps("%Y-%m-%d %H:%M:%S UTC")), []),
    "named zone": (rows(stamps("%d.%m.%Y %H:%M CEST", 2)), ["day first", "times in CEST"]),
    "Java": (rows(stamps("%Y-%m-%dT%H:%M:%S+02:00[Europe/Berlin]", 2)), []),
    "JavaScript": (rows(stamps("%a %b %d %Y %H:%M:%S GMT+0200 (CEST)", 2)), []),
    "shell": (rows(stamps("%a %b %d %I:%M:%S %p UTC %Y")), []),
    "mail": (rows([f'"{s}"' for s in stamps("%a, %d %b %Y %H:%M:%S +0000")]), []),
    "IFTTT": (rows([f'"{s}"' for s in stamps("%B %d, %Y at %I:%M%p")]), []),
    "names of files": (rows(stamps("%Y-%m-%d_%H-%M")), []),
    "points in times": (rows(stamps("%d.%m.%Y %H.%M")), ["day first"]),
    "exponents": (["time;level;temp", *(f"{t};{a:.3E};{b:.3E}".replace(".", ",") for t, a, b in zip(
        stamps("%Y-%m-%dT%H:%M:%S"), LEVEL, TEMP, strict=True))], ["cells apart by ';'", "decimal comma"]),
    "text": ([rows()[0], *(f'{t},="{a}",="{b}"' for t, a, b in (r.split(",") for r in rows()[1:]))], []),
    "compact": (rows(stamps("%Y%m%d%H%M%S")), []),
    "milliseconds": (rows([f"{t}000" for t in HOURS]), ["times in milliseconds"]),
    "nanoseconds": (rows([f"{t}000000000" for t in HOURS]), ["times in nanoseconds"]),
    "preamble": ([*LATER, *rows()], ["header in line 3"]),
    "sep": (["sep=;", *rows(sep=";")], ["cells apart by ';'", "header in line 2"]),
    "units": ([*UNITS, *rows(head=())], ["units in line 2"]),
    "TOA5": ([*TOA5, *rows(head=())], ["header in line 2", "units in line 3", "units in line 4"]),
    "restarted": ([*LATER, *UNITS, *rows(head=())[:200], *LATER, *UNITS, *rows(head=())[200:]],
                  ["header in line 3", "units in line 4"]),
    "unit in cells": (rows(end=" °C"), ["'level' in '°C'", "'temp' in '°C'"]),
    "minus": ([row.replace(",-", ",−") for row in rows()], []),
    "a comment": ([f"# {rows()[0]}", *rows()[1:200], "# battery changed", *rows()[200:]], []),
    "more commas": ([f"{row},," for row in rows()], []),
    "put together": ([*rows()[:200], "\ufeff" + rows()[0], *rows()[200:]], []),
    "a new order": ([*rows()[:200], "temp,new,time,level", *(f"{b},7,{t},{a}" for t, a, b in
                                                             (r.split(",") for r in rows()[200:]))], []),
    "newest first": ([rows()[0], *rows()[:0:-1]], []),
    "quotes": (['"' + row.replace(",", '","') + '"' for row in rows()], []),
    "quoted commas": ([rows()[0], *(f'{t},"{a}","{b}"' for t, a, b in (r.replace(".", ",").split(";")
                                    for r in rows(sep=";")[1:]))], ["decimal comma"]),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "said"), TABLES.values(), ids=TABLES)
def test_what_loggers_and_spreadsheets_write_is_recognised_and_said(lines, said, tmp_path):
    if said is None:  # 24:00 is the end of a day
        lines = [row.replace("14T24", "13T24", 1) if k == 1 else row for k, row in enumerate(lines)]
        lines = [lines[0], *(_day_before(row) for row in lines[1:])]
        said = []
    table = read_table(written(tmp_path, lines), ABOUT, strict=True)
    np.testing.assert_array_equal(table.inputs, np.stack([LEVEL, TEMP], axis=1))
    np.testing.assert_array_equal(table.times, HOURS)
    assert table.notes == ((f"Recognised: {', '.join(said)}.",) if said else ())


def _day_before(row):
    time, rest = row.split(",", 1)
    if "T24" not in time:
        return row
    day = np.datetime64(time[:10]) - (time[:10] != "2026-10-13")
    return f"{day}T24:00,{rest}"


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_the_encoding_is_recognised(encoding, name, tmp_path):
    lines = ["Gerät 1 (°C)", *rows(head=("time", "Füllstand", "temp"))]
    about = TableSettings(inputs=("Fu\u0308llstand", "temp"), time=("time",))  # as macOS writes it
    table = read_table(written(tmp_path, lines, encoding, "\r\n", name), about, strict=True)
    np.testing.assert_array_equal(table.inputs[:, 0], LEVEL)
    assert ("Windows-1252" in str(table.notes), "UTF-16" in str(table.notes)) == (
        encoding == "cp1252",
        "16" in encoding,
    )


@pytest.mark.parametrize(("order", "day"), [("day-month-year", "2026-04-03"), ("month-day-year", "2026-03-04")])
def test_a_date_of_two_days_is_refused_until_it_is_set(order, day, tmp_path):
    lines = ["time,level,temp", *(f"03/04/2026 {h:02}:00,1,2" for h in range(24))]
    path = written(tmp_path, lines)
    with pytest.raises(BouquetError, match=r"'03/04/2026 00:00' may be of two days.*table\.dates"):
        read_table(path, ABOUT)
    table = read_table(path, ABOUT.model_copy(update={"dates": order}))
    assert np.datetime64(int(table.times[0]), "s") == np.datetime64(day)
    # Another file of the device may say it.
    written(tmp_path, ["time,level,temp", "13/04/2026 00:00,1,2"], name="later.csv")
    assert np.datetime64(int(read_table(tmp_path, ABOUT).times[0]), "s") == np.datetime64("2026-04-03")
    written(tmp_path, ["time,level,temp", "04/13/2026 01:00,1,2"], name="other.csv")
    with pytest.raises(BouquetError, match="may be of two days"):
        read_table(tmp_path, ABOUT)


def test_a_number_of_two_values_is_refused_until_it_is_set(tmp_path):
    about = TableSettings(inputs=("a",))
    path = written(tmp_path, ["a;b", "1,234;0", "999;0", "2,500;0"])
    with pytest.raises(BouquetError, match=r"'1,234' may be 1\.234 or 1234: say which by table\.decimal"):
        read_table(path, about)
    for decimal, expected in ((",", [1.234, 999, 2.5]), (".", [1234, 999, 2500])):
        assert read_table(path, about.model_copy(update={"decimal": decimal})).inputs.ravel().tolist() == expected
    for cells, expected in ((["1,234", "2,500"], [1.234, 2.5]), (["1,234", "0,5", "999"], [1.234, 0.5, 999]),
                            (["1,234", "1,234.5"], [1234, 1234.5]), (["1.234,5", "12,5"], [1234.5, 12.5])):  # fmt: skip
        table = read_table(written(tmp_path, ["a;b", *(f"{cell};0" for cell in cells)]), about)
        assert table.inputs.ravel().tolist() == expected


def test_gaps_are_what_the_settings_call_so(tmp_path):
    lines = ["time,level,temp", "0,85,-127", "60,-9999.0,85.00", "120,ERR,1", "180,2,-127.0"]
    path = written(tmp_path, lines)
    with pytest.raises(BouquetError, match="line 4, column 'level' holds 'ERR'"):
        read_table(path, ABOUT, strict=True)
    table = read_table(path, ABOUT.model_copy(update={"gaps": ("-127", "-9999", "ERR", "temp=85")}), strict=True)
    np.testing.assert_array_equal(table.inputs, [[85, np.nan], [np.nan, np.nan], [np.nan, 1], [2, np.nan]])
    assert table.gaps == {"level": 2, "temp": 3}
    assert TableSettings(inputs=("a",), gaps=[-127, 9.5, "ERR"]).gaps == ("-127", "9.5", "ERR")
    with pytest.raises(ValueError, match=r"table\.gaps has tmp, which is in neither"):
        TableSettings(inputs=("a",), gaps=("tmp=85",))


@pytest.mark.parametrize("year", [1970, 1980, 2000, 2036])
@pytest.mark.parametrize("place", [0, 250, 399])
def test_a_row_of_a_clock_that_was_wrong_is_named_and_left_out(year, place, tmp_path):
    times = stamps("%Y-%m-%dT%H:%M:%S")
    times[place] = f"{year}-01-06T00:00:07"
    path = written(tmp_path, rows(times))
    table = read_table(path, ABOUT)
    np.testing.assert_array_equal(table.times, np.delete(HOURS, place))
    assert f"line {place + 2} is of {year}-01-06 00:00, years from the others: the clock was wrong" in table.notes[0]
    with pytest.raises(BouquetError, match=f"line {place + 2} is of {year}-01-06"):
        read_table(path, ABOUT, strict=True)


def test_rows_of_another_year_that_are_in_order_are_none_of_a_wrong_clock(tmp_path):
    times = [*(HOURS[:20] - 3 * 365 * 86400), *HOURS[20:]]
    assert len(read_table(written(tmp_path, rows(map(str, times))), ABOUT, strict=True).times) == 400
    mixed = [*times[20:40], *times[:20], *times[40:]]
    table = read_table(written(tmp_path, rows(map(str, mixed))), ABOUT)
    assert (table.left_out, len(table.times)) == (20, 380)


def test_a_file_that_cannot_be_read_costs_no_other(tmp_path):
    for k in range(30):
        written(tmp_path, ["time,level,temp", f"{60 * k},1,2"], name=f"{k:02}.csv")
    (tmp_path / "07.csv").write_bytes(b"\xff\xd8\xff" + bytes(range(200)))
    (tmp_path / "08.csv").write_bytes(b"")
    table = read_table(tmp_path, ABOUT)
    assert len(table.times) == 28
    assert "Left out: 1 of 30 files." in table.notes[0]
    assert "07.csv has no column 'level'" in table.notes[0]
    assert table.notes[1] == "08.csv is empty, and is passed over."
    with pytest.raises(BouquetError, match=r"07\.csv has no column"):
        read_table(tmp_path, ABOUT, strict=True)
    (tmp_path / "09.csv").write_bytes(b"level,time\n1,2\n")
    with pytest.raises(BouquetError, match=r"2 of 30 files cannot be read, and at most 5% are left out"):
        read_table(tmp_path, ABOUT)


def test_a_table_is_known_by_its_content(tmp_path):
    content = "\n".join([*rows(), ""]).encode()
    for packed, name in (
        (gzip.compress(content), "a.csv"),
        (lzma.compress(content), "b.csv.gz"),
        (content, "c.csv.xz"),
    ):
        (tmp_path / name).write_bytes(packed)
        assert len(read_table(tmp_path / name, ABOUT, strict=True).times) == 400
    (tmp_path / "d.csv").write_bytes(b"PK\3\4" + bytes(99))
    with pytest.raises(BouquetError, match=r"d\.csv cannot be read \(it is a ZIP file, as spreadsheets are"):
        read_table(tmp_path / "d.csv", ABOUT)


def test_a_link_to_a_stick_that_is_not_there_and_a_pipe_are_named(tmp_path):
    written(tmp_path, rows(), name="a.csv")
    (tmp_path / "b.csv").symlink_to(tmp_path / "stick" / "b.csv")
    table = read_table(tmp_path, ABOUT)
    assert len(table.times) == 400
    assert "b.csv cannot be read (No such file or directory)" in table.notes[0]
    (tmp_path / "b.csv").unlink()
    os.mkfifo(tmp_path / "b.csv")
    with pytest.raises(BouquetError, match=r"b\.csv cannot be read \(it is no file"):
        read_table(tmp_path / "b.csv", ABOUT)


def test_a_packed_file_that_is_still_written_is_read_as_far_as_it_goes(tmp_path):
    path = written(tmp_path, rows(), name="data.csv.gz")
    path.write_bytes(path.read_bytes()[:-200])
    table = read_table(path, ABOUT)
    assert 100 < len(table.times) < 400
    assert "data.csv.gz breaks off after line" in table.notes[0]


def test_a_quotation_mark_too_many_costs_its_own_line(tmp_path):
    lines = rows()
    lines[100] = lines[100].replace(",", ',"', 1)
    table = read_table(written(tmp_path, lines), ABOUT)
    assert (table.left_out, len(table.times)) == (1, 399)
    head, *rest = ["time,level,temp,note", *(f"{row},fine" for row in rows()[1:])]
    rest[50] = rest[50].replace("fine", '"changed\nthe battery"')
    assert len(read_table(written(tmp_path, [head, *rest]), ABOUT, strict=True).times) == 400


def test_tables_in_folders_below_and_what_may_be_a_spreadsheets_days_are_said(tmp_path):
    written(tmp_path, rows(), name="a.csv")
    (tmp_path / "old").mkdir()
    written(tmp_path / "old", rows(), name="b.csv")
    assert any("1 tables in folders" in note and "old/b.csv" in note for note in read_table(tmp_path, ABOUT).notes)
    days = [rows()[0], *(f"{46_000 + k / 24},1.0,2.0" for k in range(9))]
    assert "a spreadsheet's day numbers" in read_table(written(tmp_path, days, name="days.csv"), ABOUT).notes[0]
    labview = rows([str(hour + 2_082_844_800) for hour in HOURS])
    notes = read_table(written(tmp_path, labview, name="labview.csv"), ABOUT).notes
    assert notes == ("All times are later than now, from 2092-10-14: are they counted from 1904, as LabVIEW does?",)


@pytest.mark.parametrize("torn", [
    lambda row, k: row[k:],  # 26-10-18T03:00 may be of two days, and costs nobody the others
    lambda row, k: row[:k] + "\0" * 600 + row,  # power was lost
], ids=["beginning", "zeros"])  # fmt: skip
def test_a_torn_row_costs_itself(torn, tmp_path):
    lines = rows()
    for k in range(1, 19):
        table = read_table(written(tmp_path, [*lines[:100], torn(lines[100], k), *lines[101:]]), ABOUT)
        assert (table.left_out, set(HOURS) - set(table.times)) in ((1, set()), (1, {HOURS[99]}))
    with pytest.raises(BouquetError, match=r"line 101 (is torn by zeros|is of 1970)"):
        read_table(tmp_path / "data.csv", ABOUT, strict=True)


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M"])
@pytest.mark.parametrize("lost", [1, 3])
def test_a_date_that_lost_figures_is_no_other_date(form, lost, tmp_path):
    for place in (100, 339):
        lines = rows(stamps(form))
        row = lines[place]
        for k in range(len(lines[place].split(",")[0])):
            lines[place] = row[:k] + row[k + lost :]
            table = read_table(written(tmp_path, lines), ABOUT)
            assert table.times.tolist() in (HOURS.tolist(), np.delete(HOURS, place - 1).tolist())
            np.testing.assert_array_equal(table.inputs[:, 0], LEVEL[np.isin(HOURS, table.times)])
            assert table.left_out == 400 - len(table.times)


def test_rows_that_come_late_are_in_order_again(tmp_path):
    lines = rows()
    lines[50:60] = [*lines[53:60], *lines[50:53]]  # kept back for some hours
    lines[100:102] = lines[101:99:-1]
    assert len(read_table(written(tmp_path, lines), ABOUT, strict=True).times) == 400


def test_words_for_no_value_are_gaps(tmp_path):
    words = ["unavailable", "unknown", "#N/A", "#NV", "?", "---", "—", r"\N", "<NA>", "-nan"]
    path = written(tmp_path, ["time,level,temp", *(f"{60 * k},{w},1" for k, w in enumerate(words))])
    table = read_table(path, ABOUT, strict=True)
    assert table.gaps == {"level": len(words)}


def test_a_unit_that_changes_from_file_to_file_is_named(tmp_path):
    for end, below in ((" °C", []), ("", [",cm,°C"])):
        other = (end.replace("C", "F"), [line.replace("C", "F") for line in below])
        for k, (in_cells, lines) in enumerate([(end, below)] * 2 + [other] * 2):
            written(tmp_path, [rows()[0], *lines, *rows(head=(), end=in_cells)], name=f"{k}.csv")
        said = [note for note in read_table(tmp_path, ABOUT).notes if "in '°F', and a file before in '°C'." in note]
        assert {note.partition(" ")[0] for note in said} == {"2.csv", "3.csv"}


def test_a_mark_between_thousands_is_no_minute_and_a_number_has_its_columns_unit(tmp_path):
    cells = ["1'234.5", "12\u202f345", '="7"', "1'30", "5'11\"", "=8"]
    lines = ["a;b", *(f"{cell};0" for cell in [*cells, *100 * ["9"]])]
    table = read_table(written(tmp_path, lines), TableSettings(inputs=("a",)))
    assert (table.inputs.ravel().tolist()[:5], table.left_out) == ([1234.5, 12345, 7, 8, 9], 2)
    path = written(tmp_path, ["a;b", *(f"{cell};0" for cell in [*40 * ["1.2k"], "850", "0"])])
    table = read_table(path, TableSettings(inputs=("a",)))
    assert (sorted(set(table.inputs.ravel().tolist())), table.left_out) == ([0, 1.2], 1)


def test_a_log_that_was_rotated_is_read_with_what_it_was(tmp_path):
    for name, part in (("a.csv", rows()[300:]), ("a.csv.1", rows()[200:300]), ("a.csv.2.gz", rows()[1:200])):
        written(tmp_path, [rows()[0], *part], name=name)
    np.testing.assert_array_equal(read_table(tmp_path, ABOUT, strict=True).times, HOURS)


def test_what_has_no_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    lines = [*rows()[:200], f"{'x' * (3 << 20)}", *rows()[200:]]
    table = read_table(written(tmp_path, lines, name="a.csv.gz"), ABOUT)
    assert (len(table.times), table.left_out) == (400, 3)
    path = written(tmp_path, rows())
    with path.open("ab") as file:
        file.truncate(30 << 20)  # zeros that were never written
    assert len(read_table(path, ABOUT, strict=True).times) == 400
    monkeypatch.setattr("bouquet.client.data.table_text.available_bytes", lambda: 20 << 20)
    with pytest.raises(BouquetError, match=r"data\.csv cannot be read \(it takes 31 MB, and 20 MB are free\)"):
        read_table(path, ABOUT)
