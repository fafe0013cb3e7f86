"""The options of a strategy: keywords of its constructor, whose types say what values each may have.

Pydantic checks them: one of the types below, a `typing.Annotated` with a `pydantic.Field` of one's own, a
`typing.Literal`. None is an option that is not set, where its type allows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from bouquet.common.errors import BouquetError

Count = Annotated[int, Field(ge=1)]
WholeNumber = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0)]
Above0To1 = Annotated[float, Field(gt=0, le=1)]
Weighting = Literal["uniform", "examples"]  # of clients in a mean: all alike, or by their numbers of samples


def form_of(options: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """What options are checked with, from name → (type, default)."""
    taken: Any = dict(options)
    return create_model("Options", __config__=ConfigDict(arbitrary_types_allowed=True), **taken)


def fitting(form: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values as their types have them, and the defaults of others.

    Raises `BouquetError` for the first that does not fit, with what is allowed; ``prefix`` stands before its name.
    """
    try:
        checked = form(**values)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        # A number or "auto" has two reasons not to fit.
        said = [item["msg"].removeprefix("Value error, ").partition(", unable to ")[0] for item in error.errors()]
        own = [text for text, item in zip(said, error.errors(), strict=True) if item["loc"][0] == key]
        fits = dict.fromkeys(text[0].lower() + text[1:] for text in own)
        raise BouquetError(f"{prefix}{key} = {values.get(key)!r}: {'; or '.join(fits)}.") from None
    return {key: getattr(checked, key) for key in form.model_fields}


def check_fields(strategy: object) -> None:
    """Raise `BouquetError` for the first option of a dataclass that does not fit its type."""
    kind: Any = type(strategy)  # a class as mypy has it is not hashable
    form = _form_of_fields(kind)
    for name, value in fitting(form, {name: getattr(strategy, name) for name in form.model_fields}).items():
        setattr(strategy, name, value)


@cache
def _form_of_fields(kind: type) -> type[BaseModel]:
    declared = next(cls for cls in kind.__mro__ if "__dataclass_fields__" in vars(cls))
    hints = get_type_hints(declared, include_extras=True)
    return form_of({field.name: (hints[field.name], ...) for field in fields(declared) if field.init})
