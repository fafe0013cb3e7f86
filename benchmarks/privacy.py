"""What `[privacy]` costs in accuracy: clipping alone, and noise from very little to what a small ε asks for.

    python benchmarks/privacy.py --seeds 2 --out DIR

Rotated digits, twenty clients in four groups, 15 rounds. ``privacy.scores = "send"``, so that there is an accuracy to
show: ε is that of the models. Restartable: what DIR holds is not run again.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import numpy as np

os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")

from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation.run import simulate

STRATEGIES = ("fedavg", "fesem", "dc-pfl")
NOISE = (None, 0.0, 0.003, 0.01, 0.03, 0.1, 1.0)  # multiples of the clipping norm; None: without [privacy]


def once(out, strategy, noise, clip, seed, rounds):
    """Accuracy and the greatest ε of one run, from its folder if it was there before."""
    folder = out / f"{strategy}-{noise}-{clip}-{seed}"
    if not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        values = {
            "strategy.name": strategy,
            "data.partition": "rotated",
            "data.clients": 20,
            "data.groups": 4,
            "run.rounds": rounds,
            "run.seed": seed,
            "simulation.engine": "inline",
        }
        if strategy == "fesem":
            values["strategy.num_clusters"] = 4
        if noise is not None:
            values |= {"privacy.clip_norm": clip, "privacy.noise_multiplier": noise, "privacy.scores": "send"}
        found = simulate(parse_settings({}, values), folder)
        print(f"{strategy}, noise {noise}, seed {seed}: {found['accuracy_macro']:.3f}", flush=True)
    summary = json.loads((folder / "summary.json").read_text())
    return summary["accuracy_macro"], (summary.get("privacy") or {}).get("epsilon_most")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for noise in NOISE:
        cells, spent = [], None
        for strategy in STRATEGIES:
            runs = [once(given.out, strategy, noise, given.clip, seed, given.rounds) for seed in range(given.seeds)]
            accuracy = [run[0] for run in runs]
            spread = f" ± {np.std(accuracy, ddof=1):.3f}" if len(accuracy) > 1 else ""
            cells.append(f"{np.mean(accuracy):.3f}{spread}")
            spent = runs[0][1] if spent is None else max(spent, runs[0][1])
        name = "without" if noise is None else "clipped only" if noise == 0 else f"{noise:g}"
        rows.append(f"| {name} | {'–' if spent is None else f'{spent:,.3g}'} | " + " | ".join(cells) + " |")
    print("\n| noise | ε | " + " | ".join(STRATEGIES) + " |\n| --- | --- |" + " --- |" * len(STRATEGIES))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
