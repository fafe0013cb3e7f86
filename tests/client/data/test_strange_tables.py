"""Tables of cells, lines and bytes that nobody wrote on purpose: samples, or our own error, and nothing else."""

import gzip
import lzma

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from bouquet.client.data.own import load_table
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings

EXAMPLES = 100  # benchmarks/damaged_files.py has ten thousand
CELLS = [*("1", "2.5", "-3,5", "1.234,5", "1,234.5", "1,234", "1 234", "1e308", "-1e400", "nan", "inf", "NA", "", "-")]
CELLS += [
    *("45 %", "12cm", "−4", "0x1F", "1_000", "١٢", "½", "true", "#DIV/0!", "=A1", '"', '"a', "''", "\ufeff", "\0")
]
CELLS += [*("2026-10-14", "2026-10-14T12:30:00Z", "14.10.2026 24:00", "03/04/2026", "13/13/2026", "10/14/26 3:05 PM")]
CELLS += [*("1792000000", "1792000000000", "1e18", "20261014", "20261014123000", "99991231", "0", "-1", "12:30", "now")]
CELLS += [*("0000-00-00", "2026-02-30", "9999-12-31T23:59:59+23:59", "0001-01-01T00:00-23:59", "14-Okt-2026", "1.1.1")]
HEADS = [
    "time,a,b",
    "time;a;b",
    "time\ta\tb",
    "time a b",
    '"time","a","b"',
    "#time,a,b",
    "a,b",
    "time,a,b,",
    "a,a,time,b",
]
KINDS = [["task.kind=forecast", "table.targets=a", "table.history=2"], ["task.kind=regression", "table.targets=b"]]
KINDS += [["task.kind=classification", "table.targets=b", "data.classes=1,NA,2.5"]]
MORE = [[], ["table.gaps=-127,1,a=2.5,now"], ["table.dates=month-day-year", "table.decimal=."], ["table.fill=3"]]
MORE += [['table.categories=["a=1,2.5"]'], ["table.until=2026-10-14"], ["table.cut=2026-10-14"]]

GOOD = [[f"2026-10-{14 + h // 24:02}T{h % 24:02}:00", f"{h % 7}.5", ("1", "2.5")[h % 2]] for h in range(60)]

row = st.lists(st.one_of(st.sampled_from(CELLS), st.text(max_size=6)), min_size=1, max_size=5)


@st.composite
def tables(draw):
    head = draw(st.sampled_from(HEADS))
    separator = next((mark for mark in ";\t " if mark in head), ",")
    rows = [separator.join(one) for one in GOOD]
    for one in draw(st.lists(row, max_size=4)):
        rows.insert(draw(st.integers(0, len(rows))), separator.join(one))
    lines = [*draw(st.lists(st.text(max_size=9), max_size=2)), head, *rows]
    content = draw(st.sampled_from(["\n", "\r\n", "\r"])).join([*lines, ""])
    data = bytearray(content.encode(draw(st.sampled_from(["utf-8", "utf-16", "cp1252"])), "replace"))
    for place, with_ in draw(st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4)), max_size=2)):
        data[place : place + len(with_)] = with_
    pack = draw(st.sampled_from([bytes, bytes, gzip.compress, lzma.compress]))
    cut = draw(st.sampled_from([0, 0, 0, 1, 7]))
    packed = pack(bytes(data))
    return packed[: len(packed) - cut], {bytes: ".csv", gzip.compress: ".csv.gz"}.get(pack, ".csv.xz")


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(tables(), st.sampled_from(KINDS), st.sampled_from(MORE), st.booleans(), st.booleans())
def test_nothing_but_our_own_error_leaves_a_table(tmp_path, table, kind, more, timed, strict):
    content, suffix = table
    file = tmp_path / f"strange{suffix}"
    file.write_bytes(content)
    timed = timed or "task.kind=forecast" in kind or "2026" in str(more)
    changes = ["data.dataset=own", *kind, f"table.inputs={'a' if 'table.targets=b' in kind else 'a,b'}", *more]
    chosen = load_settings(None, [*changes, *(["table.time=time"] if timed else [])])
    try:
        data = load_table(file, chosen, strict)
    except BouquetError:
        event("refused")
        return
    event("read")
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert len(x) == len(y) > 0
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()
    assert not (strict and data.left_out)
