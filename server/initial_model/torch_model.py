"""What a run starts from: the model by its seed, with weights from a file and frozen layers where they are asked for.

Where it is more than the seed gives, it is kept in the run folder, so that a run goes on without the file, and so that
one whose file has changed meanwhile does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from bouquet.common.errors import BouquetError
from bouquet.common.model.build import initial_model, parameter_names, state_arrays, state_vector
from bouquet.common.model.freezing import frozen_names, layers_of, trained_state
from bouquet.common.parameters.layout import ParameterLayout, Vector, contiguous
from bouquet.common.settings import Settings
from bouquet.common.system.files import write_atomically, write_json
from bouquet.server.initial_model.pretrained import WeightsFile, read_weights, take_weights
from bouquet.server.record.writer import RunRecord
from bouquet.server.run_folder import START, START_ARRAYS
from bouquet.strategies.base.filters.delivery import Delivery

# Of the root mean square of each tensor: how far the models of several clusters begin apart that all are to begin with
# the same weights. Chosen by measurement: with a tenth clusters stayed mixed, with the whole of it
# nobody chose but the first.
# See docs/decisions.md.
PERTURBATION = 0.3


@dataclass(frozen=True)
class Start:
    """The starting model; ``about`` is what the record says of it, empty where the seed alone made it."""

    settings: Settings
    model: nn.Module
    weights: WeightsFile | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> ArrayRecord:
        """What travels of the model, as Flower's ArrayRecord."""
        return ArrayRecord(torch_state_dict=trained_state(self.model))

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's parameters."""
        return parameter_names(self.model)

    @property
    def layout(self) -> ParameterLayout:
        """The layout of what travels."""
        return state_vector(self.model)[0]

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole model by tensor name."""
        return state_arrays(self.model.state_dict())

    @property
    def frozen(self) -> dict[str, NDArray[Any]]:
        """The frozen tensors by name."""
        names = frozen_names(self.model)
        return {name: array for name, array in self.arrays.items() if name in names}

    def delivery(self) -> Delivery | None:
        """What devices are sent once; None where they can build all of it."""
        if not self.about:
            return None
        frozen = self.frozen
        # Also what the seed made of a head that was replaced: a device that is sent all of it has one source.
        given = {} if self.weights is None else {n: a for n, a in self.arrays.items() if n not in frozen}
        return Delivery(_digest(self.arrays), frozen, given)

    def draw(self, seed: int) -> Vector:
        """Another starting model, from another seed (d,): with the same weights, and what they leave open drawn anew.

        Where they leave nothing open, every parameter is perturbed by `PERTURBATION`: clusters that choose by loss or
        gradient cannot come apart from models that are equal.
        """
        model = initial_model(self.settings, seed, tried=False)
        if self.weights is not None:
            take_weights(model, self.weights)
        layout, drawn = state_vector(model)
        first = state_vector(self.model)[1]
        if not np.array_equal(layout.parameters_of(drawn), layout.parameters_of(first)):
            return drawn
        rng = np.random.default_rng(seed)
        for spec in (spec for spec in layout.tensors if spec.kind == "parameter"):
            values = drawn[spec.columns]
            scale = np.float32(PERTURBATION * np.sqrt(np.mean(np.square(values, dtype=np.float64))))
            drawn[spec.columns] = values + scale * rng.standard_normal(spec.width, dtype=np.float32)
        return drawn

    def save(self, folder: Path) -> None:
        """Leave it in the run folder, where it is more than the seed gives."""
        if not self.about:
            return
        content = {name: contiguous(array) for name, array in self.arrays.items()}
        write_atomically(folder / START_ARRAYS, save(content))
        write_json(folder / START, dict(self.about))


def starting_point(settings: Settings, resumed: Path | None = None) -> Start:
    """What the settings start from; of a run that goes on in the folder ``resumed``, what it started from.

    Raises `BouquetError` for weights that cannot be read or do not fit, and where a run that goes on was begun with
    others.
    """
    model = initial_model(settings)
    path = settings.model.weights
    if resumed is not None and (resumed / START).exists():
        return _kept(settings, model, resumed)
    if resumed is not None and path and not RunRecord(resumed).settings().get("model", {}).get("weights", path):
        raise BouquetError(_other_weights(resumed, "no file", Path(path)))
    weights = read_weights(Path(path)) if path else None
    taken = [] if weights is None else take_weights(model, weights)
    if weights is None and not settings.model.frozen:
        return Start(settings, model)
    frozen = frozen_names(model)
    about: dict[str, Any] = {"frozen": sorted({layer for layer in layers_of(model) if _is_of(layer, frozen)})}
    if weights is not None:
        fresh = [name for name in model.state_dict() if name not in taken]
        about |= {"weights": weights.name, "sha256": weights.sha256, "taken": len(taken), "fresh": fresh}
    return Start(settings, model, weights, about)


def _kept(settings: Settings, model: nn.Module, folder: Path) -> Start:
    try:
        about = json.loads((folder / START).read_text(encoding="utf-8"))
        arrays = load((folder / START_ARRAYS).read_bytes())
    except (OSError, ValueError, SafetensorError) as error:
        raise BouquetError(f"What the run started from, {folder / START_ARRAYS}, cannot be read ({error}).") from None
    path = Path(settings.model.weights)
    if settings.model.weights and path.is_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != about.get("sha256"):
            began = f"{about['weights']} of SHA-256 {about['sha256']}" if "sha256" in about else "no file"
            raise BouquetError(_other_weights(folder, began, path, f" of SHA-256 {digest}"))
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    model.load_state_dict(tensors)
    weights = None
    if "sha256" in about:
        taken = {name: tensor for name, tensor in tensors.items() if name not in about["fresh"]}
        weights = WeightsFile(about["weights"], about["sha256"], taken)
    return Start(settings, model, weights, about)


def _other_weights(folder: Path, began: str, path: Path, now: str = "") -> str:
    return (
        f"The run in {folder} cannot go on with other weights: it began with {began}, and model.weights = "
        f"{str(path)!r} now{now}. Set it back, or begin a new run (another --out)."
    )


def _is_of(layer: str, tensors: frozenset[str]) -> bool:
    return any((name.rpartition(".")[0] or name) == layer for name in tensors)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of names, shapes, dtypes and values."""
    whole = hashlib.sha256()
    for name, array in arrays.items():
        whole.update(f"{name} {array.dtype} {array.shape} ".encode())
        whole.update(contiguous(array).tobytes())
    return whole.hexdigest()[:32]
