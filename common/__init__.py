"""What both ends of a federation share: settings, parameter layout, wire protocol, models, partitions, metrics."""

import common.renamed  # noqa: F401 – modules under the names that they had before
