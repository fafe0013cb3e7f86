"""A season in minutes, over gRPC: what each of twelve devices has in use in each hour.

    BOUQUET_DATA_DIR=FOLDER python -m benchmarks.season run FILE --seed 6001    # two minutes on two idle cores
    BOUQUET_DATA_DIR=FOLDER python -m benchmarks.season rest               # bytes of four devices at rest
    python -m benchmarks.season table FILE > experiments/results/benchmarks/season.csv
    python -m benchmarks.season plot FILE docs/season.svg

A run is added to FILE, and the table and the plot have means over all that are in it.
FOLDER holds FashionMNIST. A server with a run without an end of FeSEM that weighs devices by their photos, and devices
as their owners start them, whose cameras see one of three kinds: upright, turned by 90° or by 180°. An hour brings 20
photos, of which the newest 60 stay; two devices have only their newest 15, so 3 test samples. Four devices come in hour
3, three are turned in hour 4, the nights after hours 2 and 4 are without any device. In hour 5 the first device has 600
photos with wrong labels; in hour 6 they are right again, and its cluster goes back to the version before by ``bouquet
rollback``.

Each hour's models are tested on the same 1000 photos, as the device's camera sees them then: what it has in use
(``in_use``), what it made last and would have in use without a guard (``made``), what it has from training alone
(``alone``), ``frozen``: what it had in use after hour 2, of a device that came later the server's model of then that is
best on its first photos; and ``fedavg``, one model of all, trained in this process on the same photos. Bytes of rest
are those of the server's sockets (``ss``, Linux).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.client.data.new_samples import MEMORY, ROUNDS
from bouquet.client.rounds.serving import LEFT_OUT, SERVED, served_models
from bouquet.client.state.device_state import PERSONAL, DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.client.training.sgd import sgd_options, train
from bouquet.common.data.datasets import load_dataset
from bouquet.common.model.build import initial_model
from bouquet.common.model_selection import REFERENCE
from bouquet.common.settings import load_settings
from bouquet.common.system.ports import free_port
from bouquet.models.kept import KeptModel, _loaded, device_model
from bouquet.server.record.status import read_status
from bouquet.server.record.versions import listed, versions

NAMES = [f"pi-{k:02}" for k in range(1, 13)]
LATE, TURNED, SMALL, BAD = NAMES[8:], NAMES[2:5], (NAMES[6], NAMES[11]), NAMES[0]
FROZEN, HOURS, JOIN, TURN, WRONG, NIGHTS = 2, 6, 3, 4, 5, (2, 4)
PHOTOS, AN_HOUR, FEW, KINDS, TESTED, MANY = 60, 20, 15, 3, 1000, 600
COLUMNS = ("seed", "hour", "device", "kind", "cluster", "round_in_use", "in_use", "made", "alone", "frozen", "fedavg")
LEAST = 4  # devices that begin a round
SETTINGS = """
[run]
name = "season"
rounds = "endless"
seed = {seed}

[data]
dataset = "own"
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input_shape = [1, 28, 28]

[model]
name = "mlp"
hidden = [64]

[strategy]
name = "fesem"
weighting = "examples"

