"""FedAC on models that are points: an embedding and a decision of one number each, or of eight and two."""

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.fedac.strategy import FedAC

# One embedding and one decision parameter: a model is a point in the plane.
PLANE = ParameterLayout.of({name: np.zeros((1, 1), dtype=np.float32) for name in ("embed.weight", "decide.weight")})
WIDE = ParameterLayout.of(
    {"embed.weight": np.zeros((1, 8), dtype=np.float32), "decide.weight": np.zeros((1, 2), dtype=np.float32)}
)


def replies(rows, layout=PLANE):
    """Replies with the models of ``rows``."""
    models = {name: np.asarray(rows[name], dtype=np.float32) for name in sorted(rows)}
    received = [ClientReply(name, node, models[name], layout.layers, 10, {}, {}) for node, name in enumerate(models)]
    return Replies(layout, tuple(received))


FOUR = {"a": (0, 1), "b": (0, 3), "c": (10, 1), "d": (10, 3)}


def started(strategy, rows=None, layout=PLANE):
    state = strategy.initial_state(layout, np.zeros(layout.dim, dtype=np.float32))
    return strategy.update(state, 1, replies(rows or FOUR, layout))


def fixed(**options):
    return FedAC(**{"num_clusters": 2, "tuning": "off", **options})


def planted(groups, members=5, noise=0.1, seed=0):
    generator = np.random.default_rng(seed)
    return {
        f"c{i:02d}": 3 + np.eye(10)[i % groups] + noise * generator.normal(size=10) for i in range(groups * members)
    }
