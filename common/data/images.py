"""Reading images with Pillow: torchvision, whose import takes seconds on a small device, is not needed for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.left_out import named
from bouquet.common.errors import BouquetError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
CLUTTER = ("__MACOSX", "lost+found", "System Volume Information", "Thumbs.db", "desktop.ini")
IMAGE_MODES = {1: "L", 3: "RGB"}  # Pillow's mode for each number of channels that an image can have


def is_clutter(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or what file servers and systems leave behind (``@eaDir``)."""
    return name.startswith((".", "@", "#", "$")) or name in CLUTTER


def sorted_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images in a folder and the folders below it, in order, and the other files; without clutter."""
    found = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not any(is_clutter(part) for part in file.relative_to(folder).parts)
    ]
    images = [file for file in found if file.suffix.lower() in IMAGE_SUFFIXES]
    return images, [file for file in found if file.suffix.lower() not in IMAGE_SUFFIXES]


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and the folders below it, in order, without clutter."""
    return sorted_files(folder)[0]


def read_image(file: Path, input_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """An image as bytes of shape ``input_shape``, (1 or 3, height, width).

    It is turned as its EXIF data say, converted to the channels and scaled. Raises `BouquetError` that names the file.
    """
    from PIL import Image, ImageOps

    channels, height, width = input_shape
    mode, longer = IMAGE_MODES[channels], max(height, width)
    with named(f"The image {file}", advice="; mend or remove it"), Image.open(file) as image:
        image.draft(mode, (longer, longer))  # lets a large JPEG be decoded at a fraction of its size
        if image.mode.startswith(("I", "F")):
            raise BouquetError(f"The image {file} has mode {image.mode}; convert it to 8 bits a channel.")
        upright = ImageOps.exif_transpose(image).convert(mode)
        pixels = np.asarray(upright.resize((width, height), Image.Resampling.BILINEAR), dtype=np.uint8)
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)
