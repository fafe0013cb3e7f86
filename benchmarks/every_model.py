"""Every method × some models × some numbers of clients: does a run end well, or is it refused with a clear reason?

    python benchmarks/every_model.py --out every-model.jsonl

Tiny runs on the embedded digits, in this process. Each cell is a line in the file as soon as it is known, and cells
that are there are not run again; delete their lines to have them run. At the end it prints the table as Markdown. A
cell ends well when every client replied in every round, was tested after the last, all losses are numbers, and a
cluster's model, where the server has any, was trained.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS, outside_methods
from bouquet.common.model.build import initial_model
from bouquet.common.settings import Settings, load_settings
from bouquet.experiments.simulation.run import simulate

MODELS = {
    "mlp": ("model.name=mlp",),
    "cnn-dcpfl": ("model.name=cnn-dcpfl",),
    "cnn-batchnorm": ("model.name=cnn-batchnorm",),
    "resnet18 group": ("model.name=resnet18", "model.norm=group"),
    "resnet18 batch": ("model.name=resnet18", "model.norm=batch"),
}
CLIENTS = (1, 2, 10)
WELL = "ends well"


def outcome(strategy: str, model: str, clients: int) -> str:
    """What becomes of one run, in words."""
    large = model.startswith("resnet18")
    changes = [
        f"strategy.name={strategy}",
        *MODELS[model],
        f"data.clients={clients}",
        "server.min_clients=1",
        f"data.samples_per_client={20 if large else 40}",
        "data.public_fraction=0.1",
        "train.local_epochs=1",
        "train.learning_rate=0.02",
        f"run.rounds={1 if large else 2}",
        "simulation.engine=inline",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        try:
            settings = load_settings(None, changes)
            summary = simulate(settings, run)
            untrained = _untrained(settings, run)
        except BouquetError as error:
            return f"refused: {error}"
        except Exception as error:
            return f"ERROR: {type(error).__name__}: {error}"
        lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        if line["failed"]:
            client, reason = next(iter(line["failed"].items()))
            return f"{line['replies']} of {clients} replies in round {line['round']}; {client}: {reason}"
        if line["replies"] != clients or line["loss"] is None or not math.isfinite(line["loss"]):
            return f"{line['replies']} of {clients} replies in round {line['round']}, loss {line['loss']}"
    if untrained:
        return "every client replied, and the clusters' models are still the initial one"
    tested = summary["clients"]
    return WELL if tested == clients else f"{tested} of {clients} clients tested: {summary['not_evaluated']}"


def _untrained(settings: Settings, run: Path) -> bool:
    """Whether there are models of clusters, and none of them moved; personal layers stay where they were on purpose."""
    initial = {name: tensor.numpy() for name, tensor in initial_model(settings).state_dict().items()}
    files = list((run / "models").glob("*.safetensors"))
    moved = any(not np.array_equal(array, initial[name]) for file in files for name, array in load_file(file).items())
    return bool(files) and not moved


def table(found: Iterable[dict[str, Any]]) -> str:
    """Rows are methods, columns models; a cell that is not well is a letter, which is explained below the table."""
    by_cell = {(cell["strategy"], cell["model"], cell["clients"]): cell["outcome"] for cell in found}
    strategies = list(dict.fromkeys(strategy for strategy, _, _ in by_cell))
    reasons: dict[str, str] = {}

    def word(strategy: str, model: str, clients: int) -> str:
        reason = by_cell.get((strategy, model, clients))
        if reason is None:
            return "–"  # not run
        return "well" if reason == WELL else reasons.setdefault(reason, f"({len(reasons) + 1})")

    rows = [["strategy", *MODELS], ["---"] * (len(MODELS) + 1)]
    for strategy in strategies:
        row = [f"`{strategy}`"]
        for model in MODELS:
            words = [word(strategy, model, clients) for clients in CLIENTS]
            row.append(words[0] if len(set(words)) == 1 else ", ".join(words))
        rows.append(row)
    notes = [f"{number} {reason}" for reason, number in reasons.items()]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", *(f"- {note}" for note in notes)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("every-model.jsonl"))
    parser.add_argument("--strategies", nargs="+", default=[*METHODS, *outside_methods()])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--clients", nargs="+", type=int, choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and run nothing")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    text = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else ""
    found = [json.loads(line) for line in text.splitlines()]
    known = {(cell["strategy"], cell["model"], cell["clients"]) for cell in found}
    for model in () if arguments.table else arguments.models:
        for clients in arguments.clients:
            for strategy in arguments.strategies:
                if (strategy, model, clients) in known:
                    continue
                cell = {"strategy": strategy, "model": model, "clients": clients}
                found.append({**cell, "outcome": outcome(strategy, model, clients)})
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found[-1]) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
