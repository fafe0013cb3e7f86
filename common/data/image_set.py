"""A folder of images as a data set: ``train/CLASS/*.jpg`` and, where there is one, ``test/CLASS/*.jpg``.

Decoded once: the arrays are kept in the user's cache folder (XDG_CACHE_HOME, else ~/.cache), under a key of the files'
names, sizes and times, the classes and the shape, so that not every cell of a comparison decodes the images again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from bouquet.common.data.catalog import DatasetInfo
from bouquet.common.data.class_folders import find_photos, read_photos
from bouquet.common.data.images import IMAGE_MODES, sorted_files
from bouquet.common.data.readers import Arrays, DatasetFileError, read_arrays
from bouquet.common.errors import BouquetError
from bouquet.common.system.files import keep_private, replacing

CACHE = "bouquet"
MOST_TIMES = 4  # as large as an archive are its files together
PARTS = {"train": ("x", "y"), "test": ("test_x", "test_y")}


def read_image_set(name: str, data_dir: Path, info: DatasetInfo) -> Arrays:
    """``x`` (N, *input_shape) uint8 and ``y`` (N,); ``test_x``, ``test_y`` where there is a folder ``test``.

    ``images`` is ``data_dir`` itself, ``images/NAME`` its folder NAME, or the archive NAME.tar. Raises `BouquetError`
    that names an image which cannot be read, a folder that is no class, and a class without images.
    """
    if len(info.input_shape) != 3 or info.input_shape[0] not in IMAGE_MODES:
        raise DatasetFileError(
            f"images cannot have data.input_shape = {info.input_shape}, but (1 or 3, height, width)."
        )
    below = name.partition("/")[2]
    folder, archive = data_dir / below, data_dir / f"{below}.tar"
    kept = _kept_file(folder if folder.is_dir() else archive, info)
    with contextlib.suppress(DatasetFileError):
        return read_arrays(kept)
    if folder.is_dir():
        arrays = _read(folder, info)
    elif below and archive.is_file():
        arrays = _read_archive(archive, below, info)
    else:
        raise DatasetFileError(f"expected the folder {folder}{f', or {archive}' if below else ''}; it is not there.")
    _keep(kept, arrays)
    return arrays


def _read(folder: Path, info: DatasetInfo) -> Arrays:
    arrays: Arrays = {}
    for part, (x, y) in PARTS.items():
        place = folder / part
        if not place.is_dir():
            if part == "train":
                raise DatasetFileError(f"expected the folder {place}, which is not there.")
            continue
        found = find_photos(place, info.classes)
        found.check_known()
        there = {label for _, label in found.photos}
        if lacking := [name for label, name in enumerate(info.classes) if label not in there]:
            raise DatasetFileError(f"{place} holds no images of {', '.join(lacking)}, which data.classes names.")
        photos = read_photos(found, info.input_shape)
        arrays[x], arrays[y] = photos.x, photos.y
    return arrays


def _read_archive(archive: Path, below: str, info: DatasetInfo) -> Arrays:
    """What is in the archive's folder of its own name."""
    with tempfile.TemporaryDirectory(prefix="bouquet-images-") as folder:
        try:
            with tarfile.open(archive, "r:") as tar:
                _unpack(tar, Path(folder).resolve(), MOST_TIMES * archive.stat().st_size)
        except (tarfile.TarError, OSError, KeyError, RecursionError) as error:
            raise DatasetFileError(f"{archive} cannot be unpacked ({error}).") from error
        try:
            return _read(Path(folder, below), info)
        except BouquetError as error:
            raise DatasetFileError(f"in {archive}: {error}".replace(f"{folder}{os.sep}", "")) from error


def _unpack(tar: tarfile.TarFile, folder: Path, room: int) -> None:
    """The archive's files, none outside ``folder``. tarfile's own filter for that begins with Python 3.11.4.

    Sparse files and links take no bytes of an archive and any number of the disk's: they have ``room`` for so many.
    """
    for member in tar:
        place = Path(folder, member.name).resolve()
        if not place.is_relative_to(folder):
            raise tarfile.TarError(f"{member.name} would lie outside of its folder")
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
        elif (content := tar.extractfile(member)) is not None:  # also of a link to a file of the archive
            room -= content.seek(0, os.SEEK_END)
            if room < 0:
                raise tarfile.TarError(f"its files are more than {MOST_TIMES} times as large as the archive")
            content.seek(0)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                shutil.copyfileobj(content, file)


def _kept_file(source: Path, info: DatasetInfo) -> Path:
    files = [file for part in PARTS for file in sorted_files(source / part)[0]] if source.is_dir() else [source]
    about = [(str(file), *_size_and_time(file)) for file in files]
    text = json.dumps([about, info.classes, info.input_shape])
    with contextlib.suppress(RuntimeError):  # nobody's home
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache, CACHE, f"images-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz")
    return Path(os.devnull)


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        about = file.stat()
    except OSError:
        return 0, 0
    return about.st_size, about.st_mtime_ns


def _keep(file: Path, arrays: Arrays) -> None:
    """Write the arrays; who cannot write there decodes each time."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_private(file.parent)
        with replacing(file, 0o600) as output:
            np.savez(output, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        print(f"The decoded images cannot be kept in {file.parent} ({error.strerror}).", flush=True)
