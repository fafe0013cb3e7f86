"""FedDist and FedDWS: Reptile's step towards the clients' models, as the FeSEM paper compares with it.

Nichol, Achiam, Schulman: On First-Order Meta-Learning Algorithms. 2018, Algorithm 2. https://arxiv.org/abs/1803.02999
Long et al.: Multi-Center Federated Learning. 2023, section 5 ("FedDist: we adapt a distance based objective function
in Reptile meta-learning to a federated setting"; FedDWS weighs by data size) and Eq. 3, 4.
https://arxiv.org/abs/2108.08647

The FeSEM paper names no step size. Reptile lets it fall linearly from 1 to 0 over the run; 0.5 is the mean of that, and
needs no knowledge of how long the run will be. With 1, FedDWS is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from bouquet.strategies.base.options import Above0To1, Weighting
from bouquet.strategies.baselines.global_model import GlobalModel


@dataclass(eq=False, repr=False)
class FedDist(GlobalModel):
    """The global model moves by ε of the way to the mean of the clients' models, its nearest point in L2 (Eq. 3).

    Parameters
    ----------
    step_size : float, default 0.5
        ε of Reptile, above 0, at most 1.
    weighting : {"uniform", "examples"}, default "uniform"
        ``"uniform"`` is FedDist; ``"examples"``, by the clients' numbers of samples, is FedDWS.
    **sampling
        See `bouquet.strategies.base.sampling.Sampling`.
    """

    step_size: Above0To1 = 0.5
    weighting: Weighting = "uniform"
