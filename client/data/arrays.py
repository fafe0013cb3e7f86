"""A device's own .npz: samples with labels or numbers, their times, and what does not fit named with the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.table_times import LATEST, Floats, seconds_of
from bouquet.common.data.left_out import LeftOut
from bouquet.common.data.readers import read_arrays
from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings

NPZ_KEYS = ("x", "y", "segment", "x_test", "y_test", "time", "start")
BY_TIME = "data.split = 'time'"


@dataclass(frozen=True, eq=False)
class OwnData:
    """A device's own samples: ``x`` (n, *input_shape) uint8 or float32; a test part if there is one.

    ``y`` are labels (n,), or numbers (n, targets). ``segments`` (n,) names the contiguous recording, or the scene,
    that each sample is from, where samples overlap. ``times`` (n,) and ``starts`` (n,) are in seconds, with samples in
    the order of ``times``, where they are divided by time. ``notes`` are for the owner, ``warnings`` for the server's,
    too, ``left_out`` counts what could not be read, ``files`` and ``test_files`` are where photos lie, ``unknown``
    names their folders of no class.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    segments: NDArray[np.int64] | None = None
    test_x: NDArray[Any] | None = None
    test_y: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: int = 0
    files: tuple[Path, ...] = ()
    test_files: tuple[Path, ...] = ()
    unknown: tuple[str, ...] = ()
    times: Floats | None = None
    starts: Floats | None = None


