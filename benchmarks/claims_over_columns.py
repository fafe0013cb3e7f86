"""One row of a finished table against every other: over all columns together, and no worse in each of them.

    python -m benchmarks.claims_over_columns OUT/clients.csv --row "FeSEM (auto), mixture" --margin 0.01

``OUT`` is the folder of ``bouquet compare``. Seeds are the sample: a row's worth is the mean over columns, of the mean
over clients, by seed, and differences are paired by seed (Student's t; Holm over the rows). *Not inferior* is tested in
each column and against each row, one-sided: the row is behind by less than ``--margin`` (Holm over rows and columns).
Of an error, less is better: ``--less-is-better``.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.comparison.significance import (
    CONFIDENCE,
    Difference,
    differences_by_seed,
    holm,
    holm_p_values,
    paired_difference,
)

Scores = dict[tuple[str, str], dict[int, dict[str, float]]]  # (row, column) → seed → client → score


def read_scores(file: Path, sign: float = 1.0) -> Scores:
    """The scores of ``clients.csv``, times ``sign``."""
    found: Scores = defaultdict(lambda: defaultdict(dict))
    with file.open(newline="") as lines:
        for strategy, data, seed, client, score in list(csv.reader(lines))[1:]:
            if score:
                found[strategy, data][int(seed)][client] = sign * float(score)
    return found


def over_columns(scores: Scores, row: str, other: str, columns: list[str]) -> Difference | None:
    """The difference of the mean over columns, paired by seed; columns stand where clients do."""
    means: dict[str, dict[int, dict[str, float]]] = {row: defaultdict(dict), other: defaultdict(dict)}
    for name, by_seed in means.items():
        for column in columns:
            for seed, clients in scores[name, column].items():
                by_seed[seed][column] = float(np.mean(list(clients.values())))
    return paired_difference(means[row], means[other])


def not_inferior(differences: NDArray[np.float64], margin: float) -> float | None:
    """The p-value of being behind by the margin or more, of a column's mean differences by seed (n,); no p of one."""
    if len(differences) < 2:
        return None
    if np.ptp(differences) < 1e-9:
        return 0.0 if differences.mean() > -margin else 1.0
    return float(stats.ttest_1samp(differences, -margin, alternative="greater").pvalue)


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--row", required=True)
    parser.add_argument("--against", action="append", help="rows to compare with; all others where none is given")
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--less-is-better", action="store_true")
    asked = parser.parse_args()
    scores = read_scores(asked.file, -1.0 if asked.less_is_better else 1.0)
    columns = list(dict.fromkeys(column for _, column in scores))
    others = asked.against or [row for row in dict.fromkeys(row for row, _ in scores) if row != asked.row]

    adjusted = holm({other: over_columns(scores, asked.row, other, columns) for other in others})
    by_seed = {
        (other, column): np.array(differences_by_seed(scores[asked.row, column], scores[other, column])[0])
        for other in others
        for column in columns
    }
    if not any(adjusted.values()):
        parser.error(f"{asked.file} has no seed and client that --row {asked.row!r} and another row both have.")
    shown = holm_p_values({claim: not_inferior(found, asked.margin) for claim, found in by_seed.items()})
    print(f"{asked.row} less the other, mean over {len(columns)} columns; p after Holm over {len(others)} rows")
    print(
        "| | difference | p | not inferior in | behind by the margin in the mean |\n| --- | ---: | ---: | ---: | --- |"
    )
    for other, difference in adjusted.items():
        if difference is None:
            continue
        held = [c for c in columns if (p := shown[other, c]) is not None and p < 1 - CONFIDENCE]
        behind = [c for c in columns if len(found := by_seed[other, c]) and found.mean() < -asked.margin]
        p_value = "–" if difference.p_value is None else f"{difference.p_value:.2g}"
        print(f"| {other} | {difference.mean:+.3f} | {p_value} | {len(held)} | {', '.join(behind) or 'none'} |")


if __name__ == "__main__":
    main()
