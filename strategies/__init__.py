"""Federated methods as Flower strategies: one folder a method, a small baseline one file, and what they share.

``from bouquet.strategies import FeSEM``, and for a method of your own ``MethodStrategy`` and ``one_model``.
A name is imported when it is asked for, so that nobody loads more than is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.common.parameters.layout import ParameterLayout as ParameterLayout
    from bouquet.common.parameters.layout import Vector as Vector
    from bouquet.common.protocol import Instruction as Instruction
    from bouquet.common.protocol import Payload as Payload
    from bouquet.common.protocol import Proximal as Proximal
    from bouquet.strategies.anchored.strategy import Anchored as Anchored
    from bouquet.strategies.base.method import Outcome as Outcome
    from bouquet.strategies.base.method import one_model as one_model
    from bouquet.strategies.base.replies import Matrix as Matrix
    from bouquet.strategies.base.replies import Replies as Replies
    from bouquet.strategies.base.sampling import Sampling as Sampling
    from bouquet.strategies.base.strategy import MethodStrategy as MethodStrategy
    from bouquet.strategies.baselines.cfl import CFL as CFL
    from bouquet.strategies.baselines.clusterfl import ClusterFL as ClusterFL
    from bouquet.strategies.baselines.fedavg import FedAvg as FedAvg
    from bouquet.strategies.baselines.fedavg import FedDist as FedDist
    from bouquet.strategies.baselines.fedavg import FedDWS as FedDWS
    from bouquet.strategies.baselines.fedavg import FedProx as FedProx
    from bouquet.strategies.baselines.fedavg import FedSGD as FedSGD
    from bouquet.strategies.baselines.fedgroup import FedGroup as FedGroup
    from bouquet.strategies.baselines.fedper import FedPer as FedPer
    from bouquet.strategies.baselines.fl_hc import FLHC as FLHC
    from bouquet.strategies.baselines.robust_tkm import RobustTKM as RobustTKM
    from bouquet.strategies.baselines.standalone import Standalone as Standalone
    from bouquet.strategies.cgpfl.strategy import CGPFL as CGPFL
    from bouquet.strategies.dcpfl.strategy import DCPFL as DCPFL
    from bouquet.strategies.ditto.strategy import Ditto as Ditto
    from bouquet.strategies.fedac.strategy import FedAC as FedAC
    from bouquet.strategies.feddane.strategy import FedDANE as FedDANE
    from bouquet.strategies.fedtsdp.strategy import FedTSDP as FedTSDP
    from bouquet.strategies.fesem.strategy import FeSEM as FeSEM
    from bouquet.strategies.fesem.strategy import FeSEMMA as FeSEMMA
    from bouquet.strategies.gradient_loss.strategy import IFCA as IFCA
    from bouquet.strategies.gradient_loss.strategy import GradientLoss as GradientLoss
    from bouquet.strategies.hypocluster.strategy import HypoCluster as HypoCluster
    from bouquet.strategies.perfedavg.strategy import PerFedAvg as PerFedAvg

# What the author of a method needs, and where it is.
_CONTRACT = {
    "Instruction": "bouquet.common.protocol",
    "Matrix": "bouquet.strategies.base.replies",
    "MethodStrategy": "bouquet.strategies.base.strategy",
    "Outcome": "bouquet.strategies.base.method",
    "ParameterLayout": "bouquet.common.parameters.layout",
    "Payload": "bouquet.common.protocol",
    "Proximal": "bouquet.common.protocol",
    "Replies": "bouquet.strategies.base.replies",
    "Sampling": "bouquet.strategies.base.sampling",
    "Vector": "bouquet.common.parameters.layout",
    "one_model": "bouquet.strategies.base.method",
}


def _homes() -> dict[str, str]:
    from bouquet.common.methods import METHODS

    return _CONTRACT | {class_name: home for home, class_name in (m.strategy.split(":") for m in METHODS.values())}


def home_of(name: str) -> str | None:
    """The module that a name of this package is imported from; None where there is no such name."""
    return _homes().get(name)


def __getattr__(name: str) -> Any:
    if (home := home_of(name)) is None:
        raise AttributeError(f"module 'bouquet.strategies' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_homes()])
