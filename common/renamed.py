"""Modules under the names that they had before, for outside authors: each says once what it is called now."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

# Old name → where its contents are now.
NAMES = {
    "client.asked": "client.procedures.config",
    "client.local_sgd": "client.training.sgd client.training.evaluation",
    "client.node": "client.context",
    "client.objective": "client.training.objective",
    "client.session": "client.rounds.session",
    "client.standard": "client.procedures.standard",
    "client.starting": "client.rounds.start_model",
    "common.dataset_table": "common.data.catalog",
    "common.datasets": "common.data.datasets",
    "common.health": "common.system.health",
    "common.initial": "common.model.build",
    "common.layout": "common.parameters.layout",
    "common.models": "common.model.architectures",
    "common.partitions": "common.data.partitions",
    "common.records": "common.protocol.records",
    "common.sections": "common.settings.sections",
    "experiments.inline": "experiments.simulation.inline_grid",
    "experiments.plot_style": "experiments.plots.style",
    "experiments.record": "server.record.reader",
    "strategies.clustered": "strategies.base.strategy",
    "strategies.exchange": "strategies.base.exchange",
    "strategies.method": "strategies.base.method",
    "strategies.options": "strategies.base.options",
    "strategies.replies": "strategies.base.replies",
    "strategies.sampling": "strategies.base.sampling",
    "strategies.state": "strategies.base.state_io",
}
SYMBOLS = {"ClusteredStrategy": "MethodStrategy", "Node": "ClientContext"}


class _Renamed:
    """Finds and loads a module of an old name, which has whatever the new ones have; asked after all other finders."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What `sys.meta_path` asks for."""
        return ModuleSpec(name, self) if name in NAMES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Say it, and take over all that the new modules have."""
        old = module.__name__
        news = NAMES[old].split()
        warnings.warn(f"{old} is {' and '.join(news)} now.", DeprecationWarning, stacklevel=2)
        for new in news:
            found = {name: value for name, value in vars(importlib.import_module(new)).items() if name[:2] != "__"}
            vars(module).update(found)
        vars(module).update({before: vars(module)[now] for before, now in SYMBOLS.items() if now in vars(module)})

    def get_code(self, name: str) -> CodeType | None:
        """What ``python -m`` asks for."""
        loader: Any = getattr(importlib.util.find_spec(NAMES[name]), "loader", None)
        code: CodeType | None = loader and loader.get_code(NAMES[name])
        return code


sys.meta_path.append(_Renamed())
