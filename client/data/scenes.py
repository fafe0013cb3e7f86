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
HASH = 16  # rows and columns of a perceptual hash
ALIKE = 0.1  # of a hash's bits in which near duplicates differ
PART = 1000  # tested photos that are compared at once


def scenes(photos: ReadPhotos) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """The scene (n,) that each photo is of, by the time it was taken, and a word on it; None where no bursts show.

    By the file's time where EXIF has none. When all files of a class were written in one go, as by a copy, their times
    say nothing. A class of which the camera took more than half in one go is cut into tenths.
    """
    by_camera = np.isfinite(photos.taken).mean() > 0.9 if len(photos.y) else False
    times = photos.taken if by_camera else photos.changed
    scene = np.empty(len(times), dtype=np.int64)
    count = 0
    for label in np.unique(photos.y):
        of_class = np.flatnonzero(photos.y == label)
        order = of_class[np.argsort(times[of_class], kind="stable")]
        begins = ~(np.diff(times[order], prepend=np.nan) <= BURST)
        runs = np.split(order, np.flatnonzero(begins)[1:])
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


def in_two_classes(photos: ReadPhotos) -> tuple[str, ...]:
    """A word on photos of the very same pixels that lie in two classes."""
    first: dict[bytes, int] = {}
    pairs = [(first.setdefault(x.tobytes(), i), i) for i, x in enumerate(photos.x)]
    twice = [(a, b) for a, b in pairs if photos.y[a] != photos.y[b]]
    if not twice:
        return ()
    a, b = (_named(photos.files[i]) for i in twice[0])
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
    tested, trained = _named(test_files[alike[0]]), _named(files[int(most[0, alike[0]])])
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


def _named(file: Path) -> str:
    return printable(f"{file.parent.name}/{file.name}")
