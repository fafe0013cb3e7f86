"""``bouquet predict``: what a kept model says of images or samples, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.models.kept import KeptModel
from client.data.folder import check_samples
from common.data.images import IMAGE_MODES, IMAGE_SUFFIXES, image_files, read_image
from common.data.readers import read_arrays
from common.errors import BouquetError

BATCH = 64  # samples that are read and held in memory at once


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of a sample, the likeliest first; or why there are none."""

    name: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""

    def text(self) -> str:
        """A line for a person."""
        found = ", ".join(f"{name} {probability:.3f}" for name, probability in self.classes)
        return f"{self.name}: {self.error or found}"

    def to_json(self) -> str:
        """A line for a program."""
        if self.error:
            return json.dumps({"file": self.name, "error": self.error})
        found = [{"class": name, "probability": round(probability, 6)} for name, probability in self.classes]
        return json.dumps({"file": self.name, "predictions": found})


@dataclass(frozen=True)
class _Sample:
    name: str
    raw: NDArray[Any] | None = None  # (*input_shape)
    error: str = ""


def predict(kept: KeptModel, paths: Sequence[Path], top: int) -> Iterator[Prediction]:
    """The ``top`` classes of every sample of the files and folders, in order.

    A folder stands for its ``data.npz``, or else for all images in it, as it does in training. What cannot be read is
    a prediction with an error; the others go on.
    """
    batch: list[_Sample] = []
    for sample in _samples(kept, paths):
        batch.append(sample)
        if len(batch) == BATCH:
            yield from _predict_batch(kept, batch, top)
            batch = []
    yield from _predict_batch(kept, batch, top)


def _predict_batch(kept: KeptModel, batch: Sequence[_Sample], top: int) -> Iterator[Prediction]:
    # Each is prepared for itself: a batch may hold bytes and floats.
    inputs = [kept.card.inputs(sample.raw[None]) for sample in batch if sample.raw is not None]
    rows = iter(kept.probabilities(np.concatenate(inputs)) if inputs else ())
    for sample in batch:
        if sample.raw is None:
            yield Prediction(sample.name, error=sample.error)
            continue
        row = next(rows)
        order = np.argsort(-row, kind="stable")[:top]
        yield Prediction(sample.name, tuple((kept.card.classes[k], float(row[k])) for k in order))


def _samples(kept: KeptModel, paths: Iterable[Path]) -> Iterator[_Sample]:
    for path in paths:
        try:
            yield from _samples_of(path, kept.card.input_shape)
        except BouquetError as error:
            yield _Sample(str(path), error=str(error))


def _samples_of(path: Path, shape: tuple[int, ...]) -> Iterator[_Sample]:
    if path.is_dir() and (path / "data.npz").is_file():
        path = path / "data.npz"
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        if "x" not in arrays:
            raise BouquetError(f"{path} lacks 'x'; it holds {', '.join(arrays) or 'nothing'}.")
        for index, raw in enumerate(check_samples(arrays, "x", shape, path)):
            yield _Sample(f"{path}[{index}]", raw)
        return
    if not path.exists():
        raise BouquetError(f"There is no file or folder {path}.")
    if len(shape) != 3 or shape[0] not in IMAGE_MODES:
        raise BouquetError(f"{path}: this model takes samples of shape {shape}, not images; give an .npz with x.")
    files = image_files(path) if path.is_dir() else [path]
    if not files:
        raise BouquetError(f"The folder {path} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no data.npz.")
    for file in files:
        try:
            yield _Sample(str(file), read_image(file, shape))
        except BouquetError as error:
            yield _Sample(str(file), error=str(error))