[server]
min_clients = {least}
"""
Floats = NDArray[np.float32]


class Season:
    """One season; ``rows`` are its measurements."""

    def __init__(self, folder: Path, seed: int, names: Sequence[str] = NAMES) -> None:
        self.folder, self.seed, self.port, self.names = folder, seed, free_port(), names
        self.run, self.rows = folder / "runs" / "season", list[dict[str, Any]]()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        data, generator = load_dataset("fashion-mnist"), np.random.default_rng(seed)
        self.x, self.y = data.standardised(data.scaled(np.arange(len(data.y)))), data.y
        drawn = generator.permutation(len(self.y))
        self.test, self.pool = drawn[:TESTED], iter(drawn[TESTED:])
        self.kind = {name: k % KINDS for k, name in enumerate(NAMES)}
        self.photos: dict[str, list[tuple[Floats, int]]] = {name: [] for name in NAMES}
        self.frozen: dict[str, KeptModel] = {}
        (folder / "season.toml").write_text(SETTINGS.format(least=LEAST, seed=seed))
        self.settings = load_settings(folder / "season.toml")
        self.one, self.generator = initial_model(self.settings), torch.Generator().manual_seed(seed)
        self.start("server", "server", "season.toml", "--insecure", "--port", str(self.port))

    # --- what its people do -------------------------------------------------------------------------------------

    def start(self, log: str, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "bouquet", *arguments]
        with (self.folder / f"{log}.log").open("ab") as out:
            self.processes[log] = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)

    def end(self, *names: str) -> None:
        for name in names:
            self.processes[name].terminate()
        for name in names:
            self.processes.pop(name).wait(120)

    def sees(self, name: str, samples: NDArray[np.int64]) -> Floats:
        """Photos as this device's camera takes them now."""
        return np.ascontiguousarray(np.rot90(self.x[samples], self.kind[name], axes=(2, 3)))

    def takes(self, name: str, count: int, wrong: bool = False) -> None:
        """The device takes photos; the newest ones are in its folder."""
        samples = np.array([next(self.pool) for _ in range(count)])
        labels = (self.y[samples] + wrong) % 10
        self.photos[name] += zip(self.sees(name, samples), labels.tolist(), strict=True)
        kept = self.photos[name] if wrong else self.photos[name][-(FEW if name in SMALL else PHOTOS) :]
        if wrong:  # and when they are right again, these are gone
            self.photos[name] = self.photos[name][: -len(samples)]
        folder = self.folder / f"data-{name}"
        folder.mkdir(exist_ok=True)
        np.savez(folder / "new.npz", x=np.stack([x for x, _ in kept]), y=np.array([y for _, y in kept]))
        os.replace(folder / "new.npz", folder / "data.npz")

    def hour(self, hour: int) -> None:
        """What happens in an hour, until nobody works any more; what each device has then."""
        there = [name for name in self.names if hour >= JOIN or name not in LATE]
        before = {name: self.worked(name) for name in there}
        if hour == TURN:
            self.kind |= {name: (self.kind[name] + 1) % KINDS for name in TURNED}
        for name in there:
            wrong = hour == WRONG and name == BAD
            self.takes(name, MANY if wrong else PHOTOS if not self.photos[name] else AN_HOUR, wrong)
            if name not in self.processes:
                where = ("--server", f"127.0.0.1:{self.port}", "--insecure", "--state-dir", f"state-{name}")
                self.start(name, "client", *where, "--data", f"data-{name}", "--name", name)
        self.train_one(there)
        self.wait_until_all_rest(before)
        for name in there:
            self.rows.append({"seed": self.seed, "hour": hour, "device": name, **self.measured(name)})
        if hour == FROZEN:
            self.frozen = {name: device_model(self.folder / f"state-{name}") for name in there}
            last = [version for version in versions(self.run) if version.round == len(self.lines())]
            self.sent = [self.loaded(NAMES[0], [tensors_of(version.path)]) for version in last]
            for row in self.rows:
                row["frozen"] = row["in_use"]

    def train_one(self, there: Sequence[str]) -> None:
        """FedAvg's model after so many rounds as devices work in an hour, on four fifths of the same photos."""
        options = sgd_options({}, self.settings.train)
        held = {name: np.load(self.folder / f"data-{name}" / "data.npz") for name in there}
        data = {name: (torch.as_tensor(found["x"]), torch.as_tensor(found["y"])) for name, found in held.items()}
        for _ in range(ROUNDS):
            total, count = {k: torch.zeros_like(v) for k, v in self.one.state_dict().items()}, 0
            for x, y in data.values():
                model, n = deepcopy(self.one), len(y) * 4 // 5
                train(model, x[-n:], y[-n:], options, (), self.generator)
                total, count = {k: total[k] + n * v.detach() for k, v in model.state_dict().items()}, count + n
            self.one.load_state_dict({k: v / count for k, v in total.items()})

    def worked(self, name: str) -> tuple[int, int]:
        """The rounds in which the device began to work, and last worked."""
        file = self.folder / f"state-{name}" / MEMORY
        found = json.loads(file.read_text()) if file.exists() else {"began": 0, "last": 0}
        return found["began"], found["last"]

    def wait_until_all_rest(self, before: Mapping[str, tuple[int, int]], limit: float = 550) -> None:
        """All have worked anew, and so many rounds that fewer than begin a round have any left."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            now = {name: self.worked(name) for name in before}
            if all(began > before[name][0] for name, (began, _) in now.items()):
                left = sum(last - began < ROUNDS - 1 for began, last in now.values())
                if left < LEAST and read_status(self.run).get("state") == "waiting":
                    return
            time.sleep(0.5)
        raise SystemExit(f"The hour did not end: {now}\n{(self.folder / 'server.log').read_text()[-3000:]}")

    def roll_back(self, version: str) -> None:
        """The cluster of the bad device goes back to where it was."""
        cluster = str(self.lines()[-1]["assignment"][BAD])
        command = [sys.executable, "-P", "-m", "bouquet", "rollback", str(self.run), "--cluster", cluster]
        subprocess.run([*command, "--to", version], check=True)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "rounds.jsonl").read_text().splitlines()]

    # --- what is measured -----------------------------------------------------------------------------------------

    def loaded(self, name: str, models: list[Any]) -> KeptModel:
        kept = DeviceState(FolderStore(self.folder / f"state-{name}", durable=False)).latest()
        assert kept is not None
        return _loaded(kept.card, models, name, ())

    def score(self, name: str, model: KeptModel) -> float:
        right = model.probabilities(self.sees(name, self.test)).argmax(1) == self.y[self.test]
        return round(float(right.mean()), 4)

    def measured(self, name: str) -> dict[str, Any]:
        state = DeviceState(FolderStore(self.folder / f"state-{name}", durable=False))
        kept, in_use = state.latest(), state.in_use()
        assert kept is not None
        assert in_use is not None
        made = served_models(state, kept.run, kept.round) or [kept.slots[PERSONAL]]
        alone: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, array in (state.load_arrays(kept.run, SERVED, 2 * kept.round) or {}).items():
            slot, _, tensor = key.partition("/")
            alone[slot][tensor] = array
        own = alone.get(REFERENCE) or alone.get(LEFT_OUT)
        if name not in self.frozen and self.frozen:
            x, y = np.stack([x for x, _ in self.photos[name]]), np.array([y for _, y in self.photos[name]])
            self.frozen[name] = max(self.sent, key=lambda m: float((m.probabilities(x).argmax(1) == y).mean()))
        frozen = self.frozen.get(name)
        return {
            "kind": self.kind[name],
            "cluster": self.lines()[-1]["assignment"].get(name, ""),
            "round_in_use": in_use.facts["round"],
            "in_use": self.score(name, device_model(self.folder / f"state-{name}")),
            "made": self.score(name, self.loaded(name, [*made])),
            "alone": self.score(name, self.loaded(name, [own])) if own else "",
            "frozen": self.score(name, frozen) if frozen else "",
            "fedavg": self.score(name, self.loaded(name, [{k: v.numpy() for k, v in self.one.state_dict().items()}])),
        }

    def rest(self) -> Iterator[tuple[float, int, int]]:
        """Seconds, bytes on the server's sockets both ways, and questions to devices, while nobody works."""
        for seconds in (20, 60, 60, 100):
            began, before, asked, until = time.monotonic(), self.bytes_so_far(), 0, dict[str, Any]()
            while time.monotonic() < began + seconds:
                now = {c: said["until"] for c, said in read_status(self.run).get("not_now", {}).items()}
                asked += sum(until.get(client, moment) != moment for client, moment in now.items())
                until = now
                time.sleep(0.2)
            yield time.monotonic() - began, self.bytes_so_far() - before, asked

    def bytes_so_far(self) -> int:
        command = ["ss", "-tinH", "sport", "=", f":{self.port}"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sum(int(found) for found in re.findall(r"bytes_(?:sent|received):(\d+)", said))


def tensors_of(path: Path) -> dict[str, Any]:
    """The tensors of a model's file."""
    from safetensors.numpy import load_file

    return dict(load_file(path))


def run(file: Path, seed: int) -> None:
    """A season, hour by hour."""
    with tempfile.TemporaryDirectory(prefix="season-") as folder:
        season = Season(Path(folder), seed)
        try:
            good = ""
            for hour in range(1, HOURS + 1):
                if hour == WRONG:
                    good = next(one["version"] for one in reversed(listed(season.run)) if BAD in (one["devices"] or ()))
                if hour == WRONG + 1:
                    season.roll_back(good)
                began = time.monotonic()
                season.hour(hour)
                of_hour = [row for row in season.rows if row["hour"] == hour]
                shown = {k: round(mean(row[k] or 0 for row in of_hour), 3) for k in COLUMNS[6:]}
                print(
                    f"hour {hour}: {shown}, {len(season.lines())} rounds, {time.monotonic() - began:.0f} s", flush=True
                )
                if hour in NIGHTS:
                    season.end(*[name for name in NAMES if name in season.processes])
            for one in listed(season.run)[-4:]:
                print(one["version"], one["digest"][:12], one["accuracy"], one["in_use"])
        finally:
            season.end(*season.processes)
            with file.open("a", encoding="utf-8", newline="") as out:  # also of one that was ended, as far as it came
                writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
                if not out.tell():
                    writer.writeheader()
                writer.writerows(season.rows)


def rest(seed: int) -> None:
    """Four devices after an hour's work, of which nobody has anything new."""
    with tempfile.TemporaryDirectory(prefix="season-") as folder:
        season = Season(Path(folder), seed, NAMES[:LEAST])
        try:
            season.hour(1)
            for window in season.rest():
                print("{:.0f} s, {} bytes, {} questions".format(*window), flush=True)
        finally:
            season.end(*season.processes)


HAPPENS = {1: "8 devices", 3: "4 more", TURN: "3 turned", WRONG: "wrong labels", WRONG + 1: "rolled back"}
SHOWN = {  # column → figure, devices
    "in use": ("in_use", NAMES),
    "FedAvg": ("fedavg", NAMES),
    "frozen": ("frozen", NAMES),
    "alone": ("alone", NAMES),
    "turned": ("in_use", TURNED),
    "turned, frozen": ("frozen", TURNED),
    "few photos": ("in_use", SMALL),
    "few photos, no guard": ("made", SMALL),
}


def means(file: Path) -> dict[str, list[float | None]]:
    """The mean of each column in each hour, over runs, without the device whose labels are wrong then."""
    with file.open(encoding="utf-8", newline="") as content:
        rows = list(csv.DictReader(content))

    def of(figure: str, devices: Iterable[str], hour: int) -> float | None:
        wanted = {*devices} - ({BAD} if hour == WRONG else set())
        found = [r[figure] for r in rows if r["hour"] == str(hour) and r["device"] in wanted and r[figure]]
        return mean(map(float, found)) if found else None

    return {name: [of(*what, hour) for hour in range(1, HOURS + 1)] for name, what in SHOWN.items()}


def table(file: Path) -> None:
    """Means over the devices by hour, as CSV."""
    found, out = means(file), csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["hour", "", *found])
    for hour in range(1, HOURS + 1):
        values = [column[hour - 1] for column in found.values()]
        cells = ["–" if value is None else f"{value:.3f}".removeprefix("0") for value in values]
        out.writerow([hour, HAPPENS.get(hour, ""), *cells])


