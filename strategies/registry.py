"""Strategies by name, and the check of their hyper-parameters at the edge."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, ValidationError, create_model

from common.errors import BouquetError
from strategies.base import ClusteredStrategy, Sampling

# name → (module, class, options that the name stands for)
STRATEGIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fesem": ("strategies.fesem", "FeSEM", {}),
    "fesem-ma": ("strategies.fesem", "FeSEM", {"matching": True}),
    "gradient-loss": ("strategies.gradient_loss", "GradientLoss", {}),
    "ifca": ("strategies.gradient_loss", "GradientLoss", {"gradient_weight": 0.0}),
    "fedtsdp": ("strategies.fedtsdp", "FedTSDP", {}),
    "fedper": ("strategies.fedper", "FedPer", {}),
    "ditto": ("strategies.ditto", "Ditto", {}),
    "fedac": ("strategies.fedac", "FedAC", {}),
    "dc-pfl": ("strategies.dcpfl", "DCPFL", {}),
    "fedavg": ("strategies.flower", "FedAvg", {}),
    "fedprox": ("strategies.flower", "FedProx", {}),
    "standalone": ("strategies.standalone", "Standalone", {}),
}


def strategy_class(name: str) -> tuple[type[ClusteredStrategy[Any]], dict[str, Any]]:
    """The class behind a name, or the user's own ``package.module:Class``, with the options the name stands for."""
    if name in STRATEGIES:
        module, attribute, options = STRATEGIES[name]
    elif ":" in name:
        module, _, attribute = name.partition(":")
        options = {}
    else:
        raise BouquetError(
            f"Unknown strategy {name!r}; there are {', '.join(STRATEGIES)}, or your own as package.module:Class."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BouquetError(f"Strategy {name!r} cannot be imported: {error}.") from None
    if not (isinstance(found, type) and issubclass(found, ClusteredStrategy)):
        raise BouquetError(f"Strategy {name!r} is not a subclass of strategies.base.ClusteredStrategy.")
    return found, options


def hyper_parameters(kind: type[ClusteredStrategy[Any]]) -> dict[str, tuple[Any, Any]]:
    """Name → (type, default) of a strategy's own keyword parameters, without those of `Sampling`."""
    parameters: dict[str, tuple[Any, Any]] = {}
    hints = get_type_hints(kind.__init__)
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        parameters[name] = (hints.get(name, Any), default)
    return parameters


def create_strategy(name: str, options: Mapping[str, Any], **sampling: Any) -> ClusteredStrategy[Any]:
    """Build a strategy by name; raises `BouquetError` that names an unknown or ill-typed hyper-parameter."""
    kind, preset = strategy_class(name)
    parameters = hyper_parameters(kind)
    allowed = [key for key in parameters if key not in preset]
    for key in options:
        if key not in allowed:
            listed = ", ".join(allowed) or "none"
            raise BouquetError(f"Unknown setting strategy.{key}; the hyper-parameters of {name!r} are: {listed}.")
    model = create_model("Options", __config__=ConfigDict(arbitrary_types_allowed=True), **parameters)  # type: ignore[call-overload]
    try:
        checked = model(**{**preset, **options})
    except ValidationError as error:
        item = error.errors()[0]
        key = str(item["loc"][0])
        raise BouquetError(f"Setting strategy.{key} = {options.get(key)!r}: {item['msg']}.") from None
    known = Sampling.__annotations__
    return kind(
        **{key: getattr(checked, key) for key in parameters}, **{k: v for k, v in sampling.items() if k in known}
    )
