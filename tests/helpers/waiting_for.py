"""Waiting for what another process does: until it has happened, and no longer than anybody would."""

import time
from collections.abc import Callable


def eventually(true: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    """Return once ``true()``; after so many seconds, fail, and say what was waited for."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
