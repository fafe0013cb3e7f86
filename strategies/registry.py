"""Strategies by name, and the check of their hyper-parameters at the edge. The names are in `common.methods`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel

from bouquet.common.errors import BouquetError
from bouquet.common.methods import find_method
from bouquet.common.nearest import nearest
from bouquet.common.plugins import load_object
from bouquet.strategies.base.options import fitting, form_of
from bouquet.strategies.base.sampling import Sampling
from bouquet.strategies.base.strategy import MethodStrategy


def strategy_class(name: str) -> type[MethodStrategy[Any]]:
    """The class behind a name (`bouquet.common.methods.find_method`)."""
    kind = load_object(find_method(name).strategy, "Strategy")
    if not (isinstance(kind, type) and issubclass(kind, MethodStrategy)):
        raise BouquetError(f"Strategy {name!r} is not a subclass of bouquet.MethodStrategy.")
    return kind


def hyper_parameters(kind: type[MethodStrategy[Any]]) -> dict[str, tuple[Any, Any]]:
    """Name → (type, default) of a strategy's own keyword parameters, without those of `Sampling`."""
    parameters: dict[str, tuple[Any, Any]] = {}
    hints = _hints(kind)
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name in ("self", *Sampling.__annotations__) or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        parameters[name] = (hints.get(name, Any), default)
    return parameters


@cache
def _hints(kind: type[MethodStrategy[Any]]) -> dict[str, Any]:
    definer = next(cls for cls in kind.__mro__ if "__init__" in vars(cls))
    # The annotations of an `__init__` that `dataclass` wrote are names in the modules of its fields' classes.
    return get_type_hints(definer if "__dataclass_fields__" in vars(definer) else kind.__init__, include_extras=True)


@cache
def _form(kind: type[MethodStrategy[Any]]) -> type[BaseModel]:
    """What a strategy's options are checked with; a grid makes each of its strategies some hundred times."""
    return form_of(hyper_parameters(kind))


def create_strategy(name: str, options: Mapping[str, Any], **sampling: Any) -> MethodStrategy[Any]:
    """Build a strategy by name; raises `BouquetError` that names an unknown or ill-typed hyper-parameter."""
    kind = strategy_class(name)
    form = _form(kind)
    for key in options:
        if key not in form.model_fields:
            known = nearest(key, form.model_fields, f"the hyper-parameters of {name!r} are:")
            raise BouquetError(f"Unknown setting strategy.{key}; {known}.")
    own = fitting(form, options, "Setting strategy.")
    return kind(**own, **{key: value for key, value in sampling.items() if key in Sampling.__annotations__})
