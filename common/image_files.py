"""Reading images with Pillow: torchvision, whose import takes seconds on a small device, is not needed for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import BouquetError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
IMAGE_MODES = {1: "L", 3: "RGB"}  # Pillow's mode for each number of channels that an image can have


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and the folders below it, in order, without hidden files."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    ]


def read_image(file: Path, input_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """An image as bytes of shape ``input_shape``, (1 or 3, height, width).

    It is turned as its EXIF data say, converted to the channels and scaled. Raises `BouquetError` that names the file.
    """
    from PIL import Image, ImageOps

    channels, height, width = input_shape
    mode, longer = IMAGE_MODES[channels], max(height, width)
    try:
        with Image.open(file) as image:
            image.draft(mode, (longer, longer))  # lets a large JPEG be decoded at a fraction of its size
            if image.mode.startswith(("I", "F")):
                raise BouquetError(f"The image {file} has mode {image.mode}; convert it to 8 bits a channel.")
            upright = ImageOps.exif_transpose(image).convert(mode)
            pixels = np.asarray(upright.resize((width, height), Image.Resampling.BILINEAR), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BouquetError(f"The image {file} cannot be read ({error}); mend or remove it.") from error
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)
