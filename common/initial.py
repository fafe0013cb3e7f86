"""The model that the settings name, with the parameters the seed gives: the same at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.datasets import dataset_info
from common.layout import ParameterLayout, Vector
from common.settings import OWN_DATA, Settings

if TYPE_CHECKING:
    from torch import nn


def model_shape(settings: Settings) -> tuple[tuple[int, ...], int]:
    """Shape of one sample and number of classes, without loading any data."""
    if settings.data.dataset == OWN_DATA:
        return settings.data.input_shape, len(settings.data.classes)
    info = dataset_info(settings.data.dataset)
    return info.input_shape, info.num_classes


def initial_model(settings: Settings, seed: int | None = None) -> nn.Module:
    """Build and initialise the model, from the run's seed by default.

    Raises `BouquetError` when it does not fit the data.
    """
    from common.models import build_model

    shape, classes = model_shape(settings)
    model = settings.model
    start = settings.run.seed if seed is None else seed
    return build_model(model.name, shape, classes, start, hidden=model.hidden or None, norm=model.norm)


def state_vector(model: nn.Module) -> tuple[ParameterLayout, Vector]:
    """A model's layout and its parameters and buffers as a flat vector (d,)."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    layout = ParameterLayout.of(arrays)
    return layout, layout.flatten(arrays)
