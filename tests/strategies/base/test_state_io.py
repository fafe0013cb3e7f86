from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from bouquet.strategies.base.state_io import dump_state, load_state


@dataclass
class Then:
    centers: NDArray[np.float32]
    rounds: int


@dataclass
class Now(Then):
    samples: dict[str, int] = field(default_factory=dict)
    trial: int | None = None


@dataclass
class Outer:
    inner: Now
    name: str = ""


@dataclass
class Gathered:
    gathered: dict[str, NDArray[np.float32]]


@dataclass
class Later(Then):
    needed: int


def test_what_an_older_release_did_not_write_is_at_its_default():
    arrays, rest = dump_state(Then(np.ones((2, 3), dtype=np.float32), 4))
    state = load_state(Now, arrays, rest)
    assert (state.rounds, state.samples, state.trial) == (4, {}, None)
    np.testing.assert_array_equal(state.centers, np.ones((2, 3)))


def test_tensors_by_key_come_back_in_their_order_whatever_the_file_has():
    state = Gathered({name: np.full(2, i, dtype=np.float32) for i, name in enumerate("cab")})
    arrays, rest = dump_state(state)
    for order in itertools.permutations(arrays):
        loaded = load_state(Gathered, {name: arrays[name] for name in order}, rest)
        assert list(loaded.gathered) == ["c", "a", "b"]
        assert loaded.gathered["c"].tolist() == [0, 0]


def test_a_dataclass_in_a_dataclass_comes_back_with_its_arrays():
    outer = Outer(Now(np.arange(6, dtype=np.float32), 4, {"a": 3}), "one")
    arrays, rest = dump_state(outer)
    assert [*arrays] == ["inner/centers"]
    again = load_state(Outer, arrays, rest)
    assert (again.name, again.inner.samples, again.inner.rounds) == ("one", {"a": 3}, 4)
    assert again.inner.centers.tolist() == [0, 1, 2, 3, 4, 5]


def test_what_has_no_default_must_be_there():
    arrays, rest = dump_state(Then(np.ones((2, 3), dtype=np.float32), 4))
    with pytest.raises(KeyError, match="needed"):
        load_state(Later, arrays, rest)
