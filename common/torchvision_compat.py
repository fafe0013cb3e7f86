"""torchvision beside any torch, CPU-only ones included.

The package index's torchvision is compiled against a CUDA torch. Beside a CPU-only torch its extension cannot load,
and ``import torchvision`` then ends in ``operator torchvision::nms does not exist``, because it registers shapes for
operators that the extension would have declared. Declaring those two operators is enough for all of torchvision
except the compiled operators themselves, none of which Bouquet uses. They are declared after torchvision itself has
failed to: an operator that is declared twice ends the process, and the extension's name changes with the release.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from bouquet.common.errors import BouquetError
from bouquet.common.texts import setting_of

TORCHVISION = "torchvision:"  # before the name of a model of its own
_BUILT_FROM_IT = "resnet18"  # of Bouquet's own models
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def wants_torchvision(config: Mapping[str, object]) -> bool:
    """Whether a device needs torchvision for a run of these settings."""
    name = str(setting_of(config, "model.name"))
    return name.startswith(TORCHVISION) or name == _BUILT_FROM_IT or bool(setting_of(config, "train.augment"))


@cache
def import_torchvision() -> ModuleType:
    """Import torchvision, whose import is slow, only where it is needed, and return it.

    Raises `BouquetError` when it is not installed, or does not work beside the installed torch.
    """
    if find_spec("torchvision") is None:
        raise BouquetError("torchvision is not installed; install the release that belongs to the installed torch.")
    try:
        return importlib.import_module("torchvision")
    except Exception as error:
        if "operator torchvision::" not in str(error):
            raise _unfit(error) from error
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    try:
        _declare_operators()
        return importlib.import_module("torchvision")
    except Exception as error:
        raise _unfit(error) from error


def _unfit(error: Exception) -> BouquetError:
    import torch

    return BouquetError(
        f"The installed torchvision does not work beside torch {torch.__version__}; install the release that belongs "
        f"to it. ({type(error).__name__}: {error})"
    )


def _declare_operators() -> None:
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", _SCHEMA)
