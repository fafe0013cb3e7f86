"""Which Flower server and client work with: they take more of it than it promises to keep."""

from __future__ import annotations

from importlib.metadata import version

from common.errors import BouquetError

TESTED = ("1.41", "1.42")  # of which any patch release; the tests run with the last
REQUIREMENT = "flwr>=1.41,<1.43"
OLDEST = "1.39"  # for strategies and simulations


def is_tested() -> bool:
    """Whether the installed Flower is one that server and client are tested with."""
    return ".".join(version("flwr").split(".")[:2]) in TESTED


def require_tested_flower() -> None:
    """Raise `BouquetError` where server and client are not tested with the installed Flower; it says what to do."""
    if not is_tested():
        raise BouquetError(
            f"Server and client work with Flower {' and '.join(TESTED)}, and Flower {version('flwr')} is installed. "
            f"Give them an environment of their own: in a clone of Bouquet pip install . '{REQUIREMENT}'. "
            f"Strategies and simulations work with every Flower from {OLDEST} on."
        )
