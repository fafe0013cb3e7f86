"""Images in a folder for each class: which there are, and their pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.images import IMAGE_SUFFIXES, is_clutter, read_image, sorted_files
from bouquet.common.data.left_out import LeftOut
from bouquet.common.errors import BouquetError
from bouquet.common.system.resources import available_cores

MANY_IMAGES = 100
Report = Callable[[str], None]


@dataclass(frozen=True)
class Photos:
    """What a folder with a folder for each class holds: ``photos`` with their labels, and what is not among them.

    ``passed_over`` counts files by suffix, ``empty`` names classes whose folder holds no images, ``outside`` counts
    images that are in no class.
    """

    folder: Path
    photos: tuple[tuple[Path, int], ...]
    passed_over: dict[str, int]
    empty: tuple[str, ...]
    outside: int

    def notes(self) -> tuple[str, ...]:
        """What the owner should know, a sentence each."""
        notes = []
        if self.passed_over:
            kinds = ", ".join(f"{suffix} {count}" for suffix, count in sorted(self.passed_over.items()))
            notes.append(
                f"Passed over: {sum(self.passed_over.values())} files that are not images Bouquet reads ({kinds}); it "
                f"reads {', '.join(IMAGE_SUFFIXES)}."
            )
        if self.empty:
            notes.append(f"Empty: the folders {', '.join(self.empty)} hold no images.")
        if self.outside:
            notes.append(f"Outside: {self.outside} images lie in {self.folder} itself, in no class.")
        return tuple(notes)


def find_photos(folder: Path, classes: tuple[str, ...]) -> Photos:
    """The images in the class folders below ``folder``; hidden folders, and those of file servers, are nobody's class.

    Raises `BouquetError` for a folder that is neither.
    """
    found = sorted(e for e in folder.iterdir() if e.is_dir() and (e.name in classes or not is_clutter(e.name)))
    if unknown := [entry for entry in found if entry.name not in classes]:
        raise BouquetError(
            f"The folder {unknown[0]} is not one of the classes {', '.join(classes)}.",
            public=f"A folder of this device's data is none of the classes (data.classes) {', '.join(classes)}.",
        )
    photos: list[tuple[Path, int]] = []
    passed_over: Counter[str] = Counter()
    empty = []
    for entry in found:
        images, others = sorted_files(entry)
        photos += [(file, classes.index(entry.name)) for file in images]
        passed_over.update(file.suffix.lower() or "without suffix" for file in others)
        if not images:
            empty.append(entry.name)
    outside = sum(
        e.is_file() and e.suffix.lower() in IMAGE_SUFFIXES and not is_clutter(e.name) for e in folder.iterdir()
    )
    return Photos(folder, tuple(photos), dict(passed_over), tuple(empty), outside)


def read_photos(
    found: Photos, input_shape: tuple[int, ...], report: Report | None = None, left_out: LeftOut | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The pixels (n, *input_shape) and labels (n,) of all photos, in their order.

    ``report`` is told how far many images are, in a line each time. Photos that cannot be
    read are left to ``left_out``, which raises `BouquetError` where it takes none; without it none is taken.
    """
    left_out = left_out or LeftOut("photos", strict=True)
    x = np.empty((len(found.photos), *input_shape), dtype=np.uint8)
    labels: list[int] = []
    step = max(1, len(found.photos) // 10)
    pool = ThreadPoolExecutor(available_cores())  # Pillow lets others work while it decodes
    try:
        pixels = pool.map(lambda photo: _pixels_or_error(photo[0], input_shape), found.photos)
        for done, ((_, label), read) in enumerate(zip(found.photos, pixels, strict=True), 1):
            if not isinstance(read, BouquetError):
                x[len(labels)] = read
                labels.append(label)
            else:
                left_out.add(read)
            if report is not None and len(found.photos) >= MANY_IMAGES and done % step == 0:
                report(f"Reading the images in {found.folder}: {done} of {len(found.photos)}.")
    finally:
        pool.shutdown(cancel_futures=True)
    return x[: len(labels)], np.array(labels, dtype=np.int64)


def _pixels_or_error(file: Path, input_shape: tuple[int, ...]) -> NDArray[np.uint8] | BouquetError:
    try:
        return read_image(file, input_shape)
    except BouquetError as error:
        return error
