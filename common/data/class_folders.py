"""Images in a folder for each class: which there are, and their pixels."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.images import (
    HEIF_SUFFIXES,
    IMAGE_SUFFIXES,
    ODD,
    Photo,
    is_clutter,
    is_image,
    read_photo,
    sorted_files,
)
from bouquet.common.data.left_out import LeftOut, named
from bouquet.common.errors import BouquetError
from bouquet.common.system.resources import available_cores
from bouquet.common.texts import printable

MANY_IMAGES = 100
Report = Callable[[str], None]


@dataclass(frozen=True)
class Photos:
    """What a folder with a folder for each class holds: ``photos`` with their labels, and what is not among them.

    ``passed_over`` counts files by suffix, ``empty`` names classes whose folder holds no images, ``outside`` counts
    images that are in no class, ``unknown`` those in each folder that is none of the ``classes``.
    """

    folder: Path
    photos: tuple[tuple[Path, int], ...]
    passed_over: dict[str, int]
    empty: tuple[str, ...]
    outside: int
    unknown: dict[str, int]
    classes: tuple[str, ...]

    @property
    def unknown_classes(self) -> tuple[str, ...]:
        """The folders with images that are none of the classes."""
        return tuple(name for name, count in self.unknown.items() if count)

    def notes(self) -> tuple[str, ...]:
        """What the owner should know, a sentence each."""
        notes = []
        if self.passed_over:
            kinds = ", ".join(f"{suffix} {count}" for suffix, count in sorted(self.passed_over.items()))
            heif = any(suffix in HEIF_SUFFIXES for suffix in self.passed_over)
            notes.append(
                f"Passed over: {sum(self.passed_over.values())} files that are not images Bouquet reads ({kinds}); it "
                f"reads {', '.join(IMAGE_SUFFIXES)}{', and .heic with pillow-heif (pip install pillow-heif)' * heif}."
            )
        if self.empty:
            notes.append(f"Empty: the folders {', '.join(self.empty)} hold no images.")
        if self.outside:
            notes.append(f"Outside: {self.outside} images lie in {self.folder} itself, in no class.")
        if self.unknown_classes:
            those = ", ".join(
                f"{name} ({count} image{'s' * (count != 1)}{self._meant(name)})"
                for name, count in self.unknown.items()
                if count
            )
            notes.append(f"Not a class of this run, and waits for one whose data.classes name it: {those}.")
        return tuple(map(printable, notes))

    def _meant(self, name: str) -> str:
        """A word where a class is called nearly so."""
        meant = next((known for known in self.classes if _bare(known) == _bare(name)), None)
        return f"; is it {meant}? Rename the folder then" if meant else ""

    def check_known(self) -> None:
        """Raise `BouquetError` for a folder that is none of the classes."""
        for name in self.unknown:
            known = ", ".join(self.classes)
            raise BouquetError(
                f"The folder {self.folder / name} is not one of the classes {known}{self._meant(name)}.",
                public=f"A folder of this device's data is none of the classes (data.classes) {known}.",
            )


def class_name(text: str) -> str:
    """A class's name in the one form (NFC) that it is compared in: macOS copies names with their accents apart."""
    return normalize("NFC", text)


def find_photos(folder: Path, classes: tuple[str, ...]) -> Photos:
    """The images in the class folders below ``folder``; hidden folders, and those of file servers, are nobody's class.

    Raises `BouquetError` where the folder cannot be looked into.
    """
    with named(f"The folder {folder}"):
        entries = sorted(folder.iterdir())
    labels = {class_name(name): label for label, name in enumerate(classes)}
    photos: list[tuple[Path, int]] = []
    passed_over: Counter[str] = Counter()
    empty, unknown = [], {}
    for entry in entries:
        label = labels.get(class_name(entry.name))
        if label is not None and not os.path.isdir(entry):  # a link to what is not there, or no folder: is named
            photos.append((entry, label))
            continue
        if not os.path.isdir(entry) or (label is None and is_clutter(entry.name)):
            continue
        images, others = sorted_files(entry)
        if label is None:
            unknown[printable(class_name(entry.name))] = len(images)
            continue
        photos += [(file, label) for file in images]
        passed_over.update(file.suffix.lower() or "without suffix" for file in others)
        if not images:
            empty.append(entry.name)
    outside = sum(is_image(e) and not os.path.isdir(e) and not is_clutter(e.name) for e in entries)
    return Photos(folder, tuple(photos), dict(passed_over), tuple(empty), outside, unknown, classes)


@dataclass(frozen=True, eq=False)
class ReadPhotos:
    """Photos that could be read, in order: ``x`` (n, *input_shape), ``y`` (n,) and the ``files``.

    ``taken`` and ``changed`` (n,) are as in `bouquet.common.data.images.Photo`; ``odd`` has the files by what is to be
    said of them.
    """

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    files: tuple[Path, ...]
    taken: NDArray[np.float64]
    changed: NDArray[np.float64]
    odd: dict[str, list[Path]]


def read_photos(
    photos: Photos, input_shape: tuple[int, ...], report: Report | None = None, left_out: LeftOut | None = None
) -> ReadPhotos:
    """The pixels and labels of all photos, in their order.

    ``report`` is told how far many images are, in a line each time. Photos that cannot be read are left to
    ``left_out``, which raises `BouquetError` where it takes none; without it none is taken.
    """
    x = np.empty((len(photos.photos), *input_shape), dtype=np.uint8)
    taken = np.empty((2, len(x)))
    kept: list[tuple[Path, int]] = []
    odd: dict[str, list[Path]] = {what: [] for what in ODD}
    step = max(1, len(photos.photos) // 10)
    # Pillow lets others work while it decodes; its warnings name no file.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(available_cores()) as pool:
        try:
            read = pool.map(lambda photo: _photo_or_error(photo[0], input_shape), photos.photos)
            for done, (which, photo) in enumerate(zip(photos.photos, read, strict=True), 1):
                if isinstance(photo, BouquetError):
                    if left_out is None:
                        raise photo
                    left_out.add(photo)
                else:
                    x[len(kept)], taken[:, len(kept)] = photo.pixels, (photo.taken, photo.changed)
                    for what in photo.odd:
                        odd[what].append(which[0])
                    kept.append(which)
                if report is not None and len(photos.photos) >= MANY_IMAGES and done % step == 0:
                    report(f"Reading the images in {photos.folder}: {done} of {len(photos.photos)}.")
        finally:
            pool.shutdown(cancel_futures=True)
    count, labels = len(kept), np.array([label for _, label in kept], dtype=np.int64)
    files = tuple(file for file, _ in kept)
    return ReadPhotos(x[:count], labels, files, taken[0, :count], taken[1, :count], odd)


def _photo_or_error(file: Path, input_shape: tuple[int, ...]) -> Photo | BouquetError:
    try:
        return read_photo(file, input_shape)
    except BouquetError as error:
        return error


def _bare(name: str) -> str:
    """Without case, spaces and marks between words."""
    return "".join(c for c in class_name(name).casefold() if c.isalnum())