def plot(file: Path, target: Path) -> None:
    """What devices have in use by hour, as SVG."""
    from matplotlib.figure import Figure

    from bouquet.experiments.plots.style import line_style, svg

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    hours = [*range(1, HOURS + 1)]
    for k, (name, values) in enumerate([*means(file).items()][:4]):
        axes.plot(hours, [float("nan") if v is None else v for v in values], label=name, marker="o", **line_style(k))
    for night in NIGHTS:
        axes.axvspan(night + 0.35, night + 0.65, color="0.9", label="night" if night == NIGHTS[0] else None)
    axes.set_xticks(hours, [f"{hour}\n{HAPPENS.get(hour, '')}" for hour in hours])
    axes.set_ylabel("accuracy in use")
    axes.legend(frameon=False, fontsize=8)
    target.write_bytes(svg(figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "rest", "table", "plot"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("svg", type=Path, nargs="?", default=Path("season.svg"))
    parser.add_argument("--seed", type=int, default=6001)
    options = parser.parse_args()
    if (options.file is None) != (options.what == "rest"):
        parser.error("FILE goes with run, table and plot.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and with it the processes of the season
    if options.what == "run":
        run(options.file, options.seed)
    elif options.what == "rest":
        rest(options.seed)
    elif options.what == "table":
        table(options.file)
    else:
        plot(options.file, options.svg)


if __name__ == "__main__":
    main()
