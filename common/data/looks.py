"""What a device's samples look like, in 64 numbers, and which cluster's devices have samples that look alike.

They are means and standard deviations of 32 random projections, the same for all: a device without labels can be placed
by them where its data look different, and not where only labels do. Both were measured (docs/coming-and-going.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError

PROJECTIONS = 32
SIZE = 2 * PROJECTIONS
Floats = NDArray[np.floating[Any]]


@lru_cache(maxsize=1)
def _axes(dim: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(0).standard_normal((dim, PROJECTIONS), dtype=np.float32)
    return drawn / np.float32(np.sqrt(dim))


def projected(samples: Floats) -> Floats:
    """Samples (n, *shape), as a model takes them, in 32 random directions: (n, 32)."""
    flat = samples.reshape(len(samples), -1).astype(np.float32, copy=False)
    projections: Floats = flat @ _axes(flat.shape[1])
    return projections


def look_of(projections: Floats) -> NDArray[np.float32]:
    """Means, then standard deviations, (64,) of at least one sample that was `projected`, (n, 32)."""
    exact = projections.astype(np.float64)
    return np.concatenate([exact.mean(axis=0), exact.std(axis=0)]).astype(np.float32)


def to_bytes(look: Floats) -> bytes:
    """A look (64,) as it travels: 256 bytes."""
    return look.astype("<f4").tobytes()


def from_bytes(content: Any) -> NDArray[np.float32] | None:
    """The inverse of `to_bytes`; None for what no honest device sends."""
    if not isinstance(content, bytes) or len(content) != 4 * SIZE:
        return None
    look = np.frombuffer(content, dtype="<f4").astype(np.float32)
    return look if np.isfinite(look).all() else None


@dataclass(frozen=True)
class Looks:
    """The mean look of each cluster's devices, (64,), its halves from 0 to 1 between the ``low`` and ``high`` of all.

    ``right`` of the ``of`` devices come into their own cluster where each is left out, and then goes to the nearest
    mean. One that is alone in its cluster does not.
    """

    means: Mapping[int, Floats]
    low: Floats  # (2,): of the means, and of the standard deviations
    high: Floats
    right: int
    of: int

    @classmethod
    def known(cls, looks: Mapping[str, Floats], clusters: Mapping[str, int]) -> Looks | None:
        """Of devices by name; None where fewer than two clusters have any, or one has no device with a look."""
        names = sorted(looks.keys() & clusters.keys())
        own = np.array([clusters[name] for name in names], dtype=np.int64)
        found = set(own.tolist())
        if len(found) < 2 or found != set(clusters.values()):
            return None
        all_ = np.array([looks[name] for name in names], dtype=np.float64)
        others = (cls._of(np.delete(all_, i, axis=0), np.delete(own, i), 0) for i in range(len(own)))
        right = sum(known.nearest(all_[i]) == own[i] for i, known in enumerate(others))
        return cls._of(all_, own, int(right))

    @classmethod
    def _of(cls, looks: Floats, clusters: NDArray[np.int64], right: int) -> Looks:
        blocks = looks.reshape(len(looks), 2, -1)
        low, high = blocks.min(axis=(0, 2)), blocks.max(axis=(0, 2))
        rows = _scaled(looks, low, high)
        means = {int(k): rows[clusters == k].mean(axis=0) for k in np.unique(clusters)}
        return cls(means, low, high, right, len(looks))

    def nearest(self, look: Floats) -> int:
        """The cluster whose mean is nearest to a look (64,)."""
        own = _scaled(look[None].astype(np.float64), self.low, self.high)[0]
        return min(self.means, key=lambda k: float(np.linalg.norm(self.means[k] - own)))

    def to_json(self) -> str:
        """JSON text that `from_json` reads back."""
        means = {str(k): mean.tolist() for k, mean in self.means.items()}
        ends = {"low": self.low.tolist(), "high": self.high.tolist()}
        return json.dumps({"means": means, **ends, "right": self.right, "of": self.of})

    @classmethod
    def from_json(cls, text: str) -> Looks:
        """The inverse of `to_json`. Raises `BouquetError` for what is none."""
        try:
            found = json.loads(text)
            means = {int(k): _numbers(mean, SIZE) for k, mean in found["means"].items()}
            ends = _numbers(found["low"], 2), _numbers(found["high"], 2)
            looks = cls(means, *ends, int(found["right"]), int(found["of"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BouquetError("It does not say what clusters look like.") from None
        if not looks.means:
            raise BouquetError("It knows of no cluster.")
        return looks


def _scaled(looks: Floats, low: Floats, high: Floats) -> Floats:
    blocks = looks.reshape(len(looks), 2, -1) - low[:, None]
    scaled: Floats = (blocks / np.where(high > low, high - low, 1)[:, None]).reshape(len(looks), -1)
    return scaled


def _numbers(values: Iterable[float], size: int) -> Floats:
    array = np.array(values, dtype=np.float64)
    if array.shape != (size,) or not np.isfinite(array).all():
        raise ValueError
    return array
