"""Frozen layers: a part of the model that is not trained, and of which methods know nothing.

What is frozen keeps its parameters, its running statistics and its mode of evaluation: batch normalisation neither
normalises by the mini-batch nor learns from it, dropout and stochastic depth are off. The layout of a model
(`bouquet.common.model.build.state_vector`) is that of the other layers alone, so that distances, clusters and bytes are
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from bouquet.common.errors import BouquetError

ALL_BUT_HEAD = "all-but-head"
# Attributes of a model: its frozen tensors, and the modules of which all tensors are frozen.
_NAMES, _MODULES = "_bouquet_frozen", "_bouquet_frozen_modules"
_SHOWN = 12


def freeze(model: nn.Module, chosen: Sequence[str]) -> nn.Module:
    """Freeze the layers that ``chosen`` names: layers, or how their names begin, up to a dot; or `ALL_BUT_HEAD`.

    Returns the model. Raises `BouquetError` for a name that fits no layer, where nothing is left to train, and where a
    frozen layer shares a parameter with one that is not.
    """
    if not chosen:
        return model
    layers = layers_of(model)
    frozen = set()
    for name in chosen:
        if name == ALL_BUT_HEAD:
            fits = [layer for layer in layers if layer != head_layer(model)]
        else:
            fits = [layer for layer in layers if f"{layer}.".startswith(f"{name}.")]
        if not fits:
            raise BouquetError(
                f"Setting model.frozen: the model has no layer {name!r}; its layers are {_listed(layers)}, and "
                f"{ALL_BUT_HEAD!r} stands for all but the last one."
            )
        frozen.update(fits)
    if not any(_owner(name) not in frozen for name, _ in model.named_parameters()):
        raise BouquetError(f"Setting model.frozen = {list(chosen)}: no parameter is left to train.")
    names = frozenset(name for name in model.state_dict() if _owner(name) in frozen)
    kept = {id(p) for name, p in model.named_parameters(remove_duplicate=False) if name not in names}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in names and id(parameter) in kept:
            raise BouquetError(
                f"Setting model.frozen = {list(chosen)}: {name!r} is a parameter of another layer, too, which is not "
                "frozen."
            )
        if name in names:
            parameter.requires_grad_(False)
    setattr(model, _NAMES, names)
    setattr(model, _MODULES, _wholly_frozen(model, names))
    return model


def frozen_names(model: nn.Module) -> frozenset[str]:
    """Names of the frozen tensors, as in the ``state_dict``."""
    names: frozenset[str] = getattr(model, _NAMES, frozenset())
    return names


def training_mode(model: nn.Module) -> nn.Module:
    """`torch.nn.Module.train`, but for what is frozen; returns the model."""
    model.train()
    for name in getattr(model, _MODULES, ()):
        model.get_submodule(name).eval()
    return model


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` without what is frozen."""
    frozen = frozen_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def load_trained(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """`torch.nn.Module.load_state_dict` of all that is not frozen."""
    expected = set(model.state_dict()) - frozen_names(model)
    if expected != set(tensors):
        raise RuntimeError(f"missing: {sorted(expected - set(tensors))}; unexpected: {sorted(set(tensors) - expected)}")
    model.load_state_dict(tensors, strict=False)


def layers_of(model: nn.Module) -> tuple[str, ...]:
    """Names of all layers, frozen or not, from input to output, as `ParameterLayout` has them."""
    return tuple(dict.fromkeys(_owner(name) for name in model.state_dict()))


def head_layer(model: nn.Module) -> str:
    """The last layer with parameters: the one that gives the classes."""
    return _owner([name for name, _ in model.named_parameters(remove_duplicate=False)][-1])


def _wholly_frozen(model: nn.Module, names: frozenset[str]) -> tuple[str, ...]:
    """Modules that own tensors, in themselves or below, all of which are frozen; none that lies inside another."""
    free = {ancestor for name in model.state_dict() if name not in names for ancestor in _ancestors(name)}
    frozen = {ancestor for name in names for ancestor in _ancestors(name)} - free
    return tuple(sorted(m for m in frozen if m and m.rpartition(".")[0] not in frozen))


def _ancestors(name: str) -> Iterator[str]:
    """The modules that a tensor lies in, from its own to the model, whose name is empty."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _owner(name: str) -> str:
    """The layer that a tensor belongs to."""
    return name.rpartition(".")[0] or name


def _listed(layers: Sequence[str]) -> str:
    """The layers where they are few, else how their names begin."""
    return ", ".join(layers if len(layers) <= _SHOWN else dict.fromkeys(_beginnings(layers)))


def _beginnings(layers: Sequence[str]) -> Iterator[str]:
    for layer in layers:
        parts = layer.split(".")
        yield ".".join(parts[:2]) if len(parts) > 1 else layer
