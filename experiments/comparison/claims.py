"""What the finished cells of a comparison allow to say: differences to the reference rows, and ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bouquet.common.metrics import worst_decile
from bouquet.experiments.comparison.measures import accuracies
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.significance import (
    Difference,
    Measure,
    Ranks,
    holm,
    paired_difference,
    ranks,
)
from bouquet.experiments.comparison.table import ComparisonTable

REFERENCES = ("standalone", "fedavg")  # rows that every other is compared with, by strategy


def by_seed(results: Results, row: str, data: str) -> dict[int, Mapping[str, float]]:
    """Seed → client → score of one row and column, of the cells that are done."""
    tested = results.table.row(row).tested
    return {r.cell.seed: accuracies(r.run, tested) for r in results.cells_of(row, data) if r.run is not None}


def worth_by_seed(results: Results, row: str, data: str) -> dict[int, Mapping[str, float]]:
    """As `by_seed`, and more is always better: of an error its negative."""
    sign = 1 if results.table.score.higher_is_better else -1
    seeds = by_seed(results, row, data)
    return {seed: {client: sign * value for client, value in clients.items()} for seed, clients in seeds.items()}


def references(table: ComparisonTable) -> list[str]:
    """The labels of the rows that the others are compared with: each device alone, and FedAvg as received."""
    chosen = []
    for name in REFERENCES:
        labels = {
            cell.strategy
            for cell in table.cells
            if cell.settings.strategy.name == name and cell.settings.personal.serve == "own"
        }
        chosen += [row.label for row in table.rows if row.label in labels and row.tested == "method"][:1]
    return chosen


def differences(results: Results, measure: Measure | None = None) -> dict[tuple[str, str, str], Difference | None]:
    """(row, data, reference) → the row's paired difference to the reference, with Holm's correction over all of them.

    The references themselves are compared with each other. ``measure`` as in `paired_difference`.
    """
    return holm(
        {
            (row.label, data, reference): paired_difference(
                worth_by_seed(results, row.label, data), worth_by_seed(results, reference, data), measure
            )
            for reference in references(results.table)
            for row in results.table.rows
            if row.label != reference
            for data in results.table.data
        }
    )


def differences_in_the_mean(results: Results) -> dict[tuple[str, str], Difference | None]:
    """(row, other) → how far a row of the table's claims is ahead of each other one in the mean of the columns.

    A seed gives one number, its mean over columns of the means over clients; Holm over all of the table's claims.
    """
    claims, rows = results.table.claims, [row.label for row in results.table.rows]
    means = {row: _means_by_seed(results, row) for row in rows if claims}
    return holm({(row, one): paired_difference(means[row], means[one]) for row in claims for one in rows if one != row})


def _means_by_seed(results: Results, row: str) -> dict[int, dict[str, float]]:
    """Seed → column → the mean over its clients."""
    means: dict[int, dict[str, float]] = {}
    for column in results.table.data:
        for seed, clients in worth_by_seed(results, row, column).items():
            if clients:
                means.setdefault(seed, {})[column] = sum(clients.values()) / len(clients)
    return means


def worst_tenth(accuracies: NDArray[np.float64]) -> float:
    """The mean of the lowest tenth of accuracies (n,), n from 1."""
    worst = worst_decile(accuracies.tolist())
    assert worst is not None
    return worst


def row_ranks(results: Results) -> Ranks | None:
    """Ranks of the rows by mean accuracy over clients and seeds, each data set a block.

    Only seeds count that all rows have. A seed is no block of its own: seeds of one data set are far more alike than
    data sets are, and taken for independent ones they make differences of ranks look certain that are not.
    """
    blocks = []
    means = {row.label: _means_by_seed(results, row.label) for row in results.table.rows}
    for data in results.table.data:
        whole = set.intersection(
            *({seed for seed, columns in one.items() if data in columns} for one in means.values())
        )
        if whole:
            blocks.append(
                {row: sum(one[seed][data] for seed in sorted(whole)) / len(whole) for row, one in means.items()}
            )
    return ranks(blocks)


def fewer_devices(results: Results) -> list[str]:
    """A sentence for each row and column some of whose devices have no score: its mean is not over the same devices."""
    lines = []
    for data in results.table.data:
        rows = {row.label: by_seed(results, row.label, data) for row in results.table.rows}
        most = {seed: set().union(*(one.get(seed, ()) for one in rows.values())) for seed in results.table.seeds}
        for row, seeds in rows.items():
            lacking = {seed: len(most[seed]) - len(clients) for seed, clients in seeds.items()}
            if any(lacking.values()):
                lines.append(
                    f"{row} has no score of {sum(lacking.values())} devices that others have in {data} (seeds "
                    f"{', '.join(str(seed) for seed in sorted(lacking) if lacking[seed])}): "
                    "its mean and rank are over the rest."
                )
    return lines


def difference_text(difference: Difference | None) -> str:
    """``+.012 [.004, .020]``, with ``≈`` before it where nothing can be claimed; a dash where nothing is known."""
    if difference is None:
        return "—"
    d = difference
    mark = "≈ " if d.is_noise else ""
    if d.low is None or d.high is None:
        return f"{mark}{_signed(d.mean)}"
    return f"{mark}{_signed(d.mean)} [{_signed(d.low)}, {_signed(d.high)}]"


def p_text(difference: Difference | None) -> str:
    """``.045``, ``< .001``, or a dash where there is none."""
    if difference is None or difference.p_value is None:
        return "—"
    return "< .001" if difference.p_value < 0.001 else f"{difference.p_value:.3f}".removeprefix("0")


def _signed(value: float) -> str:
    text = f"{value:+.3f}"
    return (text[0] + text[1:].removeprefix("0")).replace("-", "−")
