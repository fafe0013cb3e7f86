"""torchvision beside any torch, CPU-only ones included.

The package index's torchvision is compiled against a CUDA torch. Beside a CPU-only torch its extension cannot load,
and ``import torchvision`` then ends in ``operator torchvision::nms does not exist``, because it registers shapes for
operators that the extension would have declared. Declaring those two operators first is enough for all of
torchvision except the compiled operators themselves, none of which Bouquet uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType

from common.errors import BouquetError

TORCHVISION = "torchvision:"  # before the name of a model of its own
_BUILT_FROM_IT = "resnet18"  # of Bouquet's own models
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def wants_torchvision(config: Mapping[str, object]) -> bool:
    """Whether a device needs torchvision for a run of these settings, ``section.key`` → value."""
    name = str(config.get("model.name", ""))
    return name.startswith(TORCHVISION) or name == _BUILT_FROM_IT or config.get("train.augment", "[]") != "[]"


@cache
def import_torchvision() -> ModuleType:
    """Import torchvision, whose import is slow, only where it is needed, and return it.

    Raises `BouquetError` when it is not installed.
    """
    spec = find_spec("torchvision")
    if spec is None or spec.submodule_search_locations is None:
        raise BouquetError("torchvision is not installed; install the release that belongs to the installed torch.")
    if not _extension_loads(list(spec.submodule_search_locations)):
        _declare_operators()
    return importlib.import_module("torchvision")


def _extension_loads(folders: list[str]) -> bool:
    """Whether torchvision's compiled extension is there and loads into this torch."""
    import torch

    extension = PathFinder.find_spec("_C", folders)
    if extension is None or extension.origin is None:
        return False
    try:
        torch.ops.load_library(extension.origin)
    except OSError:
        return False
    return True


def _declare_operators() -> None:
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", _SCHEMA)
