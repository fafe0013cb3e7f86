"""Who listens to a session: told of the models that pass through a procedure, and asked before something leaves."""

from __future__ import annotations

from bouquet.client.training.evaluation import Scores
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar


class Observer:
    """One that hears everything and does nothing."""

    @property
    def keeps_fold(self) -> bool:
        """Whether a part of the training data, another one in each round, is for nothing but this observer."""
        return False

    @property
    def trains_alone(self) -> bool:
        """Whether it trains a model alone on all of the training data, as ``standalone`` would: `last_alone`."""
        return False

    @property
    def last_alone(self) -> Vector | None:
        """That model (d,), as far as it is trained; None where there was never time for it."""
        return None

    def on_start(self, start: Vector) -> None:
        """Training starts from this model (d,)."""

    def on_keep(self, personal: Vector) -> None:
        """The device keeps this model (d,) of the round."""

    def on_reply(self, uploaded: Vector | None, from_received: bool) -> dict[str, Scalar]:
        """At the end of a train message that sends this model (d,), None for none: what the config is to say beside.

        ``from_received`` is whether it began with what was received.
        """
        return {}

    def on_test(self, vector: Vector) -> Scores | None:
        """At the end of an evaluate message: scores of what is tested in the place of this model (d,), None for it."""
        return None
