"""What a method's server asks in a message's config, checked where its procedure reads it."""

from __future__ import annotations

from bouquet.common.protocol import ProtocolError, Received


def number(received: Received, key: str) -> float:
    """A number of the config. Raises `ProtocolError`, naming procedure, key and value, for anything else."""
    value = received.config.get(key)
    if not isinstance(value, int | float):
        raise _unfit(received, key, "not a number")
    return float(value)


def count(received: Received, key: str) -> int:
    """A whole number from 1. Raises `ProtocolError` as `number` does."""
    value = received.config.get(key)
    if not isinstance(value, int) or value < 1:
        raise _unfit(received, key, "not a whole number from 1")
    return value


def _unfit(received: Received, key: str, what: str) -> ProtocolError:
    return ProtocolError(
        f"The server asks for {received.procedure!r} and says {key} = {received.config.get(key)!r}, {what}."
    )
