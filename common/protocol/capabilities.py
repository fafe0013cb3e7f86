"""What a ClientApp can do beyond training and testing a whole model that it is sent.

A method says what it needs of that (`bouquet.strategies.base.method.MethodHooks.device_needs`), a ClientApp what it
can do, when it is asked who it is. Bouquet's own says nothing and can do all; one that does not answer can do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.names import CAPABILITIES

LAYERS, TERMS, LOSS, TRAINING = "layers", "terms", "loss", "training"
MEANING = {
    LAYERS: "keeping a model, or layers of it, on the device between rounds",
    TERMS: "proximal terms beside the loss that is trained on",
    LOSS: "the training loss of a model",
    TRAINING: "training of its own: other steps, epochs or layers than a ClientApp's own, or gradients",
}
_OWN = 'take Bouquet\'s own ClientApp (clientapp = "bouquet.client.app:app")'
_AROUND = "put bouquet.client.mod.around() around yours"


def capabilities(answer: Arrival) -> frozenset[str]:
    """What a device can do, by its answer to the question who it is."""
    if not answer.message.has_content():
        return frozenset()
    said = answer.about.get(CAPABILITIES)
    return frozenset(MEANING) if said is None else frozenset(str(said).split(","))


def meaning(names: Iterable[str]) -> str:
    """Capabilities in words, for a message to a reader."""
    return "; ".join(MEANING[name] for name in sorted(names))


def cannot_work(method: str, needs: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    """The error of a run in which no device can do what the method needs; ``lacking`` is client → why."""
    needed = " ".join(f"It needs {MEANING[need]}: {why}" for need, why in needs.items())
    client, reason = next(iter(lacking.items()))
    to_do = _OWN if TRAINING in needs else f"{_AROUND}, or {_OWN}"
    return (
        f"{method} asks more of devices than a plain Flower ClientApp does, and would train something else with one. "
        f"{needed} None of the {len(lacking)} devices can do that; what to do: {to_do}, or another method. "
        f"Of {client}: {reason}"
    )


def undeclared(method: str) -> str:
    """The error of a method that sends what not every ClientApp can follow, and does not say so."""
    return (
        f"{method} plans an instruction that a plain Flower ClientApp cannot follow, and does not say so: have its "
        f"device_needs() return which of {', '.join(MEANING)} it needs and why, or set identify=True where all devices "
        "run Bouquet's own ClientApp."
    )
