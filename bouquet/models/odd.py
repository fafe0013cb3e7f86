"""Which rows of a table are odd, and by which column: those that a model of what is usual reconstructs worst.

The threshold is the device's own: a quantile of the errors of what its model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
USUAL = 0.99  # quantile of a column's errors in training, that its errors are measured in
ODD = 0.995  # quantile of the rows' scores in training, beyond which a row is odd


@dataclass(frozen=True)
class Stretch:
    """Rows from ``first`` to ``last`` that are odd, most of all by ``column``, ``times`` its threshold at most."""

    first: int
    last: int
    column: int
    times: float


def row_errors(windows: Floats, outputs: Floats) -> tuple[NDArray[np.int64], Floats]:
    """The row that each window begins with (n,), and of each row and column the mean error (rows, columns).

    Of windows (n, columns, history) and what a model makes of them; NaN of rows that no window has. Windows that
    overlap by all but a row follow each other; others do not.
    """
    history = windows.shape[2]
    follows = (windows[1:, :, :-1] == windows[:-1, :, 1:]).all(axis=(1, 2))
    first = np.cumsum(np.append(0, np.where(follows, 1, history)))
    errors = np.abs(outputs.reshape(windows.shape) - windows).astype(np.float64)
    total, count = np.zeros((first[-1] + history, windows.shape[1])), np.zeros((first[-1] + history, 1))
    for k in range(history):
        np.add.at(total, first + k, errors[:, :, k])
        np.add.at(count, first + k, 1)
    with np.errstate(invalid="ignore"):
        return first, total / count


@dataclass(frozen=True)
class OddRows:
    """What is usual on a device: by column (columns,), and the score of a row from which it is odd."""

    usual: Floats
    limit: float

    @classmethod
    def of(cls, errors: Floats) -> OddRows:
        """By the errors (rows, columns) of what was trained on."""
        known = errors[np.isfinite(errors).all(axis=1)]
        usual = np.maximum(np.quantile(known, USUAL, axis=0), 1e-12)
        return cls(usual, float(np.quantile((known / usual).max(axis=1), ODD)))

    def scores(self, errors: Floats) -> Floats:
        """How many times its threshold each row and column is, (rows, columns); a row is odd where one is above 1."""
        return errors / self.usual / self.limit

    def stretches(self, errors: Floats) -> Iterator[Stretch]:
        """The odd rows, those next to each other together."""
        scores = self.scores(errors)
        odd = np.flatnonzero(np.nan_to_num(scores).max(axis=1) > 1)
        for rows in np.split(odd, np.flatnonzero(np.diff(odd) > 1) + 1) if len(odd) else ():
            highest = scores[rows].max(axis=0)
            yield Stretch(int(rows[0]), int(rows[-1]), int(highest.argmax()), float(highest.max()))


def reconstructed(windows: Floats, model: Callable[[Floats], Floats], batch: int = 1024) -> Floats:
    """What a model makes of windows (n, columns, history), some at a time."""
    return np.concatenate([model(windows[i : i + batch]) for i in range(0, len(windows), batch)])
