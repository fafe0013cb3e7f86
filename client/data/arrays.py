"""A device's own .npz: samples with labels or numbers, their times, and what does not fit named with the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.table_reader import LATEST, Floats, seconds_of
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
    the order of ``times``, where they are divided by time. ``notes`` are for the owner, ``left_out`` counts photos that
    could not be read, ``files`` and ``test_files`` are where photos lie, ``unknown`` names their folders of no class.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    segments: NDArray[np.int64] | None = None
    test_x: NDArray[Any] | None = None
    test_y: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    left_out: int = 0
    files: tuple[Path, ...] = ()
    test_files: tuple[Path, ...] = ()
    unknown: tuple[str, ...] = ()
    times: Floats | None = None
    starts: Floats | None = None


def read_npz(
    file: Path, input_shape: tuple[int, ...], classes: tuple[str, ...], about: TableSettings, by_time: bool
) -> OwnData:
    """Samples with labels of the ``classes``, or where there are none with numbers, one for each of ``table.targets``.

    With ``by_time`` they need times, and are in their order. Raises `BouquetError`, naming file and array.
    """
    arrays = read_arrays(file)
    if unknown := [key for key in arrays if key not in NPZ_KEYS]:
        raise BouquetError(f"{file} holds {unknown[0]!r}; allowed are {', '.join(NPZ_KEYS)}.")
    if missing := [key for key in ("x", "y") if key not in arrays]:
        raise BouquetError(f"{file} lacks {missing[0]!r}; it holds {', '.join(arrays) or 'nothing'}.")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise BouquetError(f"{file} holds one of 'x_test' and 'y_test'; give both or neither.")

    def told(key: str, samples: int) -> NDArray[Any]:
        if classes:
            return check_labels(arrays, key, samples, classes, file)
        return check_numbers(arrays, key, samples, about.targets, file)

    x = check_samples(arrays, "x", input_shape, file)
    y = told("y", len(x))
    segments = arrays.get("segment")
    if segments is not None and (segments.shape != y.shape[:1] or not np.issubdtype(segments.dtype, np.integer)):
        raise BouquetError(
            f"{file}: 'segment' is {segments.dtype} of shape {segments.shape}, not {len(y)} whole numbers."
        )
    if by_time:
        return _in_time(file, arrays, x, y, about.until)
    if "x_test" in arrays:
        test_x = check_samples(arrays, "x_test", input_shape, file)
        return OwnData(x, y, segments, test_x, told("y_test", len(test_x)))
    passed_over = (
        f"{file.name} has times, which nothing looks at: with {BY_TIME} on the server the newest part is tested."
    )
    return OwnData(x, y, segments, notes=(passed_over,) if "time" in arrays else ())


def check_samples(arrays: dict[str, NDArray[Any]], key: str, input_shape: tuple[int, ...], file: Path) -> NDArray[Any]:
    """The samples (n, *input_shape) of an .npz, uint8 or float32; what does not fit is named with the file."""
    x = arrays[key]
    if x.ndim == 3 and len(input_shape) == 3 and input_shape[0] == 1:
        x = x[:, None]  # grey images are commonly kept without their channel
    if x.shape[1:] != input_shape or x.ndim == 0:
        raise BouquetError(
            f"{file}: {key!r} has shape {arrays[key].shape}, expected (samples, *{input_shape}).",
            public=f"This device's samples do not have the shape (data.input_shape) {input_shape}.",
        )
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.floating):
        raise BouquetError(f"{file}: {key!r} holds {x.dtype}; allowed are uint8 (images, 0 to 255) and float.")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise BouquetError(f"{file}: {key!r} holds values that are not finite in float32 (NaN or infinite).")
    return x


def check_labels(
    arrays: dict[str, NDArray[Any]], key: str, samples: int, classes: tuple[str, ...], file: Path
) -> NDArray[np.int64]:
    """The labels (n,) of an .npz; what does not fit is named with the file."""
    y = arrays[key]
    if y.shape != (samples,) or not np.issubdtype(y.dtype, np.integer):
        raise BouquetError(f"{file}: {key!r} is {y.dtype} of shape {y.shape}; expected {samples} whole numbers.")
    if samples and not (y.min() >= 0 and y.max() < len(classes)):
        raise BouquetError(
            f"{file}: {key!r} holds labels {y.min()} to {y.max()}; the {len(classes)} classes ({', '.join(classes)}) "
            f"allow 0 to {len(classes) - 1}.",
            public=f"This device has samples of other classes (data.classes) than {', '.join(classes)}.",
        )
    return y.astype(np.int64)


def check_numbers(
    arrays: dict[str, NDArray[Any]], key: str, samples: int, targets: Sequence[str], file: Path
) -> Floats:
    """The numbers (n, targets) of an .npz; what does not fit is named with the file."""
    y, many = arrays[key], len(targets)
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
    if wrong.any():
        raise BouquetError(
            f"{file}: {key!r} holds {numbers[wrong.argmax()].tolist()} for sample {wrong.argmax()}, and {wrong.sum()} "
            "such samples in all; allowed are numbers that float32 holds. Leave samples without a target out."
        )
    return numbers


def _in_time(file: Path, arrays: dict[str, NDArray[Any]], x: NDArray[Any], y: NDArray[Any], until: str) -> OwnData:
    """The samples in the order of their time. Without ``start``, what each begins with is of its time, too."""
    if "time" not in arrays:
        raise BouquetError(
            f"{file} lacks 'time', of which {BY_TIME} needs a value for each sample; it holds {', '.join(arrays)}.",
            public=f"This device's .npz has no times, which {BY_TIME} needs.",
        )
    if "x_test" in arrays:
        raise BouquetError(f"{file} holds 'x_test', and {BY_TIME} tests the newest of x: leave 'x_test', 'y_test' out.")
    times = _seconds(arrays, "time", len(x), file)
    starts = _seconds(arrays, "start", len(x), file) if "start" in arrays else times
    if (starts > times).any():
        raise BouquetError(f"{file}: 'start' of sample {(starts > times).argmax()} is after its 'time'.")
    order = np.argsort(times, kind="stable")
    if until:
        order = order[times[order] < seconds_of(until)]
    notes = []
    if "segment" in arrays:
        notes.append(f"{file.name} has segments, which nothing looks at with {BY_TIME}.")
    if "start" not in arrays and x.ndim == 3:  # windows
        notes.append(
            f"{file.name} has no 'start', the time of what each sample begins with: windows that begin before the cut "
            "and end after it have rows in common with what is trained on."
        )
    return OwnData(x[order], y[order], notes=tuple(notes), times=times[order], starts=starts[order])


def _seconds(arrays: dict[str, NDArray[Any]], key: str, samples: int, file: Path) -> Floats:
    found = arrays[key]
    if found.shape != (samples,) or found.dtype.kind not in "fiuM":
        raise BouquetError(
            f"{file}: {key!r} is {found.dtype} of shape {found.shape}; expected a time for each of {samples} "
            "samples, in seconds or as NumPy's datetime64."
        )
    seconds = found.astype(np.float64)
    if found.dtype.kind == "M":
        seconds = np.where(np.isnat(found), np.nan, found.astype("datetime64[us]").astype(np.int64) / 1e6)
    wrong = ~(np.abs(seconds) < LATEST)
    if wrong.any():
        raise BouquetError(
            f"{file}: {key!r} holds {found[wrong.argmax()]} for sample {wrong.argmax()}, and {wrong.sum()} such "
            "values in all; allowed are seconds since 1970 (not milliseconds, not NaN), or NumPy's datetime64."
        )
    return seconds
