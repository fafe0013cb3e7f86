"""Four scripted devices in two pairs, for DC-PFL."""

import pytest

from bouquet.experiments.simulation.inline_grid import InlineGrid
from tests.helpers.dcpfl_device import LASTS, Device


@pytest.fixture
def devices(layout):
    return {name: Device(name, layout, last, 0.01 * i) for i, (name, last) in enumerate(LASTS.items())}


@pytest.fixture
def grid(devices):
    return InlineGrid(dict(enumerate(devices.values(), start=1)))
