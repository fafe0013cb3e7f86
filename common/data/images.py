"""Reading images with Pillow: torchvision, whose import takes seconds on a small device, is not needed for it."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.left_out import named
from bouquet.common.system.resources import available_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

HEIF, HEIF_SUFFIXES = "pillow_heif", (".heic", ".heif")  # read where that package is installed
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".mpo")
IMAGE_SUFFIXES = (*JPEG_SUFFIXES, ".png", ".gif", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Pillow goes by what is in a file, and has others do some of it: an EPS that is called .jpg started Ghostscript.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "PPM", "TIFF")
DEEPEST = 50  # folders below one another
CLUTTER = ("__MACOSX", "lost+found", "System Volume Information", "Thumbs.db", "desktop.ini")
IMAGE_MODES = {1: "L", 3: "RGB"}  # Pillow's mode for each number of channels that an image can have
COPIES = 16  # bytes of a pixel: four copies, as it is decoded, composited, turned and converted
COEFFICIENTS = 6  # bytes of a pixel of a progressive JPEG, all of which are held while it is decoded
LARGE = 1 << 23  # pixels, of which one image is decoded at a time
LARGEST = 90_000_000  # pixels that are decoded; small files can claim any number
DEPTHS = (10, 12, 14, 16)  # bits of a sensor, whose numbers lie in 16
SECTOR = 512  # zeros, of which a card has so many at least where it lost something; coders write a few, if any
LOST = 128  # the grey that a JPEG has where nothing is known
FLAT = 16  # of 255, between the darkest and the brightest of a photo that shows nothing
TRANSPARENT, DEEP, DIM, TORN, EMPTY = ODD = (
    "white is put behind what is transparent",
    "of the 16 bits a channel not all are used; those that are become the whole range",
    "of the 16 bits a channel few are used, so it is dark; save it with 8",
    "a part seems to be lost, as by a bad card: zeros in the file, or grey in the picture",
    "it shows nothing, as where the camera is dark or covered",
)
# Tags of EXIF; the time of the photo is in a directory of its own.
ORIENTATION, CHANGED, DETAILS, TAKEN = 0x0112, 0x0132, 0x8769, 0x9003
WHOLE = {1: "B", 3: "H", 4: "I"}  # EXIF's types of whole numbers; an orientation is to be the second
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False)
class Photo:
    """An image: ``pixels`` of shape (1 or 3, height, width), uint8.

    ``taken`` is when, in seconds by the camera's own clock, NaN where EXIF does not say it; ``changed`` is the file's
    time. ``odd`` are those of `ODD` that its owner should know, ``size`` is the file's (width, height), and ``mode``
    Pillow's word for its colours.
    """

    pixels: NDArray[np.uint8]
    size: tuple[int, int]
    mode: str
    taken: float
    changed: float
    odd: tuple[str, ...]


def is_clutter(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or what file servers and systems leave behind (``@eaDir``)."""
    return name.startswith((".", "@", "#", "$")) or name in CLUTTER


