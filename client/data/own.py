"""A device's own data, divided and scaled: an .npz, images in folders, or a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.drift import stuck
from bouquet.client.data.folder import NO_TABLE, read_folder
from bouquet.client.data.loading import MINIMUM_TRAIN, ClientData, check_enough, split
from bouquet.client.data.outliers import odd_values
from bouquet.client.data.scenes import near_duplicates
from bouquet.client.data.table import Timed, capped, divide, jumped, samples_of, scaling_of, span
from bouquet.client.data.table_reader import read_table
from bouquet.common.data.scaling import within
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import TableSettings
from bouquet.common.task.task import task_of

ASSUMED_APART = (
    "Neither x_test nor segment: a random part is tested, as if no samples overlapped. Windows of one recording do, "
    "which flatters: give each its segment or time, or a test part."
)
THE_MEAN = "the mean"


def load_folder(
    path: Path | str,
    *,
    input_shape: Sequence[int],
    classes: Sequence[str],
    test_fraction: float = 0.2,
    seed: int = 0,
    report: Callable[[str], None] | None = None,
    strict: bool = False,
    about: TableSettings = NO_TABLE,
    by_time: bool = False,
) -> ClientData:
    """A device's own data: an .npz file, or a folder that holds ``data.npz`` or a folder of images for each class.

    `bouquet.client.data.folder.read_folder` says what each may hold. Bytes stay bytes, a fourth of the memory; floats
    are taken as they are. Without a test part of its own, ``test_fraction`` of the samples is set aside for it: by
    ``seed``, or with ``by_time`` the newest. Where there are no classes, targets and floats are scaled as those of a
    table. ``report`` is told how far the reading of many images has come; ``strict`` leaves nothing out.

    Raises `BouquetError`, naming the file, what was found and what is allowed.
    """
    path, classes = Path(path), tuple(classes)
    own = read_folder(path, tuple(input_shape), classes, report, strict, about, by_time)
    notes, x, y = own.notes, own.x, own.y
    rest: dict[str, Any] = {"left_out": own.left_out, "unknown_classes": own.unknown, "warnings": own.warnings}
    if own.test_x is not None and own.test_y is not None:
        test_x, test_y = own.test_x, own.test_y
        check_enough(str(path), len(y), len(test_y))
    else:
        parts = divide(own, about, test_fraction)
        if parts is None:
            labels = y if classes else np.zeros(len(y), dtype=np.int64)
            parts = split(str(path), np.arange(len(y)), labels, seed, test_fraction, own.segments)
            if own.segments is None and x.ndim < 4:  # no images
                notes += (ASSUMED_APART,)
        else:
            rest |= _by_time(f"{path}, of which {_tested(about, True)} is tested,", own, parts)
        train, test = parts
        x, y, test_x, test_y = x[train], y[train], x[test], y[test]
        if own.files:
            files, test_files = (tuple(own.files[i] for i in part) for part in parts)
            own = replace(own, files=files, test_files=test_files)
    if own.files:
        notes += near_duplicates(x, test_x, own.files, own.test_files)
    if classes:
        return ClientData(x, y, test_x, test_y, len(classes), notes=notes, **rest)
    scaling = scaling_of(x, y, has_classes=False)
    y = within(y, scaling.target_limits)
    naive, naive_names = _naive(y, test_y)
    if x.dtype != np.uint8:
        x, test_x = scaling.inputs(x), scaling.inputs(test_x)
    rest |= {"notes": notes, "scaling": scaling, "naive": naive, "naive_names": naive_names}
    return ClientData(x, scaling.targets(y), test_x, scaling.targets(test_y), 0, **rest)


def load_table(path: Path | str, settings: Settings, strict: bool = False) -> ClientData:
    """A device's own table (`bouquet.client.data.table`): a CSV file, or a folder of them.

    With times the newest part is tested, without them a random one. Everything is standardised by what is trained on.
    Rows that do not fit are left out and counted where they are few, unless ``strict``.

    Raises `BouquetError`, naming file, line and column, for what does not fit.
    """
    path, about, task = Path(path), settings.table, task_of(settings)
    if task.reconstructs:
        about = about.model_copy(update={"horizon": 0})
    table = read_table(path, about, settings.data.classes, strict=strict)
    try:
        samples = samples_of(table, about, task.is_forecast)
    except BouquetError as error:
        raise BouquetError(f"{path}: {error}", public=error.public) from error
    labels = samples.y if task.has_classes else np.zeros(len(samples.y), dtype=np.int64)
    fraction = settings.data.test_fraction
    if len(labels) < MINIMUM_TRAIN + 1:
        check_enough(f"{path} ({' '.join(samples.notes) or 'without gaps'})", len(labels), 0)
    parts = divide(samples, about, fraction)
    what, rest = f"{path}, of which {_tested(about, bool(about.time))} is tested,", {}
    if parts is not None:
        rest = _by_time(what, samples, parts)
    train, test = parts or split(str(path), np.arange(len(labels)), labels, settings.run.seed, fraction, None)
    check_enough(what, len(train), len(test))
    scaling = scaling_of(samples.x[train], samples.y[train], task.has_classes or task.reconstructs)
    train_y, test_y = samples.y[train], samples.y[test]
    x = scaling.inputs(samples.x)
    limited = capped(scaling, about)
    notes, warnings = [*samples.notes, *odd_values(table, about, limited)], []
    if limited:
        inside = ", ".join(limited.values())
        notes.append(f"Scaled by what is not far outside; what is beyond counts as the end: {inside}.")
        warnings.append("A few values are far outside of the others, and count as less: bouquet check says which.")
    if parts is not None:
        newest = x if x.ndim == 2 else x[:, :, -1]
        warnings += [*jumped(newest, about), *stuck(newest, about.words)]
    if task.reconstructs:
        train_y, test_y = (x[part].reshape(len(part), -1) for part in (train, test))
        rest |= {"naive": np.zeros((1, *test_y.shape), dtype=np.float32), "naive_names": (THE_MEAN,)}
    elif not task.has_classes:
        train_y = within(train_y, scaling.target_limits)
        naive, names = _naive(train_y, test_y)
        train_y, test_y = scaling.targets(train_y), scaling.targets(test_y)
        rest |= {
            "naive": np.concatenate([samples.naive[:, test], naive]),
            "naive_names": (*samples.naive_names, *names),
        }
    rest |= {
        "notes": tuple(notes),
        "warnings": tuple(dict.fromkeys(warnings)),
        "left_out": table.left_out,
        "scaling": scaling,
    }
    return ClientData(x[train], train_y, x[test], test_y, len(settings.data.classes), **rest)


def _naive(y: NDArray[Any], test_y: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The mean of what is trained on, for each of what is tested (1, n, targets), and what it is called."""
    return np.broadcast_to(y.mean(axis=0), (1, *test_y.shape)).copy(), (THE_MEAN,)


def _by_time(what: str, timed: Timed, parts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> dict[str, Any]:
    check_enough(what, len(parts[0]), len(parts[1]))
    return {"in_order": True, "span": span(timed, *parts)}


def _tested(about: TableSettings, by_time: bool) -> str:
    if about.cut:
        return f"what is of {about.cut} or later"
    return "the newest part" if by_time else "a random part"
