"""Mathematics that methods share: pure functions on arrays, NumPy in and NumPy out.

``from bouquet.strategies.mathematics import cluster_means, kmeans``; a name is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bouquet.strategies.mathematics.aggregation import cluster_means as cluster_means
    from bouquet.strategies.mathematics.aggregation import reptile_step as reptile_step
    from bouquet.strategies.mathematics.aggregation import weighted_mean as weighted_mean
    from bouquet.strategies.mathematics.clustering import assign_to_nearest as assign_to_nearest
    from bouquet.strategies.mathematics.clustering import groups_at as groups_at
    from bouquet.strategies.mathematics.clustering import hierarchical_clusters as hierarchical_clusters
    from bouquet.strategies.mathematics.clustering import kmeans as kmeans
    from bouquet.strategies.mathematics.clustering import linkage_matrix as linkage_matrix
    from bouquet.strategies.mathematics.initialisation import random_models as random_models
    from bouquet.strategies.mathematics.similarity import cosine_similarity as cosine_similarity
    from bouquet.strategies.mathematics.similarity import cosine_to as cosine_to
    from bouquet.strategies.mathematics.similarity import distances_to as distances_to
    from bouquet.strategies.mathematics.similarity import euclidean_distances as euclidean_distances
    from bouquet.strategies.mathematics.similarity import jensen_shannon_divergence as jensen_shannon_divergence
    from bouquet.strategies.mathematics.similarity import l1_discrepancy as l1_discrepancy

_HOMES = {
    "aggregation": ("cluster_means", "reptile_step", "weighted_mean"),
    "clustering": (
        "assign_to_nearest",
        "groups_at",
        "hierarchical_clusters",
        "kmeans",
        "linkage_matrix",
    ),
    "initialisation": ("random_models",),
    "similarity": (
        "cosine_similarity",
        "cosine_to",
        "distances_to",
        "euclidean_distances",
        "jensen_shannon_divergence",
        "l1_discrepancy",
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
