"""What happens between two mini-batches, of training or of a test: the device's owner may have the work end there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_between: ContextVar[Callable[[], None] | None] = ContextVar("between_batches", default=None)


@contextmanager
def pausing(between_batches: Callable[[], None] | None) -> Iterator[None]:
    """Inside, ``between_batches`` is called before each mini-batch; what it raises ends the work."""
    token = _between.set(between_batches)
    try:
        yield
    finally:
        _between.reset(token)


def pause() -> None:
    """Between two mini-batches."""
    if (between_batches := _between.get()) is not None:
        between_batches()
