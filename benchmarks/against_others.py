"""Bouquet's methods beside other people's code for the same methods: PFLlib, and IFCA's by its authors.

    python benchmarks/against_others.py --data-dir FOLDER --pfllib CLONE --ifca CLONE [--seeds 0 1 2] [--only full]

``CLONE`` are clones of https://github.com/TsingZ0/PFLlib and https://github.com/jichan3751/ifca; one may be left out.
Both ends have the same clients with the same samples, the same initial weights and the same hyper-parameters; their
code runs on one thread in a process of its own (``inside_others.py``), and nothing is written to the clones.

``batches``: FashionMNIST, 20 clients of 300 images of two classes each, mini-batches: the two draw other mini-batches,
so the accuracies agree within what seeds differ by. ``full``: the same with full batches, where nothing is drawn
and the accuracies must be equal in every tested round but for rounding. ``ifca``: 20 devices in four rotations, full
batches too.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.client.data.loading import ClientData, part_of
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.settings import Settings, load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.strategies.mathematics.initialisation import random_models

INSIDE = Path(__file__).with_name("inside_others.py")
TWO_CLASSES = ["data.partition=pathological", "data.classes_per_client=2", "data.clients=20"]
ROTATED = ["data.partition=rotated", "data.groups=4", "data.clients=20", "data.standardise=false"]
ACCURACY = "accuracy_macro"  # equal to micro here: all clients test on equally many samples


@dataclass(frozen=True)
class Method:
    """A method at both ends: ``ours`` are settings, ``theirs`` PFLlib's arguments."""

    label: str
    ours: Sequence[str]
    theirs: Sequence[str]
    offset: int = 0  # of the personal models' accuracies in PFLlib's list, and their distance
    every: int = 1
    adapt_on_all: bool = False


FEDAVG = Method("FedAvg", ["strategy.name=fedavg"], ["-algo", "FedAvg"])
FEDPER = Method("FedPer", ["strategy.name=fedper"], ["-algo", "FedPer"])
DITTO = Method("Ditto, λ = 1", ["strategy.name=ditto"], ["-algo", "Ditto", "-mu", "1.0"], offset=1, every=2)
PER_FEDAVG = Method("Per-FedAvg", ["strategy.name=per-fedavg"], ["-algo", "PerAvg"])
ADAPTED = Method("Per-FedAvg, adapted on all", PER_FEDAVG.ours, PER_FEDAVG.theirs, adapt_on_all=True)


@dataclass(frozen=True)
class Setting:
    """A group of checks with one protocol."""

    methods: Sequence[Method]
    rounds: int
    epochs: int
    batch: int  # 0 for all training samples
    rate: float


SETTINGS = {
    "batches": Setting([FEDAVG, FEDPER, DITTO, PER_FEDAVG, ADAPTED], rounds=25, epochs=1, batch=20, rate=0.05),
    # Full-batch steps of 0.1 are unstable on standardised images: what began as rounding grows to whole images.
    "full": Setting([FEDAVG, FEDPER, DITTO], rounds=25, epochs=5, batch=0, rate=0.02),
}
GAP = 5  # rounds from one test to the next: PFLlib's tests take longer than its training
IFCA = Setting([], rounds=25, epochs=10, batch=0, rate=0.1)
CLUSTERS = 4


@dataclass
class Row:
    """What both ends gave, a value a seed; curves by round, where a round is tested at both ends."""

    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)  # the largest difference in any round that both test
    notes: list[str] = field(default_factory=list)


def settings_of(setting: Setting, seed: int, data_dir: str, changes: Sequence[str], batch: int) -> Settings:
    return load_settings(
        None,
        [
            *("data.dataset=fashion-mnist", f"data.data_dir={data_dir}", "data.samples_per_client=300"),
            *("model.name=mlp", "model.hidden=[100]", "simulation.engine=inline", f"run.seed={seed}"),
            *(f"run.rounds={setting.rounds}", f"train.local_epochs={setting.epochs}", f"train.batch_size={batch}"),
            *(f"train.learning_rate={setting.rate}", "train.momentum=0", "train.max_gradient_norm=none"),
            *changes,
        ],
    )


