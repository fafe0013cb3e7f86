"""Files that stand for a machine's /sys and /proc."""

from pathlib import Path

from bouquet.client.owner.sensors import Sensors

ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


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

    def routes(self, *links: tuple[str, int]) -> None:
        lines = [f"{name}\t00000000\t0101A8C0\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0" for name, metric in links]
        local = "eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
        self.write("proc/net/route", ROUTES + "\n".join([local, *lines]))
