"""What is said where a method needs more of devices than their ClientApp offers."""

from __future__ import annotations

from collections.abc import Mapping

from bouquet.common.protocol.offers import MEANING, TRAINING

_OWN = 'take Bouquet\'s own ClientApp (clientapp = "bouquet.client.app:app")'
_AROUND = "put client.mod.around() around yours (docs/drop-in.md)"


def cannot_work(method: str, needs: Mapping[str, str], lacking: Mapping[str, str]) -> str:
    """The error of a run in which no device offers what the method needs; ``lacking`` is client → why."""
    needed = " ".join(f"It needs {MEANING[need]}: {why}" for need, why in needs.items())
    client, reason = next(iter(lacking.items()))
    to_do = _OWN if TRAINING in needs else f"{_AROUND}, or {_OWN}"
    return (
        f"{method} asks more of devices than a plain Flower ClientApp does, and would train something else with one. "
        f"{needed} None of the {len(lacking)} devices offers that; what to do: {to_do}, or another method "
        f"(docs/methods.md has what each of them needs). Of {client}: {reason}"
    )


def undeclared(method: str) -> str:
    """The error of a method that sends what not every ClientApp can follow, and does not say so."""
    return (
        f"{method} plans an instruction that a plain Flower ClientApp cannot follow, and does not say so: have its "
        f"device_needs() return which of {', '.join(MEANING)} it needs and why, or set identify=True where all devices "
        "run Bouquet's own ClientApp."
    )