def clients_of(settings: Settings) -> list[ClientData]:
    """What each device trains and tests on. All must have equally many samples: then no weighting can differ."""
    parts = [part_of(settings, i) for i in range(settings.data.clients)]
    if len({(len(part.train_y), len(part.test_y)) for part in parts}) > 1:
        raise SystemExit("The clients have unequal numbers of samples.")
    return parts


def export_initial(settings: Settings, file: Path, count: int) -> None:
    """The first ``count`` models that the server begins with: the tensors of each in order."""
    layout, initial = state_vector(initial_model(settings))
    models = random_models(
        initial, layout, count, settings.run.seed, lambda seed: state_vector(initial_model(settings, seed))[1]
    )
    names = list(initial_model(settings).state_dict())
    arrays = [layout.unflatten(model) for model in models]
    np.savez(file, **{f"model-{k}/{i}": a[name] for k, a in enumerate(arrays) for i, name in enumerate(names)})


def ours(settings: Settings, folder: Path) -> tuple[list[float], dict[str, int]]:
    """Accuracies after 0, 1, … rounds, and the final clusters."""
    summary = simulate(settings, folder)
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]  # each tests what the round before it left
    return [*(line[ACCURACY] for line in rounds), summary[ACCURACY]], rounds[-1]["assignment"]


