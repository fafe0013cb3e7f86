"""DC-PFL's bytes over whole cycles of α rounds, as a share of what travels when every layer does, from run folders.

``last cycle`` is the mean accuracy of its rounds, less that of the last one: whether the last is a high point.
Round 1 sends every layer up and down, as FedAvg does in every round. A cycle is α rounds after T_start; one with a
trial, or next to one, sends whole models for it and is counted apart. From the repository's root:

    python benchmarks/layer_wise_cycles.py runs/dc-pfl/cells/dc-pfl-*
"""

import argparse
from pathlib import Path
from typing import Any

from bouquet.server.record.reader import read_run


def cycles(lines: list[dict[str, Any]], rounds: int, factor: int) -> tuple[list[float], list[float], float]:
    """Shares of quiet cycles, of cycles around a trial, and of the whole run."""
    sent = [line["bytes_up"] + line["bytes_down"] for line in lines]
    tried = [line["strategy"].get("trial") is not None for line in lines]
    quiet: list[float] = []
    busy: list[float] = []
    for start in range(rounds, len(sent) - factor + 1, factor):
        share = sum(sent[start : start + factor]) / (factor * sent[0])
        around = tried[max(0, start - 1) : start + factor + 1]
        (busy if any(around) else quiet).append(share)
    return quiet, busy, sum(sent) / (len(sent) * sent[0])


def last_cycle(lines: list[dict[str, Any]], factor: int) -> float:
    """Mean accuracy of the last cycle's rounds, less that of the last one."""
    scores = [line["accuracy_macro"] for line in lines[-factor:]]
    return float(sum(scores) / len(scores) - scores[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--discrepancy-rounds", type=int, default=5, help="T_start of the runs")
    parser.add_argument("--slow-factor", type=int, default=3, help="α of the runs")
    options = parser.parse_args()
    print(f"{'quiet cycles':>14} {'with trials':>14} {'whole run':>10} {'last cycle':>11}  run")
    for folder in options.runs:
        if not (folder / "rounds.jsonl").is_file():
            continue
        lines = read_run(folder).rounds
        quiet, busy, whole = cycles(lines, options.discrepancy_rounds, options.slow_factor)
        texts = [f"{sum(part) / len(part):.3f} ({len(part):2d})" if part else "–" for part in (quiet, busy)]
        last = last_cycle(lines, options.slow_factor)
        print(f"{texts[0]:>14} {texts[1]:>14} {whole:>10.3f} {last:>+11.4f}  {folder.name}")


if __name__ == "__main__":
    main()
