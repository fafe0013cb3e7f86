"""When a device works in a run without an end: in `ROUNDS` rounds after enough samples are new, then it rests.

What it had when it last began is remembered as a number for each sample, in the state folder. Samples that went do not
count, so a folder that holds the newest thousand photos has new ones, too.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.state.store import Store
from bouquet.common.errors import NotNow

if TYPE_CHECKING:
    from bouquet.client.data.loading import ClientData

ROUNDS = 10
MEMORY = "new-samples.json"
QUIET = 0.1  # of the time since its last round, after which it is asked again: soon after work, hourly after a day


@dataclass
class Seen:
    """The rounds of a run in which a device began to work and last worked, when that was, and what it had seen."""

    run: int = 0
    began: int = 0
    last: int = 0
    time: float = 0.0
    samples: list[int] = field(default_factory=list)


def rests(store: Store, run: int, data: ClientData, needed: int, now: float) -> NotNow | None:
    """Why the device rests, None where it works: it never did in this run, not long enough, or has enough new samples.

    The reason goes to the server, and says how many samples are new; ``now`` is in seconds since 1970.
    """
    seen, needed = _recall(store, run), _at_most(needed, data)
    if seen.last - seen.began < ROUNDS - 1 or (new := _new(data, seen)) >= needed:
        return None
    # A clock that was set back is no reason to ask in each second until it is where it was.
    return NotNow(f"{new} of {needed} new samples (server.new_samples)", QUIET * abs(now - seen.time))


def worked(store: Store, run: int, data: ClientData, needed: int, now: float, round_: int) -> None:
    """The device has trained in this round: where enough samples were new, it began anew."""
    seen, needed = _recall(store, run), _at_most(needed, data)
    if not seen.began or _new(data, seen) >= needed:
        seen = Seen(run, round_, samples=sorted(_numbers(data)))
    seen.last, seen.time = max(round_, seen.began), now
    store.write(MEMORY, json.dumps(asdict(seen)).encode())


def _recall(store: Store, run: int) -> Seen:
    try:
        seen = Seen(**json.loads(store.read(MEMORY) or b"{}"))
    except (ValueError, TypeError):  # damaged: it works once more
        return Seen(run)
    return seen if seen.run == run else Seen(run)


def _at_most(needed: int, data: ClientData) -> int:
    """Of a device that keeps fewer samples: all of them."""
    return min(needed, len(data.train_x) + len(data.test_x))


def _new(data: ClientData, seen: Seen) -> int:
    """How many samples it had not seen: of equal ones, as of a table with few categories, those that are more."""
    return (Counter(_numbers(data)) - Counter(seen.samples)).total()


def _numbers(data: ClientData) -> list[int]:
    """A number for each sample: the same again, though a table is scaled by what has come since."""
    parts = (_raw(part, data) for part in (data.train_x, data.test_x))
    return [zlib.crc32(np.ascontiguousarray(row).data) for part in parts for row in part]


def _raw(x: NDArray[Any], data: ClientData) -> NDArray[Any]:
    if data.scaling is None:
        return x
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    digits, exponent = np.frexp(x * np.reshape(data.scaling.std, shape) + np.reshape(data.scaling.mean, shape))
    return np.ldexp(np.round(digits * 1024), exponent).astype(np.float32) + 0.0  # no -0
