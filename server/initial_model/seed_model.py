"""The starting model that the seed alone makes, by its arrays: without PyTorch in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout, Vector, contiguous
from bouquet.common.settings import Settings

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PlainStart:
    """A `Start` that the seed alone made, by its arrays; PyTorch comes when the model is asked for."""

    settings: Settings
    arrays: dict[str, NDArray[Any]]
    parameters: frozenset[str]
    about: Mapping[str, Any] = field(default_factory=dict)
    frozen: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def record(self) -> ArrayRecord:
        """The model as Flower's ArrayRecord."""
        return ArrayRecord({name: Array(contiguous(array)) for name, array in self.arrays.items()})

    @property
    def layout(self) -> ParameterLayout:
        """The layout of what travels, which is all of it."""
        return ParameterLayout.of(self.arrays, self.parameters)

    @cached_property
    def model(self) -> nn.Module:
        """The model itself."""
        from bouquet.common.model.build import initial_model

        return initial_model(self.settings)

    def draw(self, seed: int) -> Vector:
        """Another starting model, from another seed (d,)."""
        from bouquet.server.initial_model.torch_model import Start

        return Start(self.settings, self.model).draw(seed)

    def delivery(self) -> None:
        """Devices can build all of it."""

    def save(self, folder: Path) -> None:
        """The settings say it all."""
