"""What crosses the wire, and is in the record, of the model that a device answers with."""

import math

import pytest

from bouquet.common import model_selection
from bouquet.common.model_selection import reported


@pytest.mark.parametrize(
    ("found", "read"),
    [(3, 3.0), (-2, -2.0), (0, 0.0), (True, None), (0.5, None), ("3", None), ([3], None), (None, None)],
)
def test_a_count_is_a_whole_number(found, read):
    assert reported({"serving": found}) == read
    assert reported({}) is None


@pytest.mark.parametrize("kinds", [["alone", "received", "trained", "personal"], ["received", "trained"], ["alone"]])
def test_what_a_mixture_holds_comes_back(kinds):
    left_out = "alone" not in kinds
    bits = float(model_selection.mixed_bits(kinds, left_out))
    found = model_selection.served({"chosen": 4.0, "mixed": bits})
    assert found == {"kept": "mixture", "mixed": kinds} | ({"alone_left_out": 1} if left_out else {})
    assert model_selection.served_text(found) == " + ".join(kinds) + (", without alone" if left_out else "")


@pytest.mark.parametrize("bits", [0.0, -1.0, 32.0, math.nan, math.inf])
def test_of_a_mixture_that_cannot_be_nothing_is_said(bits):
    assert model_selection.served({"chosen": 4.0, "mixed": bits}) == {"kept": "mixture"}


@pytest.mark.parametrize("place", [-1.0, 5.0, math.nan, math.inf])
def test_what_nobody_can_serve_is_not_recorded(place):
    assert model_selection.served({"chosen": place, "mixed": 1.0}) == {}


def test_what_serves_the_methods_own_model_says_nothing():
    assert model_selection.served({}) == {}
    assert model_selection.served_text({}) == ""
    assert model_selection.served_text(model_selection.served({"chosen": 1.0})) == "received"
