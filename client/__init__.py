"""The device: its data, local SGD, and what it keeps on its own disk."""

import common.renamed  # noqa: F401 – modules under the names that they had before
