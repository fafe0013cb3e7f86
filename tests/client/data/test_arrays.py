"""Numbers and times of a device's own .npz: what is tested, how it is scaled, and what does not fit."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bouquet.client.data.own import load_folder
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.settings.sections import TableSettings
from bouquet.device.check import check_device

ABOUT = TableSettings(targets=("level",))
DAY = 86_400
NEW_YEAR = 1_767_225_600  # 2026-01-01
COUNT = 40
RNG = np.random.default_rng(0)


def save(folder, **changes):
    """``data.npz`` with a sample a day: x (n, 2, 3), y = 5 times its day, time; None leaves an array out."""
    days = np.arange(COUNT)
    x = RNG.normal(100, 9, (COUNT, 2, 3)) + days[:, None, None]
    arrays = {"x": x, "y": 5.0 * days, "time": NEW_YEAR + DAY * days, **changes}
    np.savez(folder / "data.npz", **{key: value for key, value in arrays.items() if value is not None})
    return folder / "data.npz"


def load(path, about=ABOUT, by_time=True, classes=(), input_shape=(2, 3), strict=False):
    return load_folder(path, input_shape=input_shape, classes=classes, about=about, by_time=by_time, strict=strict)


def test_half_precision_that_is_no_number_is_left_out(tmp_path):
    x = RNG.normal(100, 9, (COUNT, 2, 3)).astype(np.float16)
    x[7], x[20] = np.nan, np.inf
    own = load(save(tmp_path, x=x))
    assert (own.left_out, np.isfinite(own.train_x).all()) == (2, True)
    assert "sample 7: 'x' holds values that are not finite" in str(own.notes)


def test_the_newest_are_tested_whatever_their_order_and_numbers_are_scaled(tmp_path):
    mixed = RNG.permutation(COUNT)
    raw = RNG.normal(100, 9, (COUNT, 2, 3))
    time = (NEW_YEAR + DAY * np.arange(COUNT))[mixed]
    data = load(save(tmp_path, x=raw[mixed], y=5.0 * mixed, time=time))
    np.testing.assert_allclose(data.scaling.undone(data.train_y)[:, 0], 5.0 * np.arange(32), atol=1e-4)
    np.testing.assert_allclose(data.scaling.undone(data.test_y)[:, 0], 5.0 * np.arange(32, 40), atol=1e-4)
    assert data.in_order
    assert data.num_classes == 0
    assert abs(data.train_y.std() - 1) < 1e-6
    np.testing.assert_allclose(data.train_x.mean(axis=(0, 2)), 0, atol=1e-6)
    mean = raw[:32].astype(np.float32).mean(axis=(0, 2), dtype=float)
    np.testing.assert_allclose(data.scaling.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(data.naive, np.full((1, 8, 1), 5 * 15.5))
    assert data.span == (
        "Trained on: 2026-01-01 00:00 to 2026-02-01 00:00; tested: 2026-02-02 00:00 to 2026-02-09 00:00 (UTC)."
    )


def test_the_cut_is_one_for_all_and_windows_that_lie_across_it_are_left_out(tmp_path):
    days = np.arange(COUNT)
    time = np.datetime64("2026-01-01") + days.astype("timedelta64[D]")
    about = TableSettings(targets=("level",), cut="2026-01-21")
    data = load(save(tmp_path, time=time, start=time - np.timedelta64(3, "D")), about)
    assert data.scaling.undone(data.train_y).max() == pytest.approx(5 * 19)
    # From the 21st on, and begun on the 21st or later.
    assert data.scaling.undone(data.test_y).min() == pytest.approx(5 * 23)
    assert data.notes == ()
    told = load(save(tmp_path, time=time), about)
    assert told.scaling.undone(told.test_y).min() == pytest.approx(5 * 20)
    assert "has no 'start'" in told.notes[0]
    before = load(tmp_path, TableSettings(targets=("level",), until="2026-01-21"))  # as a tuning reads it
    assert before.scaling.undone(before.test_y).max() == pytest.approx(5 * 19)
    with pytest.raises(BouquetError, match="of which what is of 2030-01-01 or later is tested, has too few samples"):
        load(tmp_path, TableSettings(targets=("level",), cut="2030-01-01"))


def test_bytes_stay_bytes_and_a_test_part_is_used(tmp_path):
    pixels = RNG.integers(0, 256, (COUNT, 2, 3), dtype=np.uint8)
    path = save(tmp_path, x=pixels, time=None, x_test=pixels[:5], y_test=np.full(5, 7.0))
    data = load_folder(path, input_shape=(2, 3), classes=(), about=ABOUT)
    assert data.train_x.tolist() == pixels.tolist()
    assert (data.scaling.mean, data.scaling.std) == ((0.0, 0.0), (1.0, 1.0))
    np.testing.assert_allclose(data.scaling.undone(data.test_y), 7, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time": None}, r"lacks 'time', of which data\.split = 'time' needs a value for each sample; it holds x, y"),
        ({"time": np.arange(39.0)}, r"'time' is float64 of shape \(39,\); expected a time for each of 40 samples"),
        ({"time": np.full(COUNT, "2026-01-01")}, r"'time' is <U10 of shape \(40,\); expected a time"),
        ({"time": np.where(np.arange(COUNT) == 3, np.nan, 1.0)}, r"sample 3: 'time' holds nan; allowed are seconds"),
        ({"time": np.full(COUNT, "NaT", "datetime64[s]")}, r"sample 0: 'time' holds NaT"),
        ({"time": NEW_YEAR * 1000 + np.arange(COUNT)}, r"allowed are seconds since 1970 \(not milliseconds"),
        ({"start": NEW_YEAR + DAY * (1 + np.arange(COUNT))}, "sample 0: 'start' is after its 'time'"),
        ({"start": np.arange(2)}, "'start' is int64 of shape"),
        ({"x_test": np.zeros((2, 2, 3)), "y_test": np.zeros(2)}, "tests the newest of x: leave 'x_test', 'y_test' out"),
        ({"y": np.full(COUNT, "high")}, r"'y' holds words, and the task tells numbers \(level\)"),
        ({"y": np.zeros(COUNT, bool)}, r"'y' holds bool, and the task tells numbers"),
        ({"y": np.zeros(39)}, r"'y' has shape \(39,\); expected \(40, 1\): a number of each of 40 samples for each of"),
        ({"y": np.zeros((COUNT, 2))}, r"'y' has shape \(40, 2\); expected \(40, 1\)"),
        ({"y": np.where(np.arange(COUNT) > 37, np.nan, 1.0)}, r"sample 38: 'y' holds \[nan\]; allowed are numbers"),
        ({"y": np.full(COUNT, 1e300)}, r"sample 0: 'y' holds \[1e\+300\]"),
        ({"time": np.zeros(COUNT)}, "the newest part is tested, has too few samples, 0 to train on"),
    ],
)
def test_what_does_not_fit_is_named(changes, said, tmp_path):
    with pytest.raises(BouquetError, match=said) as caught:
        load(save(tmp_path, **changes), strict=True)
    assert "data.npz" in str(caught.value)


def test_few_samples_that_do_not_fit_are_left_out_and_named(tmp_path):
    x, y, time = RNG.normal(size=(COUNT, 2, 3)), np.arange(COUNT) * 1.0, NEW_YEAR + DAY * np.arange(COUNT) * 1.0
    x[3, 0, 0], time[7] = np.inf, np.nan
    path = save(tmp_path, x=x, y=y, time=time)
    data = load(path)
    assert (len(data.train_y) + len(data.test_y), data.left_out) == (38, 2)
    (note,) = [note for note in data.notes if note.startswith("Left out")]
    assert note.startswith(f"Left out: 2 of 40 samples. {path}, sample 3: 'x' holds values that are not finite")
    assert "sample 7: 'time' holds nan" in note
    y[11] = np.nan
    with pytest.raises(BouquetError, match=r"3 of 40 samples cannot be read, and at most 5% are left out"):
        load(save(tmp_path, x=x, y=y, time=time))
    labels = np.arange(COUNT) // 4 % 2
    labels[0] = 9
    x[3, 0, 0] = 0
    path = save(tmp_path, x=x, y=labels, time=None, x_test=x[:4], y_test=np.array([0, 1, 5, 0]))
    data = load(path, TableSettings(), by_time=False, classes=("dry", "wet"))
    assert (len(data.train_y), len(data.test_y), data.left_out) == (39, 3, 2)


def whole_npz():
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros((COUNT, 2, 3)), y=np.arange(COUNT) * 1.0, time=NEW_YEAR + DAY * np.arange(COUNT))
    return buffer.getvalue()


WHOLE = whole_npz()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), st.binary(min_size=1, max_size=4)), max_size=6), st.booleans())
def test_nothing_but_our_own_error_leaves_an_npz(tmp_path, flips, checked):
    damaged = bytearray(WHOLE)
    for place, with_ in flips:
        damaged[place : place + len(with_)] = with_
    file = tmp_path / "data.npz"
    file.write_bytes(damaged)
    with contextlib.suppress(BouquetError):
        assert load(file, strict=checked).train_x.shape[1:] == (2, 3)


def test_what_nothing_looks_at_is_said(tmp_path):
    path = save(tmp_path, segment=np.arange(COUNT) // 4)
    assert "has segments, which nothing looks at" in load(path).notes[0]
    assert "has times, which nothing looks at" in load(path, by_time=False).notes[0]
    with pytest.raises(BouquetError, match=r"a folder of images has no numbers: give an \.npz file"):
        load(tmp_path / "..", input_shape=(3, 8, 8), by_time=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.dataset=digits"], r"data\.split = 'time' needs data\.dataset = 'own'"),
        (["table.inputs=a", "table.targets=b", "task.kind=regression"], r"data\.split = 'time' needs table\.time"),
        (["data.split=random", "table.cut=2026-01-01"], r"table\.cut or table\.until needs table\.time, or of photos"),
    ],
)
def test_settings_that_do_not_fit_one_another(changes, said):
    with pytest.raises(BouquetError, match=said):
        load_settings(
            None, ["data.split=time", "data.dataset=own", "data.classes=a,b", "data.input_shape=2,3", *changes]
        )


def test_check_says_what_it_understood(tmp_path):
    save(tmp_path)
    (tmp_path / "tanks.toml").write_text(
        '[task]\nkind = "regression"\nunit = "cm"\n[data]\ndataset = "own"\nsplit = "time"\ninput_shape = [2, 3]\n'
        '[table]\ntargets = ["level"]\n'
    )
    found = check_device(
        server=None, data=tmp_path, state_dir=tmp_path, settings=tmp_path / "tanks.toml", keys=None, insecure=True
    )
    said = [line.text for line in found]
    assert not any(line.wrong for line in found), said
    assert said[0].startswith("32 samples to train on, 8 to test on. Read in ")
    assert said[1].startswith("Trained on: 2026-01-01 00:00 to 2026-02-01 00:00; tested: 2026-02-02 00:00 to ")
    assert "has no 'start'" in said[2]
    assert said[3].startswith("Mean and deviation of what is trained on: x[:, 0] 1")
    assert said[3].endswith("; told: level 77.5 ± 46.2.")
