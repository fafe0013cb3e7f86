"""The models from which clients are clustered first: those that they made of one common model, over some rounds.

Where only some clients are asked in a round, too few for a clustering may answer. So a method sends the same common
model again and gathers what comes of it; a client that answers twice is there with its last model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bouquet.common.parameters.layout import Vector
from bouquet.strategies.base.replies import Matrix, stacked


@dataclass(frozen=True)
class FirstModels:
    """The model (d,) of each client and its number of training samples, in the order of the clients' names."""

    models: dict[str, Vector]
    examples: dict[str, int] = field(default_factory=dict)

    def add(self, clients: Iterable[str], W: Matrix, examples: Iterable[int] = ()) -> FirstModels:
        """With a round's models, the rows of W (n × d), too; ``examples`` (n,) where they are weighed by them."""
        models = {**self.models, **dict(zip(clients, W, strict=True))}
        counts = {**self.examples, **dict(zip(clients, examples, strict=False))}
        return FirstModels({c: models[c] for c in sorted(models)}, {c: counts[c] for c in sorted(counts)})

    @property
    def clients(self) -> list[str]:
        """Whose models these are, in the order of the rows of `W`."""
        return [*self.models]

    @property
    def W(self) -> Matrix:
        """The models as rows, (n, d)."""
        return stacked([*self.models.values()])
