"""Packages that are not read before something of them is used.

PyTorch imports some that training has no use for: 5 MB of a device that waits, and a part of its start.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Unread(ModuleType):
    """Stands for a package until an attribute of it is asked for; then it becomes it."""

    def __getattr__(self, name: str) -> Any:
        if name != "__all__" and name.startswith("__"):  # of whoever looks through all modules, as inspect does
            raise AttributeError(name)
        self.read()
        return getattr(self, name)

    def read(self) -> None:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        self.__spec__.loader = self.__loader__ = self.__spec__.loader_state
        self.__loader__.exec_module(self)  # type: ignore[union-attr]


class Later(MetaPathFinder, Loader):
    """A finder for `sys.meta_path`, before all others: the packages ``names`` wait."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec of a package that waits, or of a module that its package has just imported as it was read."""
        parent = sys.modules.get(name.rpartition(".")[0])
        if is_due := isinstance(parent, _Unread):
            parent.read()
            is_due = name in sys.modules
        if name not in self.names and not is_due:
            return None
        if (spec := PathFinder.find_spec(name, path)) is not None:
            spec.loader_state, spec.loader = spec.loader, self
            if is_due:
                sys.modules[name].__spec__ = spec  # else Python takes its own, and has it run again
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """What stands for it, or the module that is there already."""
        return sys.modules.get(spec.name) or _Unread(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""
