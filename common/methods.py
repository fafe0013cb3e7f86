"""Every method by its name: the one place where they are registered, and where an outside package's are found.

Names of modules, not the modules: each is imported where and when it is needed, so that a device loads neither SciPy
nor another method, and a server no PyTorch that it does not need.

An outside package gives its method the same standing by an entry point of the group ``bouquet.methods``, whose object
is a `Method`; without one, a strategy is named as ``package.module:Class`` or ``./file.py:Class``, and a procedure as
``package.module``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint

from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest

GROUP = "bouquet.methods"  # of entry points


@dataclass(frozen=True)
class Method:
    """Where a method's parts are.

    ``strategy`` is ``module:Class``. ``procedures`` maps a procedure, as an instruction names it, to the module with
    its ``train`` and ``evaluate`` on the device. ``plots`` is a module with ``PLOTS``, functions from a run to a
    figure.
    """

    strategy: str
    procedures: Mapping[str, str] = field(default_factory=dict)
    plots: str = ""


def _own(folder: str, class_name: str, procedure: str = "") -> Method:
    package = f"bouquet.strategies.{folder}"
    return Method(f"{package}.strategy:{class_name}", {procedure: f"{package}.device"} if procedure else {})


METHODS: dict[str, Method] = {
    "fesem": _own("fesem", "FeSEM"),
    "fesem-ma": _own("fesem", "FeSEMMA"),
    "gradient-loss": _own("gradient_loss", "GradientLoss", "gradient-loss"),
    "ifca": _own("gradient_loss", "IFCA", "gradient-loss"),
    "fedtsdp": _own("fedtsdp", "FedTSDP"),
    "fedac": _own("fedac", "FedAC"),
    "dc-pfl": _own("dcpfl", "DCPFL", "dc-pfl"),
    "cfl": Method("bouquet.strategies.baselines.cfl:CFL"),
    "fl-hc": Method("bouquet.strategies.baselines.fl_hc:FLHC"),
    "fedgroup": Method("bouquet.strategies.baselines.fedgroup:FedGroup"),
    "clusterfl": Method("bouquet.strategies.baselines.clusterfl:ClusterFL"),
    "cgpfl": _own("cgpfl", "CGPFL", "cgpfl"),
    "robust-tkm": Method("bouquet.strategies.baselines.robust_tkm:RobustTKM"),
    "hypocluster": _own("hypocluster", "HypoCluster", "hypocluster"),
    "ditto": _own("ditto", "Ditto", "ditto"),
    "anchored": _own("anchored", "Anchored", "anchored"),
    "per-fedavg": _own("perfedavg", "PerFedAvg", "per-fedavg"),
    "feddane": _own("feddane", "FedDANE", "feddane"),
    "fedper": Method("bouquet.strategies.baselines.fedper:FedPer"),
    "fedavg": Method("bouquet.strategies.baselines.fedavg:FedAvg"),
    "fedprox": Method("bouquet.strategies.baselines.fedavg:FedProx"),
    "fedsgd": Method("bouquet.strategies.baselines.fedavg:FedSGD"),
    "feddist": Method("bouquet.strategies.baselines.fedavg:FedDist"),
    "feddws": Method("bouquet.strategies.baselines.fedavg:FedDWS"),
    "standalone": Method("bouquet.strategies.baselines.standalone:Standalone"),
}


def find_method(name: str) -> Method:
    """The method of a name: a built-in one, an outside package's, or a class as module:Class or ./file.py:Class.

    Raises `BouquetError`, with all names, for one that is none of these.
    """
    if name in METHODS:
        return METHODS[name]
    if name in (outside := outside_methods()):
        return _method_of(outside[name])
    if ":" in name:
        return Method(name)
    raise BouquetError(
        f"Unknown strategy {name!r}; {nearest(name, [*METHODS, *outside])}, or your own as package.module:Class or "
        "./file.py:Class."
    )


@lru_cache(maxsize=1)
def outside_methods() -> dict[str, EntryPoint]:
    """The methods that installed packages offer by entry points; none of them is imported."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def _method_of(entry: EntryPoint) -> Method:
    """The method of an entry point. Raises `BouquetError`, naming it, when it cannot be loaded or is something else."""
    try:
        method = entry.load()
    except Exception as error:
        raise BouquetError(f"The entry point {entry.name!r} of {GROUP} cannot be loaded: {error}.") from error
    if not isinstance(method, Method):
        raise BouquetError(
            f"The entry point {entry.name!r} of {GROUP} is a {type(method).__name__}; it must be a "
            "bouquet.common.methods.Method."
        )
    return method


def procedure_modules() -> dict[str, str]:
    """Procedure → module, of the built-in methods."""
    return {name: module for method in METHODS.values() for name, module in method.procedures.items()}


def outside_procedure(name: str) -> str:
    """The module of a procedure that is not Bouquet's: an installed package's by its entry point, else ``name`` itself.

    The packages are imported to see what they offer; one that cannot be is passed over, unless it is alone with it.
    """
    broken: list[BouquetError] = []
    for entry in outside_methods().values():
        try:
            procedures = _method_of(entry).procedures
        except BouquetError as error:
            broken.append(error)
            continue
        if name in procedures:
            return procedures[name]
    if broken and "." not in name:
        raise broken[0]
    return name
