"""What a ClientApp offers beyond training, and testing, a whole model that it is sent.

A method says what it needs of that (`bouquet.strategies.base.method.MethodHooks.device_needs`), a ClientApp what it
offers, when it is asked who it is. Bouquet's own says nothing and offers all; one that does not answer offers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.names import OFFERS

LAYERS, TERMS, LOSS, TRAINING = "layers", "terms", "loss", "training"
MEANING = {
    LAYERS: "keeping a model, or layers of it, on the device between rounds",
    TERMS: "proximal terms beside the loss that is trained on",
    LOSS: "the training loss of a model",
    TRAINING: "training of its own: other steps, epochs or layers than a ClientApp's own, or gradients",
}


def offered(answer: Arrival) -> frozenset[str]:
    """What a device offers, by its answer to the question who it is."""
    if not answer.message.has_content():
        return frozenset()
    said = answer.about.get(OFFERS)
    return frozenset(MEANING) if said is None else frozenset(str(said).split(","))


def meaning(offers: Iterable[str]) -> str:
    """In words, for a message to a reader."""
    return "; ".join(MEANING[offer] for offer in sorted(offers))
