"""The model that the settings name, with the parameters the seed gives: the same at both ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bouquet.common.data.catalog import dataset_info
from bouquet.common.parameters.layout import SUPPORTED, LayoutError, ParameterLayout, Vector, check_dtype
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA
from bouquet.common.task.task import task_of

if TYPE_CHECKING:
    from torch import Tensor, nn


def model_shape(settings: Settings) -> tuple[tuple[int, ...], int]:
    """Shape of one sample and number of outputs, classes or targets, without loading any data."""
    data, table = settings.data, settings.table
    if data.dataset == OWN_DATA:
        shape = data.input_shape
        if table.inputs:
            shape = (table.width, table.history) if task_of(settings).is_forecast else (table.width,)
        outputs = len(data.classes) or len(table.targets)
        return shape, outputs or math.prod(shape)  # an anomaly's windows are their own targets
    info = dataset_info(data.dataset, data.classes, data.input_shape)
    return info.input_shape, info.num_classes


def initial_model(settings: Settings, seed: int | None = None, tried: bool = True) -> nn.Module:
    """Build and initialise the model, from the run's seed by default, and freeze the layers that are to be frozen.

    ``tried`` is `bouquet.common.model.architectures.build_model`'s. Raises `BouquetError` when it does not fit the
    data, or has tensors that
    cannot be sent.
    """
    from bouquet.common.model.architectures import build_model
    from bouquet.common.model.freezing import freeze

    shape, classes = model_shape(settings)
    model = settings.model
    start = settings.run.seed if seed is None else seed
    least = 2 if task_of(settings).has_classes else 1
    hidden, norm = model.hidden or None, model.norm
    built = build_model(model.name, shape, classes, start, hidden=hidden, norm=norm, tried=tried, least=least)
    state_arrays(built.state_dict())
    return freeze(built, model.frozen)


def state_vector(model: nn.Module) -> tuple[ParameterLayout, Vector]:
    """The layout of a model's layers that are not frozen, and their parameters and buffers as a flat vector (d,).

    Floats of 16 and 64 bits pass through float32. Raises `LayoutError`, naming the tensor, for what a vector of
    float32 cannot hold.
    """
    from bouquet.common.model.freezing import trained_state

    arrays = state_arrays(trained_state(model))
    layout = ParameterLayout.of(arrays, parameter_names(model))
    return layout, layout.flatten(arrays)


def parameter_names(model: nn.Module) -> frozenset[str]:
    """Names of the model's parameters, frozen and shared ones too, as in its ``state_dict``."""
    return frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))


def state_arrays(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """A ``state_dict`` in NumPy. Raises `LayoutError`, naming the tensor, for one that NumPy cannot hold."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in state.items():
        try:
            arrays[name] = tensor.detach().cpu().numpy()
        except (AttributeError, TypeError, RuntimeError, ValueError):
            what = str(getattr(tensor, "dtype", f"a {type(tensor).__name__}")).removeprefix("torch.")
            raise LayoutError(f"Tensor {name!r} of the model holds {what}, not {SUPPORTED}.") from None
        check_dtype(name, arrays[name].dtype)
    return arrays
