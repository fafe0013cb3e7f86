"""Federated methods as Flower strategies: one folder a method, a small baseline one file, and what they share.

``from strategies import FeSEM``, and for a method of your own ``from strategies import MethodStrategy, one_model``.
A name is imported when it is asked for, so that nobody loads more than is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from common.parameters.layout import ParameterLayout as ParameterLayout
    from common.parameters.layout import Vector as Vector
    from common.protocol import Instruction as Instruction
    from common.protocol import Payload as Payload
    from common.protocol import Proximal as Proximal
    from strategies.anchored.strategy import Anchored as Anchored
    from strategies.base.method import Outcome as Outcome
    from strategies.base.method import Similarity as Similarity
    from strategies.base.method import one_model as one_model
    from strategies.base.options import check_options as check_options
    from strategies.base.replies import Matrix as Matrix
    from strategies.base.replies import Replies as Replies
    from strategies.base.sampling import Sampling as Sampling
    from strategies.base.strategy import MethodStrategy as MethodStrategy
    from strategies.baselines.cfl import CFL as CFL
    from strategies.baselines.clusterfl import ClusterFL as ClusterFL
    from strategies.baselines.fedavg import FedAvg as FedAvg
    from strategies.baselines.feddist import FedDist as FedDist
    from strategies.baselines.fedgroup import FedGroup as FedGroup
    from strategies.baselines.fedper import FedPer as FedPer
    from strategies.baselines.fedprox import FedProx as FedProx
    from strategies.baselines.fedsgd import FedSGD as FedSGD
    from strategies.baselines.fl_hc import FLHC as FLHC
    from strategies.baselines.robust_tkm import RobustTKM as RobustTKM
    from strategies.baselines.standalone import Standalone as Standalone
    from strategies.cgpfl.strategy import CGPFL as CGPFL
    from strategies.dcpfl.strategy import DCPFL as DCPFL
    from strategies.ditto.strategy import Ditto as Ditto
    from strategies.fedac.strategy import FedAC as FedAC
    from strategies.feddane.strategy import FedDANE as FedDANE
    from strategies.fedtsdp.strategy import FedTSDP as FedTSDP
    from strategies.fesem.strategy import FeSEM as FeSEM
    from strategies.gradient_loss.strategy import GradientLoss as GradientLoss
    from strategies.hypocluster.strategy import HypoCluster as HypoCluster
    from strategies.perfedavg.strategy import PerFedAvg as PerFedAvg

# What the author of a method needs, and where it is.
_CONTRACT = {
    "Instruction": "common.protocol",
    "Matrix": "strategies.base.replies",
    "MethodStrategy": "strategies.base.strategy",
    "Outcome": "strategies.base.method",
    "ParameterLayout": "common.parameters.layout",
    "Payload": "common.protocol",
    "Proximal": "common.protocol",
    "Replies": "strategies.base.replies",
    "Sampling": "strategies.base.sampling",
    "Similarity": "strategies.base.method",
    "Vector": "common.parameters.layout",
    "check_options": "strategies.base.options",
    "one_model": "strategies.base.method",
}


def __getattr__(name: str) -> Any:
    from common.methods import METHODS

    classes = {class_name: home for home, class_name in (m.strategy.split(":") for m in METHODS.values())}
    module = (_CONTRACT | classes).get(name)
    if module is None:
        raise AttributeError(f"module 'strategies' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
