"""Sensors that vanish or lie, a file that is no file, commands that hang: the device does not work, and says why."""

import contextlib
import os
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from bouquet.client.owner import sensors as sensors_of
from bouquet.client.owner.conditions import When, read_when, readings
from bouquet.client.owner.watch import LONGEST_REST, Watch
from bouquet.common.errors import BouquetError
from bouquet.common.protocol.error_replies import NotNow
from tests.helpers.machine import Machine

TEMPERATURE = "sys/class/thermal/thermal_zone0/temp"
CAPACITY = "sys/class/power_supply/BAT0/capacity"
WHEN = {TEMPERATURE: {"temperature": 70}, CAPACITY: {"battery": 0.3}}
NOT_KNOWN = {TEMPERATURE: "its temperature is not known", CAPACITY: "how full its battery is, is not known"}


@pytest.fixture
def machine(tmp_path):
    """One on which every condition of `WHEN` holds."""
    machine = Machine(tmp_path / "machine")
    machine.temperature(40)
    machine.power(mains=False, battery=90)
    return machine


def reasons(machine, **when):
    looks = readings(When(**when), machine.sensors, was_hot=False)
    return [reason for look in looks.values() if (reason := look()) is not None]


def vanished(file):
    file.unlink()


def a_folder(file):
    file.unlink()
    file.mkdir()


def a_pipe(file):
    file.unlink()
    os.mkfifo(file)


def holding(content):
    return lambda file: file.write_bytes(content)


FAULTS = {
    "vanished": vanished,
    "a folder": a_folder,
    "a pipe where nobody writes": a_pipe,
    "empty": holding(b""),
    "NaN": holding(b"NaN\n"),
    "binary": holding(bytes(range(256))),
    "too many digits": holding(b"9" * 5000),
}


@pytest.mark.timeout(300)  # a pipe was waited for without end
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("file", WHEN)
def test_a_reading_that_is_none_is_a_reason_and_is_not_waited_for(machine, file, fault):
    assert reasons(machine, **WHEN[file]) == []
    FAULTS[fault](machine.root / file)
    (said,) = reasons(machine, **WHEN[file])
    assert said == NOT_KNOWN[file]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (TEMPERATURE, "1000000000", "too hot; again below 60 °C"),
        (TEMPERATURE, "1e9", NOT_KNOWN[TEMPERATURE]),
        (TEMPERATURE, "-273200", NOT_KNOWN[TEMPERATURE]),  # what some zones read that are not connected
        (CAPACITY, "1000000000", NOT_KNOWN[CAPACITY]),
        (CAPACITY, "-1", NOT_KNOWN[CAPACITY]),
    ],
)
def test_a_reading_that_cannot_be_is_none(machine, file, content, said):
    machine.write(file, content)
    assert reasons(machine, **WHEN[file]) == [said]


