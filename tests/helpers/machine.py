"""Files that stand for a machine's /sys and /proc."""

from pathlib import Path

from bouquet.client.owner.sensors import Sensors


class Machine:
    """A machine whose ``sensors`` say what a test has written; at first they say nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sensors = Sensors(root)

    def write(self, name: str, text: object) -> None:
        """Replace a file whole, as the kernel's readings are never half there."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.new")
        beside.write_text(f"{text}\n")
        beside.replace(file)

    def temperature(self, degrees: float, zone: int = 0) -> None:
        self.write(f"sys/class/thermal/thermal_zone{zone}/temp", round(degrees * 1000))

    def supply(self, name: str, **facts: object) -> None:
        for key, value in facts.items():
            self.write(f"sys/class/power_supply/{name}/{key}", value)

    def power(self, mains: bool, battery: int) -> None:
        self.supply("AC", type="Mains", online=int(mains))
        self.supply("BAT0", type="Battery", capacity=battery, status="Charging" if mains else "Discharging")
