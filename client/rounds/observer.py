"""Who listens to a session: told of the models that pass through a procedure, and asked before something leaves."""

from __future__ import annotations

from bouquet.client.training.evaluation import Scores
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar


class Observer:
    """One that hears everything and does nothing."""

    @property
    def held_out(self) -> float:
        """The fraction of the training data that nothing but this observer may use."""
        return 0.0

    def alone(self) -> Vector | None:
        """The model (d,) that this observer trained alone in this message, on all of the training data; None for none.

        As ``standalone`` would have it.
        """
        return None

    def on_start(self, start: Vector) -> None:
        """Training starts from this model (d,)."""

    def on_keep(self, personal: Vector) -> None:
        """The device keeps this model (d,) of the round."""

    def on_reply(self, uploaded: Vector | None) -> dict[str, Scalar]:
        """At the end of a train message that sends this model (d,), None for none: what the config is to say beside."""
        return {}

    def on_test(self, vector: Vector) -> Scores | None:
        """At the end of an evaluate message: scores of what is tested in the place of this model (d,), None for it."""
        return None
