"""What inputs and targets are standardised by, on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

Limits = tuple[tuple[float, float] | None, ...]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Scaling:
    """Mean and deviation of each input column, and of each target; a classification has none of targets.

    ``limits`` of a column are what its inputs count as at least and at most, where some are so far outside that they
    would spoil its scale; () where there are none. Those of a target are for what is trained on.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    limits: Limits = ()
    target_limits: Limits = ()

    def inputs(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Inputs (n, columns, …) as a model takes them."""
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        scaled = (within(x, self.limits) - np.reshape(self.mean, shape)) / np.reshape(self.std, shape)
        return scaled.astype(np.float32)

    def targets(self, y: NDArray[Any]) -> NDArray[np.float32]:
        """Targets (n, targets) as a model is trained to tell them."""
        scaled: NDArray[np.float32] = ((y - self.target_mean) / self.target_std).astype(np.float32)
        return scaled

    def undone(self, outputs: Any) -> Any:
        """Outputs (n, targets) of a model, a tensor or array, in the targets' own units."""
        if not self.target_std:
            return outputs
        if isinstance(outputs, np.ndarray):
            return outputs * np.asarray(self.target_std) + np.asarray(self.target_mean)
        return outputs * outputs.new_tensor(self.target_std) + outputs.new_tensor(self.target_mean)


def within(x: NDArray[Any], limits: Limits) -> NDArray[Any]:
    """Values (n, columns, …), those beyond their column's limits being these."""
    if not any(limits):
        return x
    x = x.copy()
    for k, limit in enumerate(limits):
        if limit is not None:
            np.clip(x[:, k], *limit, out=x[:, k])
    return x
