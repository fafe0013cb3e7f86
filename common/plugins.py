"""Loading code of somebody else's by its name, ``package.module:name`` or ``./file.py:name``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from bouquet.common.errors import SAYS_MORE, BouquetError


def load_object(name: str, what: str) -> Any:
    """The object behind ``package.module:name`` or ``./file.py:name``; ``what`` is said in the error.

    A file is loaded by its path, so that neither its name nor its folder can hide a module of anybody else's.
    Raises `BouquetError` when it cannot be imported or lacks the name.
    """
    module_name, _, attribute = name.rpartition(":")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        return getattr(module, attribute)
    except Exception as error:  # the module's own code runs, and can fail in any way
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        reason = f"{what} {name!r} cannot be imported"
        text = f"{reason}: {kind}{error}."
        top = module_name.partition(".")[0]
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name == top
            and (Path(top).is_dir() or Path(f"{top}.py").is_file())
        ):
            text += " Python does not look in this folder; put PYTHONPATH=. before the command."
        raise BouquetError(text, public=f"{reason}. {SAYS_MORE}") from error


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of the offered keyword arguments those that the function's signature takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(offered)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {key: value for key, value in offered.items() if key in named}


def _load_file(path: Path) -> ModuleType:
    """The module in a file, under a name that no package has; loaded once."""
    resolved, name = path.resolve(), _file_module(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None or not resolved.is_file():
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _file_module(path: Path) -> str:
    resolved = path.resolve()
    return f"bouquet_file_{resolved.stem}_{zlib.crc32(str(resolved).encode()):08x}"
