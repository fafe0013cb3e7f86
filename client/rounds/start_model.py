"""The model that a device starts from: what it was sent, and what it has."""

from __future__ import annotations

from collections.abc import Callable

from bouquet.client.state.device_state import PERSONAL, Kept
from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Payload, Received


def starting_model(
    received: Received, recall: Callable[[], Kept | None], initial: Vector, layout: ParameterLayout
) -> tuple[Vector, bool]:
    """`compose` for a message; what the device kept is read only where something of it is needed."""
    payload = received.models.get(ARRAYS)
    if payload is not None and received.start == "received" and _layers(payload, layout) == layout.layers:
        return payload.vector.copy(), False
    return compose(received, recall(), initial, layout)


def compose(received: Received, kept: Kept | None, initial: Vector, layout: ParameterLayout) -> tuple[Vector, bool]:
    """The model that a device starts from, and whether layers of its own that it should have are lost.

    Received layers come first, then for the others the device's own, then those sent as a fallback, in case that they
    are lost, then those of the initial model. An instruction to start from the personal model puts the device's
    own first.
    """
    own = None if kept is None or PERSONAL not in kept.slots else layout.flatten(kept.slots[PERSONAL])
    payload = received.models.get(ARRAYS)
    present = () if payload is None else _layers(payload, layout)
    vector = initial.copy() if own is None else own.copy()
    if own is None and (fallback := received.models.get(protocol.FALLBACK)) is not None:
        columns = layout.columns(layout.layers if fallback.layers is None else fallback.layers)
        vector[columns] = fallback.vector[columns]
    if payload is not None and (received.start == "received" or own is None):
        columns = layout.columns(present)
        vector[columns] = payload.vector[columns]
    needs_own = received.start == "personal" or len(present) < len(layout.layers)
    return vector, needs_own and own is None and received.round > 1 and not received.newcomer


def _layers(payload: Payload, layout: ParameterLayout) -> tuple[str, ...]:
    return layout.layers if payload.layers is None else payload.layers
