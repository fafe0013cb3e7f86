"""Numbers as people write them."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """A number of bytes in powers of ten, three digits: ``2.02 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size * 0.9995:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def human_seconds(seconds: float) -> str:
    """A duration: ``8.3 s``, ``4 min 05 s``, ``2 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def ago(seconds: float | None, now: float) -> str:
    """How long ago something was."""
    if seconds is None:
        return "never"
    return f"{human_seconds(max(0.0, now - seconds))} ago" if now - seconds >= 60 else "now"
