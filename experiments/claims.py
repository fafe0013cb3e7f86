"""What the finished cells of a comparison allow to say: differences to the reference rows, and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.compare import Results
from experiments.measures import accuracies
from experiments.statistics import CONFIDENCE, Difference, Ranks, paired_difference, ranks

REFERENCES = ("standalone", "fedavg")  # rows that every other is compared with, by strategy


def by_seed(results: Results, row: str, data: str) -> dict[int, Mapping[str, float]]:
    """Seed → client → accuracy of one row and column, of the cells that are done."""
    tested = results.table.row(row).tested
    return {r.cell.seed: accuracies(r.run, tested) for r in results.cells_of(row, data) if r.run is not None}


def references(results: Results) -> list[str]:
    """The labels of the rows that the others are compared with: each device alone, and FedAvg as received."""
    found = []
    for name in REFERENCES:
        labels = {
            cell.strategy
            for cell in results.table.cells
            if cell.settings.strategy.name == name and not cell.settings.personal.choose
        }
        found += [row.label for row in results.table.rows if row.label in labels and row.tested == "method"][:1]
    return found


def differences(results: Results, reference: str) -> dict[tuple[str, str], Difference | None]:
    """(row, data) → the row's paired difference to the reference; the reference itself is left out."""
    return {
        (row.label, data): paired_difference(by_seed(results, row.label, data), by_seed(results, reference, data))
        for row in results.table.rows
        if row.label != reference
        for data in results.table.data
    }


def gains(results: Results) -> dict[tuple[str, str], Difference]:
    """(row, data) → the row's paired difference to the better reference of that data: what it is worth to have it."""
    found = {}
    for data in results.table.data:
        means = {label: _mean(by_seed(results, label, data)) for label in references(results)}
        known = {label: mean for label, mean in means.items() if mean is not None}
        if not known:
            continue
        best = max(known, key=lambda label: known[label])
        other = by_seed(results, best, data)
        for row in results.table.rows:
            d = paired_difference(by_seed(results, row.label, data), other)
            if row.label not in known and d is not None:
                found[row.label, data] = d
    return found


def _mean(seeds: Mapping[int, Mapping[str, float]]) -> float | None:
    values = [sum(clients.values()) / len(clients) for clients in seeds.values() if clients]
    return sum(values) / len(values) if values else None


def row_ranks(results: Results) -> Ranks | None:
    """Ranks of the rows by mean accuracy over clients, each data set and seed a block; only whole blocks count."""
    found = {
        (row.label, data): by_seed(results, row.label, data)
        for row in results.table.rows
        for data in results.table.data
    }
    blocks = []
    for data in results.table.data:
        for seed in results.table.seeds:
            cells = {row.label: found[row.label, data].get(seed) for row in results.table.rows}
            if all(cells.values()):
                blocks.append({label: sum(one.values()) / len(one) for label, one in cells.items() if one})
    return ranks(blocks)


def difference_text(difference: Difference | None) -> str:
    """``+.012 [.004, .020]``, with ``≈`` before it where it is within noise; a dash where nothing is known."""
    if difference is None:
        return "—"
    d = difference
    mark = "≈ " if d.is_noise else ""
    return f"{mark}{_signed(d.mean)} [{_signed(d.low)}, {_signed(d.high)}]"


def claims_json(results: Results) -> dict[str, Any]:
    """Differences and ranks for a machine."""
    said: list[dict[str, Any]] = []
    for reference in references(results):
        for (row, data), d in differences(results, reference).items():
            if d is not None:
                said.append({"row": row, "data": data, "against": reference, **vars(d), "within_noise": d.is_noise})
    found = row_ranks(results)
    return {"confidence": CONFIDENCE, "differences": said, "ranks": None if found is None else vars(found)}


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1).replace("-", "−")
