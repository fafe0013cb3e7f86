from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from strategies.state import dump_state, load_state


@dataclass
class Then:
    centers: NDArray[np.float32]
    rounds: int


@dataclass
class Now(Then):
    samples: dict[str, int] = field(default_factory=dict)
    trial: int | None = None


@dataclass
class Later(Then):
    needed: int


def test_what_an_older_release_did_not_write_is_at_its_default():
    arrays, rest = dump_state(Then(np.ones((2, 3), dtype=np.float32), 4))
    state = load_state(Now, arrays, rest)
    assert (state.rounds, state.samples, state.trial) == (4, {}, None)
    np.testing.assert_array_equal(state.centers, np.ones((2, 3)))


def test_what_has_no_default_must_be_there():
    arrays, rest = dump_state(Then(np.ones((2, 3), dtype=np.float32), 4))
    with pytest.raises(KeyError, match="needed"):
        load_state(Later, arrays, rest)
