"""Reading a device's own data: an .npz file, or images in a folder for each class.

Read with Pillow rather than with torchvision's ImageFolder, whose layout this is: torchvision would number only the
classes that a device has, so that two devices would number them differently, and its import takes seconds on a small
device, anew for each message.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bouquet.client.data.arrays import BY_TIME, OwnData, read_npz
from bouquet.client.data.scenes import in_time, in_two_classes, scenes, short
from bouquet.client.data.table_text import table_files
from bouquet.client.data.table_times import seconds_of
from bouquet.common.data.class_folders import Report, find_photos, read_photos
from bouquet.common.data.images import IMAGE_MODES, IMAGE_SUFFIXES, is_clutter
from bouquet.common.data.left_out import LeftOut
from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings
from bouquet.common.texts import printable

NO_TABLE = TableSettings()
NO_TIMES = (
    f"{BY_TIME}, and the photos have no times: EXIF has none, and most of the files were written in one go, as by a "
    "copy. A random part is tested."
)


def read_folder(
    path: Path,
    input_shape: tuple[int, ...],
    classes: tuple[str, ...],
    report: Report | None = None,
    strict: bool = False,
    about: TableSettings = NO_TABLE,
    by_time: bool = False,
) -> OwnData:
    """Read ``path``: an .npz file, a folder that holds ``data.npz``, or a folder of images by class.

    `read_npz` says what an .npz holds. A folder of images has a subfolder for each class, named like it, which may be
    missing where the device has none; or ``train`` and ``test``, each with such subfolders. Images are turned as their
    EXIF data say, converted to the channels and scaled to the height and width of ``input_shape``. Those that cannot be
    read are left out and counted where they are few; with ``strict`` one is an error. With ``by_time`` they are in the
    order of the time that `bouquet.client.data.scenes.in_time` knows.

    Raises `BouquetError`, naming the file, what was found and what is allowed.
    """
    if not (classes or about.targets) or len(set(classes)) < len(classes):
        raise BouquetError(f"The class names {classes} must be at least one and all different.")
    if (file := npz_of(path)) is not None:
        if not file.is_file():
            raise BouquetError(f"The data file {file} does not exist.")
        return read_npz(file, input_shape, classes, about, by_time, strict)
    if not path.is_dir():
        raise BouquetError(f"{path} is neither an .npz file nor a folder; give one of them as the device's own data.")
    if not classes:
        raise BouquetError(f"{path} holds no data.npz, and a folder of images has no numbers: give an .npz file.")
    return _read_images(path, input_shape, classes, report, strict, about.until if by_time else None)


def npz_of(path: Path) -> Path | None:
    """The .npz that ``path`` is, which may be missing, or that the folder holds; None where it is another kind."""
    if path.suffix == ".npz":
        return path
    file = path / "data.npz"
    return file if file.is_file() else None


def client_folders(data_dir: str) -> list[Path]:
    """What in ``data_dir`` each simulated client has: a folder, or where there are none, a table; by their names.

    Hidden ones are passed over. Raises `BouquetError` when there are none.
    """
    if not data_dir:
        raise BouquetError(
            "data.dataset = 'own' is simulated from data.data_dir (--data-dir): a folder with a folder for each client."
        )
    folder = Path(data_dir).absolute()
    if not folder.is_dir():
        raise BouquetError(f"data.data_dir = {data_dir!r} is no folder; it holds a folder for each client.")
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not found and not (found := table_files(folder)):
        raise BouquetError(
            f"data.data_dir = {data_dir!r} holds no folders and no tables; make one for each client, with a folder of "
            "images for each class in it, a data.npz, or tables (.csv)."
        )
    return found


def _read_images(
    folder: Path,
    input_shape: tuple[int, ...],
    classes: tuple[str, ...],
    report: Report | None,
    strict: bool,
    until: str | None,
) -> OwnData:
    """``until`` is the time that photos are before, '' without; None where they are not divided by time."""
    if len(input_shape) != 3 or input_shape[0] not in IMAGE_MODES:
        raise BouquetError(
            f"{folder} is a folder of images, which cannot have shape {input_shape}; images have (1 or 3, height, "
            "width), other data go into an .npz file."
        )
    read = partial(_read_class_folders, input_shape=input_shape, classes=classes, report=report, strict=strict)
    if not (folder / "train").is_dir() or "train" in classes:
        return read(folder, until=until)
    others = {e.name for e in folder.iterdir() if e.is_dir() and not is_clutter(e.name)} - {"train", "test"}
    beside = ", ".join(sorted(others))
    said = (printable(f"Passed over: {beside}; beside train nothing but test is read."),) * bool(beside)
    if not (folder / "test").is_dir():
        own = read(folder / "train", until=until)
        return replace(own, notes=said + own.notes)
    if until is not None:
        raise BouquetError(f"{folder} holds train and test, and {BY_TIME} tests the newest: put all into train.")
    own, test = (read(folder / part, until=None, divided=True) for part in ("train", "test"))
    parts: dict[str, Any] = {"test_x": test.x, "test_y": test.y, "test_files": test.files}
    told: dict[str, Any] = {"notes": said + own.notes + test.notes, "left_out": own.left_out + test.left_out}
    return replace(own, **parts, **told, unknown=tuple(dict.fromkeys(own.unknown + test.unknown)))


def _read_class_folders(
    folder: Path,
    input_shape: tuple[int, ...],
    classes: tuple[str, ...],
    report: Report | None,
    strict: bool,
    until: str | None,
    divided: bool = False,
) -> OwnData:
    found = find_photos(folder, classes)
    if strict:
        found.check_known()
    if not found.photos:
        raise BouquetError(
            f"{folder} holds no images; put them ({', '.join(IMAGE_SUFFIXES)}) into a subfolder for each class "
            f"({', '.join(classes)})." + "".join(f" {note}" for note in found.notes())
        )
    left_out = LeftOut("photos", strict)
    photos = read_photos(found, input_shape, report, left_out)
    left_out.check(len(found.photos))
    notes = (*found.notes(), *left_out.notes(len(found.photos)), *in_two_classes(photos))
    odd = ((what, files) for what, files in photos.odd.items() if files)
    notes += tuple(f"Look at {len(files)} photos, such as {short(files[0])}: {what}." for what, files in odd)
    more: dict[str, Any] = {"left_out": left_out.count, "files": photos.files, "unknown": found.unknown_classes}
    if until is not None:
        if (timed := in_time(photos)) is not None:
            order, times = (part[timed[1] < seconds_of(until)] if until else part for part in timed)
            more |= {"files": tuple(photos.files[i] for i in order), "times": times, "starts": times}
            return OwnData(photos.x[order], photos.y[order], notes=notes, **more)
        more["warnings"] = (NO_TIMES,)
    scene, said = (None, ()) if divided else scenes(photos)
    return OwnData(photos.x, photos.y, scene, notes=notes + said, **more)
