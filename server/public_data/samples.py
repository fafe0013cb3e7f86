"""Public, unlabelled samples at the server: a folder of images, an .npz, or the data set's own test part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.datasets import Floats, hold_out, load_dataset, reserve
from bouquet.common.data.images import IMAGE_MODES, IMAGE_SUFFIXES, image_files, read_image
from bouquet.common.data.readers import read_arrays
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import model_shape
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA


@dataclass(frozen=True)
class PublicSamples:
    """So many samples; ``take`` maps indices (B,) to model inputs (B, *input_shape)."""

    size: int
    take: Callable[[NDArray[np.int64]], Floats]


def load_public_samples(settings: Settings) -> PublicSamples:
    """The samples that ``server.public_data`` names.

    An .npz holds ``x`` (n, *input_shape), uint8 or float; labels beside it are not read. A folder holds images, at any
    depth. Bytes are standardised as the clients' are, floats are taken as they are. Without a path, the test part of
    the data set is taken without its labels, or what ``data.public_fraction`` holds out of one that has none.
    Raises `BouquetError`, naming the key, what was found and what is allowed.
    """
    path = settings.server.public_data
    if not path:
        return _test_part(settings)
    shape, _ = model_shape(settings)
    raw = _read_npz(Path(path), shape) if Path(path).suffix == ".npz" else _read_images(Path(path), shape)
    card = ModelCard.of(settings)
    return PublicSamples(len(raw), lambda indices: card.inputs(raw[indices]))


def _test_part(settings: Settings) -> PublicSamples:
    data = settings.data
    if data.dataset == OWN_DATA:
        raise BouquetError(
            f"Strategy {settings.strategy.name!r} needs public, unlabelled samples, and the devices' own data have "
            "none: set server.public_data to an .npz with x or to a folder of images."
        )
    dataset = load_dataset(data.dataset, data.data_dir or None, data.standardise, data.classes, data.input_shape)
    if dataset.test_x is None and data.public_fraction == 0:
        raise BouquetError(
            f"Strategy {settings.strategy.name!r} needs public, unlabelled samples, and data set {data.dataset!r} has "
            "no official test part: set data.public_fraction, e.g. to 0.1, to hold samples out for the server, or "
            "server.public_data to an .npz with x or to a folder of images."
        )
    held = hold_out(reserve(dataset, data.reserved_fraction), data.public_fraction, settings.run.seed)
    assert held.test_x is not None
    return PublicSamples(len(held.test_x), held.test_inputs)


def _read_npz(file: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    arrays = read_arrays(file)
    if "x" not in arrays:
        raise BouquetError(f"server.public_data = {str(file)!r} lacks 'x'; it holds {', '.join(arrays) or 'nothing'}.")
    x = arrays["x"]
    if x.ndim == 3 and len(shape) == 3 and shape[0] == 1:
        x = x[:, None]  # grey images are commonly kept without their channel
    if x.shape[1:] != shape or not len(x):
        raise BouquetError(
            f"server.public_data = {str(file)!r}: 'x' has shape {arrays['x'].shape}, expected (samples, "
            f"{', '.join(map(str, shape))})."
        )
    if x.dtype != np.uint8 and not (np.issubdtype(x.dtype, np.floating) and np.isfinite(x).all()):
        raise BouquetError(
            f"server.public_data = {str(file)!r}: 'x' holds {x.dtype}; allowed are uint8 (images, 0 to 255) and "
            "floats that are finite."
        )
    return x


def _read_images(folder: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    if len(shape) != 3 or shape[0] not in IMAGE_MODES:
        raise BouquetError(
            f"server.public_data = {str(folder)!r} is no .npz, and images cannot have shape {shape}; give an .npz with "
            "x."
        )
    files = image_files(folder)
    if not files:
        raise BouquetError(
            f"server.public_data = {str(folder)!r} is neither an .npz nor a folder with images "
            f"({', '.join(IMAGE_SUFFIXES)})."
        )
    return np.stack([read_image(file, shape) for file in files])