def files_below(folder: Path, seen: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """All that is below a folder and is none itself, and folders that cannot be looked into; of a file, itself.

    Links are followed, but not in a circle.
    """
    try:
        about = folder.stat()
        below = os.listdir(folder)
    except OSError:
        yield folder
        return
    if (here := (about.st_dev, about.st_ino)) in seen:
        return
    if len(seen) == DEEPEST:
        yield folder
        return
    for name in below:
        if os.path.isdir(folder / name):
            yield from files_below(folder / name, seen | {here})
        else:
            yield folder / name


def sorted_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images in a folder and the folders below it, in order, and the other files; without clutter."""
    images: list[Path] = []
    others: list[Path] = []
    for file in sorted(files_below(folder)):
        if any(map(is_clutter, file.relative_to(folder).parts)):
            continue
        (images if is_image(file) or os.path.isdir(file) else others).append(file)
    return images, others


def is_image(file: Path) -> bool:
    """Whether its name says that it is an image that can be read here."""
    suffix = file.suffix.lower()
    return suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and find_spec(HEIF) is not None)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and the folders below it, in order, without clutter."""
    return sorted_files(folder)[0]


def read_image(file: Path, input_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The pixels of `read_photo`."""
    return read_photo(file, input_shape).pixels


def read_photo(file: Path, input_shape: tuple[int, ...]) -> Photo:
    """An image as bytes of shape ``input_shape``, (1 or 3, height, width); of one that moves, the first frame.

    It is turned as its EXIF data say, white is put behind what is transparent, 16 bits a channel become 8, and it is
    converted to the channels and scaled. Raises `BouquetError` that names the file, and nothing else.
    """
    what = "folder" if os.path.isdir(file) else "image"
    with named(f"The {what} {file}", advice="; mend or remove it"):
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would never end
            raise OSError(0, "it cannot be looked into" if what == "folder" else "it is no file")
        return _decoded(file, input_shape, about.st_mtime)


def _decoded(file: Path, input_shape: tuple[int, ...], changed: float) -> Photo:
    from PIL import Image, UnidentifiedImageError

    if file.suffix.lower() in HEIF_SUFFIXES:
        if find_spec(HEIF) is None:
            raise OSError(0, "this takes pillow-heif: pip install pillow-heif")
        import_module(HEIF).register_heif_opener()
    channels, height, width = input_shape
    mode, longer = IMAGE_MODES[channels], max(height, width)
    try:
        opened = Image.open(file, formats=FORMATS + ("HEIF",) * (file.suffix.lower() in HEIF_SUFFIXES))
    except UnidentifiedImageError:
        raise OSError(0, "it is no image of a kind that is read") from None
    with opened as image:
        size, mode_there, whole = image.size, image.mode, image.width * image.height
        image.draft(mode, (longer, longer))  # lets a large JPEG be decoded at a fraction of its size
        pixels = image.width * image.height
        _check_room(pixels, whole if image.info.get("progressive") else 0)
        with _one_at_a_time if pixels > LARGE else contextlib.nullcontext():
            deep = image.format != "BMP" and any(";16" in str(tile[3]) for tile in image.tile)
            image.load()
            levels, used = _of_bytes(image)
            shown, see_through = _opaque(levels)
            is_dim = deep and used == 16 and max(np.ravel(shown.convert("RGB").getextrema())) < 64
            is_torn = image.format in ("JPEG", "MPO") and (_has_hole(file.read_bytes()) or _has_lost(image))
            exif = image.info.get("exif")
            turned = _turn(_orientation(exif) if isinstance(exif, bytes) else _said(image, ORIENTATION))
            upright = (shown if turned is None else shown.transpose(turned)).convert(mode)
            resized = upright.resize((width, height), Image.Resampling.BILINEAR)
        taken = _seconds(_said(image, TAKEN, DETAILS) or _said(image, CHANGED))
    bands = np.asarray(resized, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
    is_flat = int(np.ptp(bands)) < FLAT  # of which a coder writes a bit a block, which may be zeros, too
    found = (see_through, used < 16, is_dim, is_torn and not is_flat, is_flat)
    return Photo(bands, size, mode_there, taken, changed, tuple(compress(ODD, found)))


def _check_room(pixels: int, progressive: int) -> None:
    """Raise ValueError where an image of so many pixels, once decoded, takes more memory than there is."""
    if pixels > LARGEST:
        raise ValueError(f"it has {pixels} pixels, and {LARGEST} are allowed")
    needed = pixels * COPIES + progressive * COEFFICIENTS
    free = available_bytes() if needed > LARGE * COPIES else None
    if free is not None and needed > free:
        raise ValueError(f"its pixels take {needed // 10**6} MB, and {free // 10**6} MB are free")


def _of_bytes(image: Image) -> tuple[Image, int]:
    """The image with 8 bits a channel, and how many of 16 it uses: a camera of 12 leaves the highest four empty.

    Raises ValueError where it is not known what its numbers stand for.
    """
    from PIL import Image as pillow

    if not image.mode.startswith(("I", "F")):
        return image, 16
    values: NDArray[Any] = np.asarray(image)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() >= 1 << 16:
        raise ValueError(f"it has 32 bits a channel, mode {image.mode}; convert it to 8 or 16")
    used = next(bits for bits in DEPTHS if values.max() < 1 << bits)
    return pillow.fromarray((values >> (used - 8)).astype(np.uint8)), used


def _has_hole(jpeg: bytes) -> bool:
    """Whether there are a sector's zeros among what the pixels are decoded from."""
    start = 2
    while jpeg[start : start + 1] == b"\xff" and jpeg[start + 1 : start + 2] != b"\xda":  # headers, to the first scan
        start += 2 + int.from_bytes(jpeg[start + 2 : start + 4], "big")
    return jpeg.find(bytes(SECTOR), start, jpeg.find(b"\xff\xd9", start)) >= 0


def _has_lost(image: Image) -> bool:
    """Whether half of a row has the grey of what is missing, and not all rows."""
    grey = np.asarray(image) == LOST
    rows = (grey if grey.ndim == 2 else grey.all(axis=2)).mean(axis=1) >= 0.5
    return bool(rows.any() and not rows.all())


def _opaque(image: Image) -> tuple[Image, bool]:
    """The image with white behind it, and whether anything of it is transparent."""
    from PIL import Image as pillow

    if not image.has_transparency_data:
        return image, False
    layer = image.convert("RGBA")
    if layer.getchannel("A").getextrema()[0] == 255:
        return image, False
    return pillow.alpha_composite(pillow.new("RGBA", layer.size, "white"), layer), True


def _orientation(exif: bytes) -> int | None:
    """The orientation in EXIF data, whatever the other entries are: Pillow ends at one that leads nowhere."""
    raw = exif.removeprefix(b"Exif\0\0")
    order = ">" if raw.startswith(b"MM") else "<"
    with contextlib.suppress(struct.error):
        (start,) = struct.unpack_from(f"{order}I", raw, 4)
        (count,) = struct.unpack_from(f"{order}H", raw, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", raw, place)
            if tag == ORIENTATION and kind in WHOLE:
                return int(struct.unpack_from(order + WHOLE[kind], raw, place + 8)[0])
    return None


def _said(image: Image, tag: int, directory: int | None = None) -> Any:
    """One entry of the EXIF data, None where it cannot be read."""
    with contextlib.suppress(Exception):
        exif = image.getexif()
        return (exif if directory is None else exif.get_ifd(directory)).get(tag)
    return None


def _turn(orientation: Any) -> Any:
    """Pillow's name for what puts a photo upright; None where it is, or where the entry is none of EXIF's eight."""
    from PIL.Image import Transpose

    turns = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM}
    turns |= {5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}
    return turns.get(orientation) if isinstance(orientation, int) else None


def _seconds(text: Any) -> float:
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return math.nan
