"""The check of options that all strategies share: an error names the option, its value and what is allowed.

An option is a field of a strategy that is a `dataclasses.dataclass`, and what it may be is in its type: `Count` and its
like, or a `typing.Literal`. A strategy with a constructor of its own calls `check_options`. None is an option that is
not set, and fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from bouquet.common.errors import BouquetError

Rule = tuple[str, Any, str, bool]  # the option, its value, what is allowed, and whether the value is


@dataclass(frozen=True)
class Allowed:
    """What values an option may have, in words and as a test: it stands in the option's `typing.Annotated` type."""

    words: str
    fits: Callable[[Any], bool]


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 1."""
    return isinstance(value, Integral) and int(value) >= 1


Count = Annotated[int, Allowed("a whole number from 1", is_count)]
WholeNumber = Annotated[int, Allowed("a whole number from 0", lambda value: value >= 0)]
Weight = Annotated[float, Allowed("a number from 0", lambda value: 0 <= value < math.inf)]
Share = Annotated[float, Allowed("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Above0 = Annotated[float, Allowed("a number above 0", lambda value: value > 0)]
Above0To1 = Annotated[float, Allowed("a number above 0, at most 1", lambda value: 0 < value <= 1)]
Weighting = Literal["uniform", "examples"]  # of clients in a mean: all alike, or by their numbers of samples


def check_options(*rules: Rule) -> None:
    """Raise `BouquetError` for the first option whose value is not allowed.

    Examples
    --------
    >>> share = 1.5
    >>> try:
    ...     bouquet.check_options(("share", share, "a number from 0 to 1", 0 <= share <= 1))
    ... except bouquet.BouquetError as error:
    ...     print(error)
    share = 1.5: a number from 0 to 1.
    """
    for name, value, allowed, fits in rules:
        if not fits:
            raise BouquetError(f"{name} = {value!r}: {allowed}.")


def check_fields(strategy: object) -> None:
    """`check_options` of the options that are fields, by their types."""
    kind: Any = type(strategy)  # a class as mypy has it is not hashable
    for name, hint in _field_types(kind).items():
        value = getattr(strategy, name)
        if get_origin(hint) is Literal:
            check_options((name, value, f"one of {', '.join(get_args(hint))}", value in get_args(hint)))
        for part in (hint, *get_args(hint)):  # of `Count | None`, too
            if get_origin(part) is Annotated:
                allowed = get_args(part)[1]
                check_options((name, value, allowed.words, value is None or allowed.fits(value)))


@cache
def _field_types(kind: type) -> dict[str, Any]:
    declared = next(cls for cls in kind.__mro__ if "__dataclass_fields__" in vars(cls))
    hints = get_type_hints(declared, include_extras=True)
    return {field.name: hints[field.name] for field in fields(declared) if field.init}
