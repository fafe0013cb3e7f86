"""Federated strategies, one file a paper, and the mathematics they share.

``from strategies import FeSEM`` and the like; a class is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strategies.base import ClusteredStrategy as ClusteredStrategy
    from strategies.ditto import Ditto as Ditto
    from strategies.fedper import FedPer as FedPer
    from strategies.fedtsdp import FedTSDP as FedTSDP
    from strategies.fesem import FeSEM as FeSEM
    from strategies.flower import FedAvg as FedAvg
    from strategies.flower import FedProx as FedProx
    from strategies.standalone import Standalone as Standalone


def __getattr__(name: str) -> Any:
    from strategies.registry import STRATEGIES

    for module, class_name, _ in (*STRATEGIES.values(), ("strategies.base", "ClusteredStrategy", {})):
        if class_name == name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'strategies' has no attribute {name!r}")
