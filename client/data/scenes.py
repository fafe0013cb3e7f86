"""Photos that show the same: bursts, which a random split would put on both sides, near duplicates, and copies.

A camera that is triggered takes some frames of one scene. Where one of them is trained on and the next is tested, the
score says how well the scene is known again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.class_folders import ReadPhotos
from bouquet.common.texts import printable

BURST = 10.0  # seconds, at most, from one frame to the next
HASH = 10  # rows and columns of a perceptual hash
# Of its bits, that near duplicates differ in at most: of 2,000 photos of CIFAR-10 one in a thousand has one so near
# among the others, and 95 % have their own with noise and in other light; 55 % moved by a row, 13 % by a column of 32.
ALIKE = 0.15
PART = 1000  # tested photos that are compared at once


def scenes(photos: ReadPhotos) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """The scene (n,) that each photo is of, by the time it was taken, and a word on it; None where no bursts show.

    By the file's time where EXIF has none. When all files of a class were written in one go, as by a copy, their times
    say nothing. A class of which the camera took more than half in one go is cut into tenths.
    """
    times, by_camera = _times(photos)
    scene = np.empty(len(times), dtype=np.int64)
    count = 0
    for label in np.unique(photos.y):
        of_class = np.flatnonzero(photos.y == label)
        order = of_class[np.argsort(times[of_class], kind="stable")]
        runs = _runs(order, times)
        if max(map(len, runs)) > max(2, len(order) / 2):
            if not by_camera:
                return None, ()
            size = max(1, len(order) // 10)
            runs = [run[i : i + size] for run in runs for i in range(0, len(run), size)]
        for run in runs:
            scene[run] = count
            count += 1
    if count == len(times):
        return None, ()
    whose = "EXIF" if by_camera else "the files' times"
    said = f"Scenes: {len(times)} photos are {count} scenes by {whose}; each is trained on as a whole, or tested."
    return scene, (said,)


def in_time(photos: ReadPhotos) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """The order of the photos by the time they were taken (n,), and in it their times, a burst's being its first's.

    By EXIF where nine in ten have it, by the file's time where one has none. None where that is all there is, and most
    files were written in one go. Of a camera that never pauses each photo has its own.
    """
    times, by_camera = _times(photos)
    times = np.where(np.isfinite(times), times, photos.changed)
    order = np.argsort(times, kind="stable")
    began = times.copy()
    for run in _runs(order, times):
        if len(run) <= len(order) / 2:
            began[run] = times[run[0]]
        elif not by_camera:
            return None
    return order, began[order]


def _times(photos: ReadPhotos) -> tuple[NDArray[np.float64], bool]:
    """When each was taken (n,), and whether that is by EXIF, and NaN where one has none, or by the files' times."""
    by_camera = bool(len(photos.y)) and bool(np.isfinite(photos.taken).mean() > 0.9)
    return (photos.taken if by_camera else photos.changed), by_camera


def _runs(order: NDArray[np.intp], times: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Places in the order of their times, in bursts."""
    begins = ~(np.diff(times[order], prepend=np.nan) <= BURST)
    return np.split(order, np.flatnonzero(begins)[1:])


def in_two_classes(photos: ReadPhotos) -> tuple[str, ...]:
    """A word on photos of the very same pixels that lie in two classes."""
    first: dict[bytes, int] = {}
    pairs = [(first.setdefault(x.tobytes(), i), i) for i, x in enumerate(photos.x)]
    twice = [(a, b) for a, b in pairs if photos.y[a] != photos.y[b]]
    if not twice:
        return ()
    a, b = (short(photos.files[i]) for i in twice[0])
    return (f"In two classes: {len(twice)} photos, such as {a}, which is {b}, too.",)


def near_duplicates(
    x: NDArray[Any], test_x: NDArray[Any], files: Sequence[Path], test_files: Sequence[Path]
) -> tuple[str, ...]:
    """A word on tested photos (n, C, H, W) that look almost like one that is trained on."""
    if not len(x) or not len(test_x):
        return ()
    known = _hashes(x)
    bits = known.shape[1]
    parts = (_hashes(test_x[i : i + PART]) @ known.T for i in range(0, len(test_x), PART))
    # ±1 · ±1 is the number of bits that agree less those that differ.
    most = np.concatenate([np.stack([part.argmax(axis=1), part.max(axis=1)]) for part in parts], axis=1)
    alike = np.flatnonzero(most[1] >= bits * (1 - 2 * ALIKE))
    if not len(alike):
        return ()
    tested, trained = short(test_files[alike[0]]), short(files[int(most[0, alike[0]])])
    return (
        f"Look alike: {len(alike)} of {len(test_x)} tested photos are almost one that is trained on, such as {tested} "
        f"and {trained}: the score flatters. Have each scene in train/ or test/ as a whole, or keep the photos' times.",
    )


def _hashes(x: NDArray[Any]) -> NDArray[np.float32]:
    """Difference hashes (n, bits) of images (n, C, H, W): 1 where it gets brighter to the right, else −1."""
    grey = x.mean(axis=1, dtype=np.float32)
    for axis, most in ((1, HASH), (2, HASH + 1)):
        size = grey.shape[axis]
        places = np.linspace(0, size, min(most, size) + 1).astype(int)
        grey = np.add.reduceat(grey, places[:-1], axis=axis) / np.expand_dims(
            np.diff(places), tuple(k for k in range(3) if k != axis)
        ).astype(np.float32)
    brighter: NDArray[np.float32] = np.where(np.diff(grey, axis=2) > 0, 1, -1).astype(np.float32)
    return brighter.reshape(len(x), -1)


def short(file: Path) -> str:
    """A photo's class and name, for people."""
    return printable(f"{file.parent.name}/{file.name}".replace("\n", r"\n"))
