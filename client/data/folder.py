"""Reading a device's own data: an .npz file, or images in a folder for each class.

Read with Pillow rather than with torchvision's ImageFolder, whose layout this is: torchvision would number only the
classes that a device has, so that two devices would number them differently, and its import takes seconds on a small
device, anew for each message.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.table_reader import table_files
from common.data.class_folders import Report, find_photos, read_photos
from common.data.images import IMAGE_MODES, IMAGE_SUFFIXES
from common.data.readers import read_arrays
from common.errors import BouquetError

NPZ_KEYS = ("x", "y", "segment", "x_test", "y_test")


@dataclass(frozen=True, eq=False)
class OwnData:
    """A device's own samples: ``x`` (n, *input_shape) uint8 or float32, ``y`` (n,); a test part if there is one.

    ``segments`` (n,) names the contiguous recording that each sample is from, where samples overlap. ``notes`` are for
    the owner, ``left_out`` counts photos that could not be read.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    segments: NDArray[np.int64] | None = None
    test_x: NDArray[Any] | None = None
    test_y: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    left_out: int = 0


def read_folder(
    path: Path,
    input_shape: tuple[int, ...],
    classes: tuple[str, ...],
    report: Report | None = None,
    leave_out: bool = False,
) -> OwnData:
    """Read ``path``: an .npz file, a folder that holds ``data.npz``, or a folder of images by class.

    An .npz holds ``x`` (n, *input_shape), uint8 or float, and ``y`` (n,), whole numbers from 0; also, if there are
    any, ``x_test`` and ``y_test``, and ``segment`` (n,), the recording that overlapping windows are from.

    A folder of images has a subfolder for each class, named like it, which may be missing where the device has none;
    or ``train`` and ``test``, each with such subfolders. Images are turned as their EXIF data say, converted to the
    channels and scaled to the height and width of ``input_shape``. One that cannot be read is an error, or with
    ``leave_out`` is left out and counted.

    Raises `BouquetError`, naming the file, what was found and what is allowed.
    """
    if not classes or len(set(classes)) < len(classes):
        raise BouquetError(f"The class names {classes} must be at least one and all different.")
    if path.suffix == ".npz" or (path / "data.npz").is_file():
        file = path if path.suffix == ".npz" else path / "data.npz"
        if not file.is_file():
            raise BouquetError(f"The data file {file} does not exist.")
        return _read_npz(file, input_shape, classes)
    if not path.is_dir():
        raise BouquetError(f"{path} is neither an .npz file nor a folder; give one of them as the device's own data.")
    return _read_images(path, input_shape, classes, report, leave_out)


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


def _read_npz(file: Path, input_shape: tuple[int, ...], classes: tuple[str, ...]) -> OwnData:
    arrays = read_arrays(file)
    if unknown := [key for key in arrays if key not in NPZ_KEYS]:
        raise BouquetError(f"{file} holds {unknown[0]!r}; allowed are {', '.join(NPZ_KEYS)}.")
    if missing := [key for key in ("x", "y") if key not in arrays]:
        raise BouquetError(f"{file} lacks {missing[0]!r}; it holds {', '.join(arrays) or 'nothing'}.")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise BouquetError(f"{file} holds one of 'x_test' and 'y_test'; give both or neither.")
    x = check_samples(arrays, "x", input_shape, file)
    y = check_labels(arrays, "y", len(x), classes, file)
    segments = arrays.get("segment")
    if segments is not None and (segments.shape != y.shape or not np.issubdtype(segments.dtype, np.integer)):
        raise BouquetError(
            f"{file}: 'segment' is {segments.dtype} of shape {segments.shape}, not {len(y)} whole numbers."
        )
    if "x_test" not in arrays:
        return OwnData(x, y, segments)
    test_x = check_samples(arrays, "x_test", input_shape, file)
    return OwnData(x, y, segments, test_x, check_labels(arrays, "y_test", len(test_x), classes, file))


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


def _read_images(
    folder: Path, input_shape: tuple[int, ...], classes: tuple[str, ...], report: Report | None, leave_out: bool
) -> OwnData:
    if len(input_shape) != 3 or input_shape[0] not in IMAGE_MODES:
        raise BouquetError(
            f"{folder} is a folder of images, which cannot have shape {input_shape}; images have (1 or 3, height, "
            "width), other data go into an .npz file."
        )
    if (folder / "train").is_dir() and "train" not in classes:
        own = _read_class_folders(folder / "train", input_shape, classes, report, leave_out)
        if not (folder / "test").is_dir():
            return own
        test = _read_class_folders(folder / "test", input_shape, classes, report, leave_out)
        return OwnData(own.x, own.y, None, test.x, test.y, own.notes + test.notes, own.left_out + test.left_out)
    return _read_class_folders(folder, input_shape, classes, report, leave_out)


def _read_class_folders(
    folder: Path, input_shape: tuple[int, ...], classes: tuple[str, ...], report: Report | None, leave_out: bool
) -> OwnData:
    found = find_photos(folder, classes)
    if not found.photos:
        raise BouquetError(
            f"{folder} holds no images; put them ({', '.join(IMAGE_SUFFIXES)}) into a subfolder for each class "
            f"({', '.join(classes)})." + "".join(f" {note}" for note in found.notes())
        )
    unreadable: list[str] = []
    try:
        x, y = read_photos(found, input_shape, report, unreadable if leave_out else None)
    except BouquetError as error:
        raise BouquetError(
            f"{error} Or let the client go on without such photos: --leave-out-unreadable.",
            public="A photo on this device cannot be read.",
        ) from None
    if not len(y):
        raise BouquetError(f"None of the {len(found.photos)} images in {folder} can be read. {unreadable[0]}")
    notes = found.notes()
    if unreadable:
        notes += (f"Left out: {len(unreadable)} of {len(found.photos)} photos cannot be read. {unreadable[0]}",)
    return OwnData(x, y, notes=notes, left_out=len(unreadable))
