"""What starting weights and frozen layers are worth: a model trained on some classes, fine-tuned by a fleet on others.

    BOUQUET_DATA_DIR=FOLDER python benchmarks/fine_tuning.py --out DIR [--clients 10] [--images 60] [--rounds 10]

LeNet (cnn-dcpfl) is trained centrally on 12,000 images of FashionMNIST's classes 0 to 4 and saved without its head.
Each client of the fleet has some images of the classes 5 to 9, and 100 others to test on; one half of the clients sees
them upright, the other half turned by 180 degrees. Runs that are there already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from bouquet.client.training import evaluation, sgd
from bouquet.client.training.sgd import SGDOptions
from bouquet.common.data.datasets import load_dataset
from bouquet.common.model.architectures import build_model
from bouquet.common.model.card import OWN_MEAN, OWN_STD, standardise_bytes
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

BEFORE, FLEET = range(5), range(5, 10)
SHAPE, MODEL = (1, 28, 28), "cnn-dcpfl"
CENTRAL_IMAGES, CENTRAL_EPOCHS, TESTED = 12_000, 4, 100
NAMES = ("sandal", "shirt", "sneaker", "bag", "boot")


def images(seed: int, count: int, classes: range, test: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """So many images (n, 1, 28, 28) uint8 of some classes, drawn at random, and their labels from 0."""
    data = load_dataset("fashion-mnist")
    x, y = (data.test_x, data.test_y) if test else (data.x, data.y)
    known = np.flatnonzero(np.isin(y, classes))
    chosen = np.random.default_rng(seed).choice(known, count, replace=False)
    return np.asarray(x[chosen]).reshape(count, *SHAPE), np.asarray(y[chosen]) - classes.start


def train_centrally(file: Path) -> None:
    x, y = images(0, CENTRAL_IMAGES, BEFORE)
    model = build_model(MODEL, SHAPE, len(BEFORE), 0)
    inputs = torch.as_tensor(standardise_bytes(x, OWN_MEAN, OWN_STD))
    options = SGDOptions(CENTRAL_EPOCHS, 32, 0.01, 0.9, 0.0, 2.0)
    sgd.train(model, inputs, torch.as_tensor(y), options, [], torch.Generator().manual_seed(0))
    test_x, test_y = images(1, 2000, BEFORE, test=True)
    tested = torch.as_tensor(standardise_bytes(test_x, OWN_MEAN, OWN_STD))
    scores = evaluation.test(model, tested, torch.as_tensor(test_y))
    print(f"trained centrally on classes 0 to 4: accuracy {scores.score:.3f} there", flush=True)
    save_file({name: t for name, t in model.state_dict().items() if not name.startswith("fc3")}, file)


def make_fleet(folder: Path, seed: int, clients: int, count: int) -> None:
    x, y = images(100 + seed, clients * count, FLEET)
    test_x, test_y = images(200 + seed, clients * TESTED, FLEET, test=True)
    for client in range(clients):
        own, tested = slice(client * count, (client + 1) * count), slice(client * TESTED, (client + 1) * TESTED)
        turned = [np.rot90(part, 2 * (client % 2), axes=(2, 3)) for part in (x[own], test_x[tested])]
        (folder / f"client-{client:02d}").mkdir(parents=True, exist_ok=True)
        np.savez(
            folder / f"client-{client:02d}" / "data.npz", x=turned[0], y=y[own], x_test=turned[1], y_test=test_y[tested]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    assert os.environ.get("BOUQUET_DATA_DIR"), "set BOUQUET_DATA_DIR to the folder that holds FashionMNIST"
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "centrally.safetensors"
    if not file.exists():
        train_centrally(file)
    starts = {
        "nothing": [],
        "weights": [f"model.weights={file}"],
        "weights, convolutions frozen": [f"model.weights={file}", "model.frozen=conv1,conv2"],
        "weights, all but the head frozen": [f"model.weights={file}", "model.frozen=all-but-head"],
    }
    methods = {"fedavg": [], "fesem": ["strategy.num_clusters=2"]}
    print("| strategy | start | accuracy, rounds 1, 3, 5 and end | MB down, up | ARI |")
    for method, options in methods.items():
        for start, changes in starts.items():
            found = []
            for seed in range(arguments.seeds):
                fleet = arguments.out / f"fleet-{arguments.images}-{seed}"
                if not fleet.exists():
                    make_fleet(fleet, seed, arguments.clients, arguments.images)
                run = arguments.out / f"{method}-{start.replace(', ', '-').replace(' ', '-')}-{arguments.images}-{seed}"
                settings = load_settings(
                    None,
                    [
                        "data.dataset=own",
                        f"data.data_dir={fleet}",
                        f"data.classes={','.join(NAMES)}",
                        f"data.input_shape={','.join(map(str, SHAPE))}",
                        f"model.name={MODEL}",
                        f"strategy.name={method}",
                        f"run.seed={seed}",
                        f"run.rounds={arguments.rounds}",
                        "simulation.engine=inline",
                        *options,
                        *changes,
                    ],
                )
                if not (run / "summary.json").exists():
                    simulate(settings, run)
                found.append(outcome(run))
            print(line(method, start, found), flush=True)


def outcome(run: Path) -> tuple[list[float], float, float, float]:
    """Accuracy after rounds 1, 3, 5 and at the end; MB down and up; the adjusted Rand index with the two halves."""
    summary = json.loads((run / "summary.json").read_text())
    rounds = [json.loads(text) for text in (run / "rounds.jsonl").read_text().splitlines()]
    # A line tells of the models that its round began with.
    accuracies = [rounds[after]["accuracy_macro"] for after in (1, 3, 5)] + [summary["accuracy_macro"]]
    from bouquet.common.metrics import adjusted_rand_index

    names = sorted(summary["assignment"])
    halves = np.array([int(name.rpartition("-")[2]) % 2 for name in names])
    ari = adjusted_rand_index(halves, np.array([summary["assignment"][name] for name in names]))
    return accuracies, summary["bytes_down"] / 1e6, summary["bytes_up"] / 1e6, ari


def line(method: str, start: str, found: list[tuple[list[float], float, float, float]]) -> str:
    accuracies = np.array([f[0] for f in found])
    shown = ", ".join(f"{m:.3f}" for m in accuracies.mean(axis=0)[:-1])
    end = f"{accuracies[:, -1].mean():.3f} ± {accuracies[:, -1].std():.3f}"
    down, up, ari = (np.mean([f[i] for f in found]) for i in (1, 2, 3))
    return f"| `{method}` | {start} | {shown}, {end} | {down:.2f}, {up:.2f} | {ari:.2f} |"


if __name__ == "__main__":
    main()
