"""The partitioners of Flower Datasets, by their names: ``bouquet.experiments.simulation.flower_partitioners:NAME``.

They need the package ``flwr-datasets``, which is in no extra: its newest release (0.6) asks for an older rich than
Flower does. docs/simulating.md says how it is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError

Rule = Callable[..., list[NDArray[np.int64]]]


def __getattr__(name: str) -> Rule:
    """A partition of ours that asks the partitioner of this name, such as ``DirichletPartitioner``."""
    if name.startswith("_"):
        raise AttributeError(name)
    from flwr_datasets import partitioner

    kind = getattr(partitioner, name)
    takes = inspect.signature(kind).parameters

    def rule(
        labels: NDArray[Any], num_clients: int, seed: int, *, beta: float, minimum: int, classes_per_client: int
    ) -> list[NDArray[np.int64]]:
        from datasets import Dataset

        ours = {
            "num_partitions": num_clients,
            "partition_by": "label",
            "seed": seed,
            "alpha": beta,
            "min_partition_size": minimum,
            "num_classes_per_partition": classes_per_client,
        }
        if missing := [key for key, one in takes.items() if one.default is one.empty and key not in ours]:
            raise BouquetError(
                f"{name} needs {', '.join(missing)}, which no setting gives: call it in a partition of your own, "
                "module:function."
            )
        made = kind(**{key: value for key, value in ours.items() if key in takes})
        order = np.random.default_rng(seed).permutation(len(labels))  # as FederatedDataset shuffles before it divides
        made.dataset = Dataset.from_dict({"label": labels[order], "index": order})
        return [np.asarray(made.load_partition(client)["index"], dtype=np.int64) for client in range(num_clients)]

    return rule
