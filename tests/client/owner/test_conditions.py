"""The owner's file, and what the machine says: each condition, on files that stand for /sys and /proc."""

import os
from datetime import datetime

import pytest

from bouquet.client.owner.conditions import DAY, When, outside_hours, read_when, readings
from bouquet.client.owner.watch import LEAST_PAUSE, Watch
from bouquet.common.errors import BouquetError
from bouquet.common.protocol.error_replies import NotNow
from tests.helpers.machine import Machine


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "machine")


def at(hour, minute=0, second=0):
    return datetime(2026, 7, 1, hour, minute, second)


class TestHours:
    def test_outside_it_says_when_the_next_one_begins(self):
        when = When(hours=["22:00–06:00", "12:30-13:00"])
        assert outside_hours(when, at(6)) == ("outside its hours; again after 12:30", 6.5 * 3600)
        assert outside_hours(when, at(13)) == ("outside its hours; again after 22:00", 9 * 3600)
        assert outside_hours(when, at(21, 59, 30)) == ("outside its hours; again after 22:00", 30)

    def test_each_minute_of_a_day_is_inside_or_has_a_wait_that_leads_inside(self):
        when = When(hours="23:10-01:05")
        inside = 0
        for minute in range(DAY):
            found = outside_hours(when, at(minute // 60, minute % 60))
            inside += found is None
            later = minute + round(found[1] / 60) if found else minute
            assert outside_hours(when, at(later % DAY // 60, later % DAY % 60)) is None
        assert inside == 115


class TestSensors:
    def test_a_machine_that_says_nothing_is_on_mains_and_knows_nothing_else(self, machine):
        sensors = machine.sensors
        assert sensors.on_mains() is True
        assert (sensors.temperature(), sensors.battery()) == (None, None)

    def test_the_hottest_zone_counts_and_one_without_a_reading_does_not(self, machine):
        machine.temperature(45.5, zone=0)
        machine.temperature(61.25, zone=1)
        (machine.root / "sys/class/thermal/thermal_zone2").mkdir()
        assert machine.sensors.temperature() == 61.25

    def test_a_battery_without_a_charger(self, machine):
        machine.power(mains=False, battery=35)
        assert machine.sensors.on_mains() is False
        assert machine.sensors.battery() == 0.35
        machine.power(mains=True, battery=35)
        assert machine.sensors.on_mains() is True

    def test_a_mouse_is_no_battery_of_the_machine(self, machine):
        machine.supply("mouse", type="Battery", scope="Device", capacity=3, status="Discharging")
        assert machine.sensors.on_mains() is True
        assert machine.sensors.battery() is None

    def test_of_two_batteries_both_say_that_it_is_charged(self, machine):
        """Where no charger is told of."""
        machine.supply("BAT0", type="Battery", status="Full")
        machine.supply("BAT1", type="Battery", status="Discharging")
        assert machine.sensors.on_mains() is False
        machine.supply("BAT1", status="Charging")
        assert machine.sensors.on_mains() is True


def reasons(machine, was_hot=False, **when):
    found = readings(When(**when), machine.sensors, was_hot)
    return [reason for look in found.values() if (reason := look())]


class TestReadings:
    def test_too_hot_and_cool_again_only_below(self, machine):
        machine.temperature(69.9)
        assert reasons(machine, temperature=70) == []
        assert reasons(machine, temperature=70, was_hot=True) == ["too hot; again below 60 °C"]
        machine.temperature(70)
        assert reasons(machine, temperature=70) == ["too hot; again below 60 °C"]
        machine.temperature(59.9)
        assert reasons(machine, temperature=70, was_hot=True) == []

    @pytest.mark.parametrize(
        ("mains", "level", "when", "allowed"),
        [
            (True, 5, {"battery": 0.5}, True),
            (False, 50, {"battery": 0.5}, True),
            (False, 49, {"battery": 0.5}, False),
            (False, 100, {"mains": True}, False),
            (False, 100, {"mains": True, "battery": 0.5}, False),
            (True, 5, {"mains": True}, True),
        ],
    )
    def test_power(self, machine, mains, level, when, allowed):
        machine.power(mains=mains, battery=level)
        assert (reasons(machine, **when) == []) is allowed

    def test_a_command(self, machine):
        assert reasons(machine, command="false") == ["its owner's own command says so"]
        assert reasons(machine, command=["sh", "-c", "exit 0"]) == []


class TestFile:
    def read(self, tmp_path, text):
        file = tmp_path / "when.toml"
        file.write_text(text)
        return read_when(file)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[when]\nhour = 3\n", "Unknown key when.hour; there are hours, mains"),
            ('[when]\nhours = "22-6"\n', "hours '22-6' are not of the form '22:00-06:00'"),
            ('[when]\nhours = "06:00-06:00"\n', "begin where they end"),
            ("[when]\nbattery = 50\n", "when.battery = 50: input should be less than or equal to 1"),
            ("[server]\nrounds = 3\n", "has server; it has one section, [when]"),
            ("when = 3\n", "has one section"),
            ("[when\n", "is not valid TOML"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, text, said):
        with pytest.raises(BouquetError) as error:
            self.read(tmp_path, text)
        assert said in str(error.value)

    @pytest.mark.parametrize("mode", [0o664, 0o646])
    def test_nobody_else_may_write_it(self, tmp_path, mode):
        file = tmp_path / "when.toml"
        file.write_text("[when]\n")
        file.chmod(mode)
        with pytest.raises(BouquetError, match="can be changed by others"):
            read_when(file)

    def test_nor_own_it(self, tmp_path, monkeypatch):
        file = tmp_path / "when.toml"
        file.write_text("[when]\n")
        if os.getuid() == 0:  # whose files are trusted, whoever reads them
            os.chown(file, 4711, -1)
        else:
            monkeypatch.setattr(os, "getuid", lambda: 4711)
        with pytest.raises(BouquetError, match="can be changed by others"):
            read_when(file)


class TestWatch:
    def watch(self, tmp_path, machine, text, **given):
        file = tmp_path / "when.toml"
        file.write_text(f"[when]\n{text}")
        return Watch(file, tmp_path, machine.sensors, **given)

    def test_it_was_too_hot_is_remembered_by_the_next_process(self, tmp_path, machine):
        machine.temperature(75)
        first = self.watch(tmp_path, machine, "temperature = 70\nlook_again = 5\n")
        refused = first.refusal()
        assert (str(refused), refused.seconds) == ("too hot; again below 60 °C", 5)
        machine.temperature(65)
        again = self.watch(tmp_path, machine, "temperature = 70\n")
        assert str(again.refusal()) == "too hot; again below 60 °C"
        machine.temperature(59)
        assert again.refusal() is None
        machine.temperature(65)
        assert self.watch(tmp_path, machine, "temperature = 70\n").refusal() is None

    def test_between_two_batches_it_stops_by_heat(self, tmp_path, machine):
        machine.temperature(50)
        watch = self.watch(tmp_path, machine, "temperature = 70\n", clock=lambda: 0.0)
        assert watch.refusal() is None
        watch.between_batches()
        machine.temperature(71)
        with pytest.raises(NotNow, match="too hot"):
            watch.between_batches()

    @pytest.mark.parametrize(
        ("text", "changes"),
        [
            ("mains = true\n", lambda machine, go: machine.power(mains=False, battery=90)),
            ("battery = 0.3\n", lambda machine, go: machine.supply("BAT0", capacity=20)),
            ('command = ["test", "-e", "GO"]\n', lambda machine, go: go.unlink()),
            ('hours = "03:00-04:00"\n', lambda machine, go: None),
        ],
    )
    def test_between_two_batches_it_stops_by_whatever_else_no_longer_holds(self, tmp_path, machine, text, changes):
        go, hour = tmp_path / "go", [3]
        go.touch()
        machine.power(mains="battery" not in text, battery=90)
        text = text.replace("GO", str(go))
        watch = self.watch(tmp_path, machine, text, clock=lambda: 0.0, now=lambda: at(hour[0]))
        assert watch.refusal() is None
        watch.between_batches()
        changes(machine, go)
        hour[0] = 5
        with pytest.raises(NotNow):
            watch.between_batches()

    def test_a_look_before_new_work_does_not_wait_for_its_turn(self, tmp_path, machine):
        ticks = iter(range(1000))  # each look takes a second, and is due again after fifty
        watch = self.watch(tmp_path, machine, "temperature = 70\n", clock=lambda: float(next(ticks)))
        machine.temperature(50)
        assert watch.refusal() is None
        machine.temperature(80)
        assert str(watch.refusal()) == "too hot; again below 60 °C"

    def test_looks_take_a_fiftieth_of_the_time_at_most(self, tmp_path, machine):
        """A sensor that takes 0.1 s is read again after five seconds."""
        now, looks = [0.0], []

        def slow():
            looks.append(now[0])
            now[0] += 0.1
            return 50.0

        object.__setattr__(machine.sensors, "temperature", slow)
        watch = self.watch(tmp_path, machine, "temperature = 70\n", clock=lambda: now[0])
        for _ in range(100):
            watch.between_batches()
            now[0] += 0.25
        assert len(looks) == pytest.approx(25 / (0.1 * LEAST_PAUSE), abs=1)

    def test_it_rests_for_its_owners_share_of_the_time(self, tmp_path, machine):
        now, rested = [0.0], []
        watch = self.watch(tmp_path, machine, "cpu_share = 0.25\n", clock=lambda: now[0], rest=rested.append)
        watch.between_batches()
        now[0] += 2
        watch.between_batches()
        assert rested == [6.0]

    def test_a_file_that_became_wrong_stops_it_and_one_that_was_mended_is_read(self, tmp_path, machine, capfd):
        watch = self.watch(tmp_path, machine, "")
        assert watch.refusal() is None
        watch.file.write_text("[when]\nhourz = 3\n")
        assert str(watch.refusal()) == "its owner's file of conditions is wrong"
        assert "hourz" in capfd.readouterr().out
        watch.file.write_text("[when]\n")
        assert watch.refusal() is None
        watch.file.unlink()
        assert watch.refusal() is not None
