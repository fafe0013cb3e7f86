"""How much a device's own test part flatters a model that fits the device, by how the part is drawn.

A nearest neighbour on what a device trains on, tested on the fifth that it left out and on images of the data set's
test part: the difference is the split's own, because all images are drawn alike. FashionMNIST, IID devices::

    python benchmarks/split_bias.py --data-dir FOLDER --devices 1500
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.datasets import load_dataset
from bouquet.common.data.partition_rules import apportion, apportion_at_random

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Rule = Callable[[NDArray[np.int64], int, np.random.Generator], NDArray[np.int64]]

RULES: dict[str, Rule] = {
    "largest remainder": lambda sizes, total, _: apportion(sizes, total),
    "systematic": apportion_at_random,
    "not stratified": lambda sizes, total, rng: rng.multivariate_hypergeometric(sizes, total),
}
FRESH = 200


def main() -> None:
    """Print a line for each number of samples and each rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--devices", type=int, default=1500)
    arguments = parser.parse_args()
    data = load_dataset("fashion-mnist", arguments.data_dir)
    assert data.test_x is not None
    assert data.test_y is not None
    for samples in (20, 40, 80):
        for name, rule in RULES.items():
            found = []
            for device in range(arguments.devices):
                rng = np.random.default_rng((device, samples))
                own = rng.choice(len(data.y), samples, replace=False)
                left_out = _left_out(data.y[own], rule, rng)
                train, test = own[~left_out], own[left_out]
                fresh = rng.choice(len(data.test_y), FRESH, replace=False)
                known = (_flat(data.x[train]), data.y[train])
                here = _accuracy(*known, _flat(data.x[test]), data.y[test])
                found.append((here, _accuracy(*known, _flat(data.test_x[fresh]), data.test_y[fresh])))
            split, images = np.mean(found, axis=0)
            error = np.std(np.subtract(*np.transpose(found))) / np.sqrt(len(found))
            print(
                f"{samples} samples, {name}: split {split:.3f}, fresh {images:.3f}: {split - images:+.3f} ± {error:.3f}"
            )


def _left_out(labels: Labels, rule: Rule, rng: np.random.Generator) -> NDArray[np.bool_]:
    chosen = np.zeros(len(labels), dtype=bool)
    for label, count in enumerate(rule(np.bincount(labels), round(len(labels) / 5), rng)):
        chosen[rng.permutation(np.flatnonzero(labels == label))[:count]] = True
    return chosen


def _flat(images: NDArray[np.uint8]) -> Images:
    return images.reshape(len(images), -1).astype(np.float32) / 255


def _accuracy(x: Images, y: Labels, test_x: Images, test_y: Labels) -> float:
    """Of the nearest neighbour among ``x`` (n, d)."""
    distances = (x**2).sum(axis=1)[:, None] - 2 * x @ test_x.T
    return float((y[distances.argmin(axis=0)] == test_y).mean())


if __name__ == "__main__":
    main()