def inside(project: str, job: dict[str, Any], folder: Path) -> Any:
    """Run the other project's code; its output stays in ``folder`` and is shown if it fails."""
    job |= {"folder": str(folder), "result": str(folder / "result.json")}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, str(INSIDE), project, str(folder / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{project}'s code failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(Path(job["result"]).read_text(encoding="utf-8"))


def check_pfllib(setting: Setting, seed: int, options: argparse.Namespace, rows: dict[str, Row]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        first = settings_of(setting, seed, options.data_dir, [*TWO_CLASSES, *FEDAVG.ours], 1)
        parts = clients_of(first)
        batch = setting.batch or len(parts[0].train_y)
        for kind in ("train", "test"):
            (root / "dataset" / "FashionMNIST" / kind).mkdir(parents=True)
            for i, part in enumerate(parts):
                x, y = (part.train_x, part.train_y) if kind == "train" else (part.test_x, part.test_y)
                np.savez(root / "dataset" / "FashionMNIST" / kind / f"{i}.npz", data=np.array({"x": x, "y": y}))
        export_initial(first, root / "initial.npz", 1)
        (root / "run").mkdir()
        job: dict[str, Any] = {"clone": options.pfllib, "initial": str(root / "initial.npz"), "seed": seed, "runs": []}
        for method in setting.methods:
            arguments = [
                *("-dev", "cpu", "-data", "FashionMNIST", "-m", "DNN", "-nc", str(len(parts)), "-eg", str(GAP)),
                *("-gr", str(setting.rounds), "-lbs", str(batch), "-lr", str(setting.rate)),
                *("-ls", str(setting.epochs), "-pls", str(setting.epochs), *method.theirs),
            ]
            how = {"offset": method.offset, "every": method.every, "adapt_on_all": method.adapt_on_all}
            job["runs"].append({"arguments": arguments, **how})
        for method, theirs in zip(setting.methods, inside("pfllib", job, root / "run"), strict=True):
            changes = [*TWO_CLASSES, *method.ours]
            if method.theirs == PER_FEDAVG.theirs:
                changes.append(f"strategy.adaptation_rate={setting.rate}")
            mine, _ = ours(settings_of(setting, seed, options.data_dir, changes, batch), root / method.label)
            note(rows, method.label, seed, theirs["accuracies"], mine[::GAP])


def check_ifca(seed: int, options: argparse.Namespace, rows: dict[str, Row]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        changes = [*ROTATED, "strategy.name=ifca", f"strategy.num_clusters={CLUSTERS}", "strategy.empty_cluster=leave"]
        parts = clients_of(settings_of(IFCA, seed, options.data_dir, changes, 1))
        settings = settings_of(IFCA, seed, options.data_dir, changes, len(parts[0].train_y))
        arrays = {
            f"{kind}-{axis}/{i}": getattr(part, f"{kind}_{axis}")
            for i, part in enumerate(parts)
            for kind in ("train", "test")
            for axis in ("x", "y")
        }
        np.savez(root / "data.npz", groups=[part.group for part in parts], **arrays)
        export_initial(settings, root / "initial.npz", CLUSTERS)
        config = {"m": len(parts), "m_test": len(parts), "p": CLUSTERS, "h1": settings.model.hidden[0]}
        config |= {"num_epochs": IFCA.rounds, "tau": IFCA.epochs, "lr": IFCA.rate, "train_seed": seed}
        config["project_dir"] = str(root / "project")
        job = {
            "clone": options.ifca,
            "data": str(root / "data.npz"),
            "initial": str(root / "initial.npz"),
            "config": config,
        }
        theirs = inside("ifca", job, root)
        for label, empty in ((f"IFCA ({CLUSTERS})", "leave"), ("the same, empty clusters told", "tell")):
            run = settings.with_overrides({"strategy.empty_cluster": empty})
            mine, found = ours(run, root / f"run-{empty}")
            row = note(rows, label, seed, theirs["accuracies"], mine)
            clusters = [found[client] for client in sorted(found)]
            same = sum(a == b for a, b in zip(theirs["clusters"], clusters, strict=True))
            used = f"clusters used: theirs {len(set(theirs['clusters']))}, ours {len(set(clusters))}"
            by_test = f"theirs tested with the model of least test loss {theirs['by_test_loss']:.4f}"
            row.notes.append(f"seed {seed}: {same} of {len(parts)} devices in the same cluster; {used}; {by_test}")


def note(rows: dict[str, Row], label: str, seed: int, theirs: Sequence[float], mine: Sequence[float]) -> Row:
    """Take what both found, test by test."""
    row, pairs = rows.setdefault(label, Row()), np.array(list(zip(theirs, mine, strict=True)))
    row.theirs.append(float(pairs[-1, 0]))
    row.ours.append(float(pairs[-1, 1]))
    row.apart.append(float(np.abs(pairs[:, 0] - pairs[:, 1]).max()))
    print(f"{label}, seed {seed}: theirs {row.theirs[-1]:.4f}, ours {row.ours[-1]:.4f}", file=sys.stderr)
    return row


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean ± deviation over the seeds; of one seed there is none."""
    mean = f"{np.mean(values):{sign}.4f}"
    return f"{mean} ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else mean


def show(title: str, rows: dict[str, Row]) -> None:
    print(f"\n{title}\n{'':30} {'theirs':24} {'ours':24} {'difference':>18} {'any round':>10}")
    for label, row in rows.items():
        difference = spread(np.subtract(row.ours, row.theirs).tolist(), "+")
        print(f"{label:30} {spread(row.theirs):24} {spread(row.ours):24} {difference:>18} {max(row.apart):10.4f}")
        by_seed = ", ".join(f"{a:.4f} / {b:.4f}" for a, b in zip(row.theirs, row.ours, strict=True))
        print(f"{'':30} by seed: {by_seed}" + "".join(f"\n{'':30} {text}" for text in row.notes), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("BOUQUET_DATA_DIR", ""))
    parser.add_argument("--pfllib", default="", help="a clone of PFLlib")
    parser.add_argument("--ifca", default="", help="a clone of the IFCA authors' code")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS, "ifca"], default=[*SETTINGS, "ifca"])
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in options.only:
        rows: dict[str, Row] = {}
        for seed in options.seeds:
            if name == "ifca" and options.ifca:
                check_ifca(seed, options, rows)
            elif name != "ifca" and options.pfllib:
                check_pfllib(SETTINGS[name], seed, options, rows)
        if rows:
            show(name, rows)


if __name__ == "__main__":
    main()