@pytest.mark.timeout(300)
class TestCommand:
    NO_END = "its owner's own command cannot be started, or did not end"

    def test_one_that_hangs_is_ended_with_all_that_it_started(self, machine, tmp_path, monkeypatch):
        # The shell's child holds its output: to wait for the end of that would take an hour.
        begun = tmp_path / "pid"
        script = f"sleep 3600 & echo $! > {begun}.new; mv {begun}.new {begun}; wait"
        patience = 1.0
        while not begun.exists():  # on a busy machine the shell may be ended before it has begun anything
            patience *= 2
            monkeypatch.setattr(sensors_of, "PATIENCE_SECONDS", patience)
            assert reasons(machine, command=["sh", "-c", script]) == [self.NO_END]
        child = Path("/proc", begun.read_text().strip(), "stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while child.read_text().split()[2] != "Z":  # its end was asked for, and is waited for
                time.sleep(0.05)

    def test_what_it_prints_is_not_kept(self, machine, monkeypatch):
        monkeypatch.setattr(sensors_of, "PATIENCE_SECONDS", 1.0)
        assert reasons(machine, command=["yes"]) == [self.NO_END]
        assert reasons(machine, command=["sh", "-c", "head -c 50000000 /dev/zero; exit 0"]) in ([], [self.NO_END])

    def test_it_is_not_asked_anything(self, machine):
        assert reasons(machine, command=["sh", "-c", "! read line"]) == []

    @pytest.mark.parametrize("command", [["/no/such/program"], ["/"], ["a\0b"], [""]])
    def test_one_that_cannot_be_started(self, machine, command):
        assert reasons(machine, command=command) == [self.NO_END]


@pytest.mark.timeout(300)
class TestFile:
    @pytest.fixture
    def watch(self, tmp_path, machine):
        (tmp_path / "when.toml").write_text("[when]\n")
        return Watch(tmp_path / "when.toml", tmp_path, machine.sensors)

    @pytest.mark.parametrize(
        "fault",
        [
            *(FAULTS[name] for name in ("vanished", "a folder", "a pipe where nobody writes", "empty", "binary")),
            holding(b"[when]\nbattery = " + b"[" * 20_000),
            holding(b"[when]\nlook_again = " + b"9" * 5000),
            holding(b"#" * 10**6),
            holding(b"[when]\ntemperature = nan\n"),
            holding(b"[when]\nbattery = inf\n"),
        ],
    )
    def test_one_that_becomes_something_else_in_mid_training_ends_it(self, watch, fault):
        assert watch.refusal() is None
        watch.between_batches()
        fault(watch.file)
        with pytest.raises(BouquetError):
            read_when(watch.file)
        with pytest.raises(NotNow, match="its owner's file of conditions is wrong"):
            watch.between_batches()
        assert str(watch.refusal()) == "its owner's file of conditions is wrong"
        assert watch.settled == When()  # what asks for threads meanwhile is no failure

    def test_one_that_changes_in_mid_training_holds_at_once(self, watch, machine):
        watch.between_batches()
        watch.file.write_text("[when]\nmains = true\n")
        with pytest.raises(NotNow, match="on battery"):
            watch.between_batches()


class TestClock:
    def test_one_that_jumps_is_believed_at_once(self, tmp_path, machine):
        now = [datetime(2026, 7, 1, 23)]
        (tmp_path / "when.toml").write_text('[when]\nhours = "22:00-06:00"\n')
        watch = Watch(tmp_path / "when.toml", tmp_path, machine.sensors, now=lambda: now[0])
        watch.between_batches()
        for hour, year in ((12, 2026), (12, 1970)):
            now[0] = datetime(year, 1, 1, hour)
            with pytest.raises(NotNow, match="outside its hours; again after 22:00"):
                watch.between_batches()

    def test_a_long_rest_ends_when_the_device_may_not_work_any_more(self, tmp_path, machine):
        """After an hour's mini-batch at a hundredth of the time it would have rested for four days, then trained."""
        clock, rested = [0.0], []

        def rest(seconds):
            rested.append(seconds)
            machine.temperature(40 + 20 * len(rested))

        (tmp_path / "when.toml").write_text("[when]\ncpu_share = 0.01\ntemperature = 70\n")
        watch = Watch(tmp_path / "when.toml", tmp_path, machine.sensors, clock=lambda: clock[0], rest=rest)
        watch.between_batches()
        clock[0] += 3600
        with pytest.raises(NotNow, match="too hot"):
            watch.between_batches()
        assert rested == [LONGEST_REST] * 2

    def test_one_that_goes_backwards_is_no_rest(self, tmp_path, machine):
        clock = [100.0]
        (tmp_path / "when.toml").write_text("[when]\ncpu_share = 0.5\n")
        watch = Watch(tmp_path / "when.toml", tmp_path, machine.sensors, clock=lambda: clock[0], rest=pytest.fail)
        watch.between_batches()
        clock[0] = 3.0
        watch.between_batches()


def test_a_sensor_whose_pipe_somebody_holds_open_is_not_waited_for(machine):
    a_pipe(machine.root / TEMPERATURE)
    held = os.open(machine.root / TEMPERATURE, os.O_RDWR)
    try:
        found = []
        asking = threading.Thread(target=lambda: found.append(machine.sensors.temperature()), daemon=True)
        asking.start()
        asking.join(60)
        assert found == [None]
    finally:
        os.close(held)
