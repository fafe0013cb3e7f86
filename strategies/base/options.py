"""The check of options that all strategies share: an error names the option, its value and what is allowed.

Each function below makes a rule for each option that it is given; None is an option that is not set, and fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Literal, get_args

from common.errors import BouquetError

Weighting = Literal["uniform", "examples"]  # of clients in a mean: all alike, or by their numbers of samples
Rule = tuple[str, Any, str, bool]  # the option, its value, what is allowed, and whether the value is


def check_options(*rules: Rule) -> None:
    """Raise `BouquetError` for the first option whose value is not allowed."""
    for name, value, allowed, fits in rules:
        if not fits:
            raise BouquetError(f"{name} = {value!r}: {allowed}.")


def counts(**values: int | None) -> list[Rule]:
    """Whole numbers from 1."""
    return _rules(values, "a whole number from 1", is_count)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 1."""
    return isinstance(value, Integral) and int(value) >= 1


def one_of(kind: Any, **values: str) -> list[Rule]:
    """Texts of which the `typing.Literal` ``kind`` has all that are allowed."""
    allowed = get_args(kind)
    return [(name, value, f"one of {', '.join(allowed)}", value in allowed) for name, value in values.items()]


def weights(**values: float | None) -> list[Rule]:
    """Finite numbers from 0."""
    return _rules(values, "a number from 0", lambda value: 0 <= value < math.inf)


def shares(**values: float | None) -> list[Rule]:
    """Numbers from 0 to 1."""
    return _rules(values, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def above_0(**values: float | None) -> list[Rule]:
    """Numbers above 0."""
    return _rules(values, "a number above 0", lambda value: value > 0)


def above_0_to_1(**values: float | None) -> list[Rule]:
    """Numbers above 0 that are at most 1."""
    return _rules(values, "a number above 0, at most 1", lambda value: 0 < value <= 1)


def _rules(values: Mapping[str, float | None], allowed: str, fits: Callable[[float], bool]) -> list[Rule]:
    return [(name, value, allowed, value is None or fits(value)) for name, value in values.items()]
