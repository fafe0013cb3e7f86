"""Simulation, comparison and report."""

import common.renamed  # noqa: F401 – modules under the names that they had before
