import numpy as np

from bouquet.common.data.catalog import DatasetInfo, described
from bouquet.common.data.datasets import Dataset


@described(DatasetInfo(input_shape=(1, 6, 6), num_classes=2))
def halves(data_dir):
    """Images in noise whose upper half is bright, or their left half."""
    random = np.random.default_rng(0)
    y, x = random.integers(0, 2, 480), random.normal(0, 0.5, (480, 1, 6, 6))
    x[y == 0, :, :3] += 1
    x[y == 1, :, :, :3] += 1
    return Dataset("halves", x.astype(np.float32), y)
