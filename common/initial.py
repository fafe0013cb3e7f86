"""The model that the settings name, with the parameters the seed gives: the same at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from common.datasets import dataset_info
from common.layout import SUPPORTED, LayoutError, ParameterLayout, Vector, check_dtype
from common.sections import OWN_DATA
from common.settings import Settings

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

    Raises `BouquetError` when it does not fit the data, or has tensors that cannot be sent.
    """
    from common.models import build_model

    shape, classes = model_shape(settings)
    model = settings.model
    start = settings.run.seed if seed is None else seed
    built = build_model(model.name, shape, classes, start, hidden=model.hidden or None, norm=model.norm)
    _arrays(built)
    return built


def state_vector(model: nn.Module) -> tuple[ParameterLayout, Vector]:
    """A model's layout and its parameters and buffers as a flat vector (d,).

    Floats of 16 and 64 bits pass through float32. Raises `LayoutError`, naming the tensor, for what a vector of
    float32 cannot hold.
    """
    arrays = _arrays(model)
    layout = ParameterLayout.of(arrays, parameter_names(model))
    return layout, layout.flatten(arrays)


def parameter_names(model: nn.Module) -> frozenset[str]:
    """Names of the model's parameters, frozen and shared ones too, as in its ``state_dict``."""
    return frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))


def _arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    """The ``state_dict`` in NumPy. Raises `LayoutError`, naming the tensor, for one that NumPy cannot hold."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in model.state_dict().items():
        try:
            arrays[name] = tensor.detach().cpu().numpy()
        except (AttributeError, TypeError, RuntimeError, ValueError):
            what = str(getattr(tensor, "dtype", f"a {type(tensor).__name__}")).removeprefix("torch.")
            raise LayoutError(f"Tensor {name!r} of the model holds {what}, not {SUPPORTED}.") from None
        check_dtype(name, arrays[name].dtype)
    return arrays
