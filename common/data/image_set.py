"""A folder of images as a data set: ``train/CLASS/*.jpg`` and, where there is one, ``test/CLASS/*.jpg``."""

from __future__ import annotations

from pathlib import Path

from bouquet.common.data.catalog import DatasetInfo
from bouquet.common.data.class_folders import find_photos, read_photos
from bouquet.common.data.images import IMAGE_MODES
from bouquet.common.data.readers import Arrays, DatasetFileError

PARTS = {"train": ("x", "y"), "test": ("test_x", "test_y")}


def read_image_set(name: str, data_dir: Path, info: DatasetInfo) -> Arrays:
    """``x`` (N, *input_shape) uint8 and ``y`` (N,); ``test_x``, ``test_y`` where there is a folder ``test``.

    ``images`` is ``data_dir`` itself, ``images/NAME`` its folder NAME. Raises `BouquetError` that names an image which
    cannot be read, a folder that is no class, and a class without images.
    """
    if len(info.input_shape) != 3 or info.input_shape[0] not in IMAGE_MODES:
        raise DatasetFileError(
            f"images cannot have data.input_shape = {info.input_shape}, but (1 or 3, height, width)."
        )
    folder = data_dir / name.partition("/")[2]
    arrays: Arrays = {}
    for part, (x, y) in PARTS.items():
        place = folder / part
        if not place.is_dir():
            if part == "train":
                raise DatasetFileError(f"expected the folder {place}, which is not there.")
            continue
        listing = find_photos(place, info.classes)
        listing.check_known()
        there = {label for _, label in listing.photos}
        if lacking := [name for label, name in enumerate(info.classes) if label not in there]:
            raise DatasetFileError(f"{place} holds no images of {', '.join(lacking)}, which data.classes names.")
        photos = read_photos(listing, info.input_shape)
        arrays[x], arrays[y] = photos.x, photos.y
    return arrays
