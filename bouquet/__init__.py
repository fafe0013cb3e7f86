"""Clustered, personalised federated learning on real devices, on Flower.

What the author of a method or an app needs has a short name here: ``bouquet.FeSEM``, ``bouquet.around``,
``bouquet.simulate``. A name is imported when it is asked for: ``import bouquet`` loads neither PyTorch nor Flower.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.client.mod import around as around
    from bouquet.client.mod import penalty as penalty
    from bouquet.client.rounds.session import Session as Session
    from bouquet.common.errors import BouquetError as BouquetError
    from bouquet.common.settings import Settings as Settings
    from bouquet.common.settings import load_settings as load_settings
    from bouquet.experiments.simulation.inline_grid import InlineGrid as InlineGrid
    from bouquet.experiments.simulation.inline_grid import scripted_client as scripted_client
    from bouquet.experiments.simulation.run import simulate as simulate
    from bouquet.server.record.reader import read_run as read_run
    from bouquet.strategies import *  # noqa: F403

_HOMES = {
    "BouquetError": "bouquet.common.errors",
    "InlineGrid": "bouquet.experiments.simulation.inline_grid",
    "Session": "bouquet.client.rounds.session",
    "Settings": "bouquet.common.settings",
    "around": "bouquet.client.mod",
    "load_settings": "bouquet.common.settings",
    "penalty": "bouquet.client.mod",
    "read_run": "bouquet.server.record.reader",
    "scripted_client": "bouquet.experiments.simulation.inline_grid",
    "simulate": "bouquet.experiments.simulation.run",
}


def __getattr__(name: str) -> Any:
    import bouquet.strategies as strategies

    home = _HOMES.get(name) or strategies.home_of(name)
    if home is None:
        raise AttributeError(f"module 'bouquet' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    import bouquet.strategies as strategies

    return sorted([*globals(), *_HOMES, *dir(strategies)])
