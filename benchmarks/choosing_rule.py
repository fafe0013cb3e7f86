"""Which rule chooses best what a device keeps? The scores, priors and margins that ``common/model_selection.py`` could
have.

FedAvg in a bare loop, 20 devices, an MLP 784-64-10, 10 rounds of 2 epochs on four fifths of each device's training
data; beside it each device alone, on all of its training data (the model that would be served) and on four fifths (the
one that is judged). On the last fifth each rule chooses between alone, FedAvg's model, and that after local training.
The truth is the accuracy on up to 800 further samples of the device's own distribution.

    python benchmarks/choosing_rule.py --data-dir FOLDER

About two minutes of one core. Printed for each rule, over all settings: regret to the kind of model that is best for
the setting, and to the best one on each device; then the least gain over each device alone of any setting, and of the
worst tenth of the devices of any setting.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bouquet.client.data.loading import load_partition
from bouquet.common import model_selection
from bouquet.common.model_selection import Posterior

PARTITIONS: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("rotated", {"groups": 4}),
    ("label-permuted", {"groups": 4}),
    ("dirichlet", {"beta": 0.1, "minimum": 1000}),
    ("pathological", {"classes_per_client": 2}),
    ("dominant", {"heterogeneity": "mid"}),
]
KINDS = ("received", "personal")
DEVICES, ROUNDS, EPOCHS, HELD_OUT = 20, 10, 2, 0.2
Scores = NDArray[np.float64]


def train(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(y), generator=generator).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimiser.step()
    return model


def setting(partition: str, options: dict[str, Any], samples: int, seed: int, data_dir: str) -> list[dict[str, Any]]:
    """One device each: its kinds of models, with the outputs on what was held out and the true accuracy."""
    torch.manual_seed(seed)
    initial = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    devices = []
    for part in range(DEVICES):
        most = None if partition == "dirichlet" else 1200
        data = load_partition(
            *("fashion-mnist",),
            data_dir=data_dir,
            partition=partition,
            partition_id=part,
            num_partitions=DEVICES,
            seed=seed,
            samples_per_client=most,
            **options,
        )
        x = torch.as_tensor(np.concatenate([data.train_x, data.test_x]))
        y = torch.as_tensor(np.concatenate([data.train_y, data.test_y]))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(part))
        own, held = order[: int(0.8 * samples)], max(1, round(HELD_OUT * int(0.8 * samples)))
        further = order[samples : samples + 800]
        devices.append((x[own], y[own], held, x[further], y[further]))
    shared = copy.deepcopy(initial)
    alone, judged = ([copy.deepcopy(initial) for _ in devices] for _ in range(2))
    for round_ in range(ROUNDS):
        for model, other, (x, y, held, _, _) in zip(alone, judged, devices, strict=True):
            train(model, x, y, round_)
            train(other, x[held:], y[held:], round_)
        trained = [train(copy.deepcopy(shared), x[held:], y[held:], round_) for x, y, held, _, _ in devices]
        states = [model.state_dict() for model in trained]
        shared.load_state_dict({name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]})
    found = []
    for number, (x, y, held, further, truth) in enumerate(devices):
        tuned = train(copy.deepcopy(shared), x[held:], y[held:], ROUNDS)
        pairs = {"alone": (alone[number], judged[number]), "received": (shared, shared), "personal": (tuned, tuned)}
        with torch.no_grad():
            outputs = {kind: judge(x[:held]).softmax(1).numpy() for kind, (_, judge) in pairs.items()}
            accuracy = {k: float((m(further).argmax(1) == truth).float().mean()) for k, (m, _) in pairs.items()}
        found.append({"outputs": outputs, "labels": y[:held].numpy(), "accuracy": accuracy})
    return found


def cross_entropy(p: NDArray[Any], y: NDArray[Any]) -> Scores:
    return np.asarray(-np.log(p[np.arange(len(y)), y] + 1e-12), dtype=float)


def brier(p: NDArray[Any], y: NDArray[Any]) -> Scores:
    """½ ‖p − e_y‖² of each sample."""
    return np.asarray(0.5 * ((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1), dtype=float)


def both(p: NDArray[Any], y: NDArray[Any]) -> Scores:
    """The mean of errors and Brier."""
    return 0.5 * (model_selection.errors(p, y) + brier(p, y))


SCORES: dict[str, Callable[[NDArray[Any], NDArray[Any]], Scores]] = {
    "errors": model_selection.errors,
    "cross-entropy": cross_entropy,
    "Brier": brier,
    "errors and Brier": both,
}


def chosen(devices: list[dict[str, Any]], score: str, fleet: bool, margin: float) -> list[str]:
    """The kind that each device keeps by a rule."""
    scores = [{k: SCORES[score](p, d["labels"]) for k, p in d["outputs"].items()} for d in devices]
    reports = [(len(s["alone"]), {k: model_selection.difference(s[k], s["alone"]) for k in KINDS}) for s in scores]
    prior = model_selection.pool(reports) if fleet else {}
    places = []
    for samples, own in reports:
        if fleet:
            beliefs = {k: model_selection.posterior(own[k], samples, prior[k]) for k in KINDS}
        else:
            beliefs = {k: Posterior(own[k].mean, (own[k].variance / samples) ** 0.5) for k in KINDS}
        model_selection.MARGIN = margin
        places.append(model_selection.choose(beliefs))
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = []
    for (partition, more), samples, seed in itertools.product(PARTITIONS, (20, 80, 320), options.seeds):
        devices = setting(partition, more, samples, seed, options.data_dir)
        settings.append(devices)
        means = {k: f"{np.mean([d['accuracy'][k] for d in devices]):.3f}" for k in devices[0]["accuracy"]}
        print(partition, samples, "seed", seed, means, flush=True)
    print("score | prior | margin | regret: to the best kind, to the best model | least gain: mean, worst tenth")
    for score, fleet, margin in itertools.product(SCORES, (False, True), (0.0, 1.0, 2.0)):
        rows = []
        for devices in settings:
            kept = [d["accuracy"][k] for d, k in zip(devices, chosen(devices, score, fleet, margin), strict=True)]
            alone = [d["accuracy"]["alone"] for d in devices]
            best_kind = max(float(np.mean([d["accuracy"][k] for d in devices])) for k in devices[0]["accuracy"])
            best = float(np.mean([max(d["accuracy"].values()) for d in devices]))
            tenth = len(devices) // 10
            worst = float(np.mean(sorted(kept)[:tenth]) - np.mean(sorted(alone)[:tenth]))
            mean = float(np.mean(kept))
            rows.append((best_kind - mean, best - mean, mean - float(np.mean(alone)), worst))
        regret, to_best, gains, tenths = (np.array(column) for column in zip(*rows, strict=True))
        said = f"{regret.mean():.4f}, {to_best.mean():.4f} | {gains.min():+.4f}, {tenths.min():+.4f}"
        print(f"{score} | {'fleet' if fleet else 'none'} | {margin:g} | {said}")


if __name__ == "__main__":
    main()
