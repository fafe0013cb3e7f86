"""What a device's machine says of itself goes with its reply, to the record."""

import pytest

from bouquet.common.task.score import ACCURACY
from bouquet.server.record.summary import _shown
from tests.helpers.machine import Machine
from tests.helpers.scripted_server import Device, samples


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUQUET_SENSORS", str(tmp_path / "machine"))
    return Machine(tmp_path / "machine")


def reported(device):
    return {**device.ask().content.metric_records["metrics"]}


def test_temperature_and_battery_go_with_the_reply_where_the_machine_tells_them(tmp_path, machine):
    device = Device(tmp_path, (), samples(), **{"privacy.clip_norm": None, "privacy.noise_multiplier": 0.0})
    assert not {"temperature", "battery"} & set(reported(device))
    machine.temperature(61.5)
    machine.power(mains=False, battery=80)
    found = _shown(reported(device), {}, ACCURACY, classes=2)
    assert (found["temperature"], found["battery"]) == (61.5, 0.8)