@dataclass(eq=False)
class Fitting:
    """Which of ``count`` samples fit, (n,); the others go to ``left_out``, each with its reason."""

    file: Path
    count: int
    left_out: LeftOut
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Those that nothing is wrong with."""
        found = np.ones(self.count, dtype=bool)
        found[list(self.reasons)] = False
        return found

    def without(self, wrong: NDArray[Any] | np.bool_, reason: Callable[[int], str], public: str = "") -> None:
        """Leave samples (n,) out. Raises `BouquetError`, naming the first, where none may be."""
        for i in map(int, np.flatnonzero(wrong)):
            if i not in self.reasons:
                self.reasons[i] = f"{self.file}, sample {i}: {reason(i)}"
                self.left_out.add(BouquetError(self.reasons[i], public=public))


def read_npz(
    file: Path,
    input_shape: tuple[int, ...],
    classes: tuple[str, ...],
    about: TableSettings,
    by_time: bool,
    strict: bool = False,
) -> OwnData:
    """Samples with labels of the ``classes``, or where there are none with numbers, one for each of ``table.targets``.

    With ``by_time`` they need times, and are in their order. Samples that do not fit are left out where they are few,
    unless ``strict``. Raises `BouquetError`, naming file and array.
    """
    arrays = read_arrays(file)
    if unknown := [key for key in arrays if key not in NPZ_KEYS]:
        raise BouquetError(f"{file} holds {unknown[0]!r}; allowed are {', '.join(NPZ_KEYS)}.")
    if missing := [key for key in ("x", "y") if key not in arrays]:
        raise BouquetError(f"{file} lacks {missing[0]!r}; it holds {', '.join(arrays) or 'nothing'}.")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise BouquetError(f"{file} holds one of 'x_test' and 'y_test'; give both or neither.")
    left_out = LeftOut("samples", strict)

    def part(suffix: str) -> tuple[NDArray[Any], NDArray[Any], Fitting]:
        x, fit = check_samples(arrays, f"x{suffix}", input_shape, file, left_out)
        return x, check_targets(arrays, f"y{suffix}", classes, about.targets, fit), fit

    x, y, fit = part("")
    segments = arrays.get("segment")
    if segments is not None and (segments.shape != y.shape[:1] or not np.issubdtype(segments.dtype, np.integer)):
        raise BouquetError(
            f"{file}: 'segment' is {segments.dtype} of shape {segments.shape}, not {len(y)} whole numbers."
        )
    if by_time:
        own = _in_time(arrays, x, y, fit, about.until)
        left_out.check(len(x))
        return replace(own, notes=own.notes + left_out.notes(len(x)), left_out=left_out.count)
    own = OwnData(x[fit.fits], y[fit.fits], None if segments is None else segments[fit.fits])
    total = len(x)
    if "x_test" in arrays:
        test_x, test_y, fit = part("_test")
        own, total = replace(own, test_x=test_x[fit.fits], test_y=test_y[fit.fits]), total + len(test_x)
    left_out.check(total)
    notes = left_out.notes(total)
    if "time" in arrays:
        where = f"with {BY_TIME} on the server the newest part is tested"
        notes += (f"{file.name} has times, which nothing looks at: {where}.",)
    return replace(own, notes=notes, left_out=left_out.count)


def check_samples(
    arrays: dict[str, NDArray[Any]], key: str, input_shape: tuple[int, ...], file: Path, left_out: LeftOut
) -> tuple[NDArray[Any], Fitting]:
    """The samples (n, *input_shape) of an .npz, uint8 or float32, and which of them fit."""
    x = arrays[key]
    if x.ndim == 3 and len(input_shape) == 3 and input_shape[0] == 1:
        x = x[:, None]  # grey images are commonly kept without their channel
    if x.shape[1:] != input_shape or x.ndim == 0:
        raise BouquetError(
            f"{file}: {key!r} has shape {arrays[key].shape}, expected (samples, *{input_shape}).",
            public=f"This device's samples do not have the shape (data.input_shape) {input_shape}.",
        )
    fit = Fitting(file, len(x), left_out)
    if x.dtype == np.uint8:
        return x, fit
    if not np.issubdtype(x.dtype, np.floating):
        raise BouquetError(f"{file}: {key!r} holds {x.dtype}; allowed are uint8 (images, 0 to 255) and float.")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    wrong = ~np.isfinite(x).reshape(len(x), -1).all(axis=1) if x.size else np.zeros(len(x), dtype=bool)
    fit.without(wrong, lambda _: f"{key!r} holds values that are not finite in float32 (NaN or infinite).")
    return x, fit


def check_targets(
    arrays: dict[str, NDArray[Any]], key: str, classes: Sequence[str], targets: Sequence[str], fit: Fitting
) -> NDArray[Any]:
    """The labels (n,) of an .npz, or where there are no classes the numbers (n, targets)."""
    y, file, samples = arrays[key], fit.file, fit.count
    if classes:
        if y.shape != (samples,) or not np.issubdtype(y.dtype, np.integer):
            raise BouquetError(f"{file}: {key!r} is {y.dtype} of shape {y.shape}; expected {samples} whole numbers.")
        fit.without(
            (y < 0) | (y >= len(classes)),
            lambda i: (
                f"{key!r} holds label {y[i]}; the {len(classes)} classes ({', '.join(classes)}) allow 0 to "
                f"{len(classes) - 1}."
            ),
            public=f"This device has samples of other classes (data.classes) than {', '.join(classes)}.",
        )
        return y.astype(np.int64)
    many = len(targets)
    if y.dtype.kind not in "fiu":
        what = "words" if y.dtype.kind in "US" else str(y.dtype)
        raise BouquetError(f"{file}: {key!r} holds {what}, and the task tells numbers ({', '.join(targets)}).")
    if y.shape != (samples, many) and not (many == 1 and y.shape == (samples,)):
        raise BouquetError(
            f"{file}: {key!r} has shape {y.shape}; expected ({samples}, {many}): a number of each of {samples} samples "
            f"for each of table.targets ({', '.join(targets)}).",
            public=f"This device's targets are not {many} for each sample (table.targets).",
        )
    numbers = y.reshape(samples, many).astype(np.float64)
    wrong = ~(np.abs(numbers) <= np.finfo(np.float32).max).all(axis=1)
    fit.without(wrong, lambda i: f"{key!r} holds {numbers[i].tolist()}; allowed are numbers that float32 holds.")
    return numbers


def _in_time(arrays: dict[str, NDArray[Any]], x: NDArray[Any], y: NDArray[Any], fit: Fitting, until: str) -> OwnData:
    """The samples in the order of their time. Without ``start``, what each begins with is of its time, too."""
    file = fit.file
    if "time" not in arrays:
        raise BouquetError(
            f"{file} lacks 'time', of which {BY_TIME} needs a value for each sample; it holds {', '.join(arrays)}.",
            public=f"This device's .npz has no times, which {BY_TIME} needs.",
        )
    if "x_test" in arrays:
        raise BouquetError(f"{file} holds 'x_test', and {BY_TIME} tests the newest of x: leave 'x_test', 'y_test' out.")
    times = _seconds(arrays, "time", fit)
    starts = _seconds(arrays, "start", fit) if "start" in arrays else times
    fit.without(starts > times, lambda _: "'start' is after its 'time'.")
    order = np.flatnonzero(fit.fits)
    order = order[np.argsort(times[order], kind="stable")]
    if until:
        order = order[times[order] < seconds_of(until)]
    notes: tuple[str, ...] = ()
    if "segment" in arrays:
        notes += (f"{file.name} has segments, which nothing looks at with {BY_TIME}.",)
    if "start" not in arrays and x.ndim == 3:
        notes += (f"{file.name} has no 'start': windows over the cut have rows in common with what is trained on.",)
    return OwnData(x[order], y[order], notes=notes, times=times[order], starts=starts[order])


def _seconds(arrays: dict[str, NDArray[Any]], key: str, fit: Fitting) -> Floats:
    found = arrays[key]
    if found.shape != (fit.count,) or found.dtype.kind not in "fiuM":
        raise BouquetError(
            f"{fit.file}: {key!r} is {found.dtype} of shape {found.shape}; expected a time for each of {fit.count} "
            "samples, in seconds or as NumPy's datetime64."
        )
    seconds = found.astype(np.float64)
    if found.dtype.kind == "M":
        seconds = np.where(np.isnat(found), np.nan, found.astype("datetime64[us]").astype(np.int64) / 1e6)
    fit.without(
        ~(np.abs(seconds) < LATEST),
        lambda i: (
            f"{key!r} holds {found[i]}; allowed are seconds since 1970 (not milliseconds, not NaN), or NumPy's "
            "datetime64."
        ),
    )
    return seconds
