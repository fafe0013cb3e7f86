"""Does every built-in model train with the default settings? One short run for each model and data set.

    BOUQUET_DATA_DIR=FOLDER python benchmarks/defaults.py                                # the table of docs/defaults.md
    BOUQUET_DATA_DIR=FOLDER python benchmarks/defaults.py --set train.learning_rate=0.1  # with another step

FedAvg, five clients of 100 samples (60 for ResNet-18) with a primary and a secondary class each, 20 rounds. A row
of the table is printed as soon as its run is over: accuracy, mean over clients; training loss of the first and the last
round; failed replies; what the run warned of.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bouquet.common.model.architectures import model_names
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

IMAGES = ("digits", "mnist", "fashion-mnist")
SENSORS = ("uci-har",)
SAMPLES = {"resnet18": 60}


def cells() -> list[tuple[str, str]]:
    """Every pair of a built-in model and a data set that it takes."""
    pairs = [(model, data) for model in model_names() for data in (*IMAGES, *SENSORS)]
    of_windows = ("cnn-har", "gru")
    return [(m, d) for m, d in pairs if m == "mlp" or (m in of_windows) == (d in SENSORS)]


def row(model: str, data: str, changes: list[str]) -> str:
    """Run one cell, and return its row of the table."""
    settings = [
        "strategy.name=fedavg",
        f"model.name={model}",
        f"data.dataset={data}",
        f"data.partition={'natural' if data in SENSORS else 'dominant'}",
        "data.clients=5",
        f"data.samples_per_client={SAMPLES.get(model, 100)}",
        "run.rounds=20",
        "simulation.engine=inline",
        *changes,
    ]
    lines: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(load_settings(None, settings), Path(folder) / "run", follow=lines.append)
    losses = [f"{line['loss']:.3f}".removeprefix("0") for line in lines if line["loss"] is not None]
    failures = sum(line["failures"] for line in lines)
    accuracy = f"{summary['accuracy_macro']:.3f}".removeprefix("0")
    said = "; ".join(summary["warnings"]) or "none"
    return f"| `{model}` | {data} | {accuracy} | {losses[0]} | {losses[-1]} | {failures} | {said} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Settings other than defaults.")
    parser.add_argument("--model", action="append", help="Only these models.")
    parser.add_argument("--dataset", action="append", help="Only these data sets.")
    chosen = parser.parse_args()
    print("| model | data | accuracy | loss, round 1 | loss, round 20 | failed | warnings |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for model, data in cells():
        if model in (chosen.model or [model]) and data in (chosen.dataset or [data]):
            print(row(model, data, chosen.set), flush=True)


if __name__ == "__main__":
    main()
