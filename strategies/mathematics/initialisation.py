"""Several different random initialisations of one model, for methods whose clusters begin apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.strategies.mathematics.aggregation import Matrix

DrawModel = Callable[[int], Vector]


def random_models(
    initial: Vector, layout: ParameterLayout, count: int, seed: int, draw: DrawModel | None = None
) -> Matrix:
    """``count`` initial models (count, d), of which the first is ``initial`` (d,).

    ``draw`` makes the others, each from a seed of its own; Bouquet's server builds the model anew. A server that hands
    over nothing but one model (any Flower ServerApp) has its parameters shuffled, each tensor within itself: entries
    that were drawn independently, as weights are, keep their distribution, and constants (zero biases, unit scales)
    stay what they are, as do buffers and counters.

    Raises `BouquetError` when ``draw`` makes a model of another size.
    """
    models = [initial]
    for index in range(1, count):
        sequence = np.random.SeedSequence([seed, index])
        if draw is None:
            models.append(_shuffled(initial, layout, np.random.default_rng(sequence)))
            continue
        model = draw(int(sequence.generate_state(1)[0]))
        if model.shape != initial.shape:
            raise BouquetError(f"Initial model {index} has {model.size} parameters, the first one {initial.size}.")
        models.append(model)
    return np.stack(models).astype(np.float32)


def _shuffled(initial: Vector, layout: ParameterLayout, rng: np.random.Generator) -> Vector:
    shuffled = initial.copy()
    for spec in (spec for spec in layout.tensors if spec.kind == "parameter"):
        shuffled[spec.columns] = rng.permutation(initial[spec.columns])
    return shuffled
