"""What a comparison measures in a run, and how the numbers are written.

A metric is named by a text: a number of the summary (``accuracy_macro``), a number that the strategy recorded
(``strategy.KEY``), the effort until a target was reached (``rounds_to_accuracy_0.8``) or the accuracy had converged
(``rounds_to_convergence``), or the communication time (``seconds_at_2mbit``, ``seconds_at_2mbit_to_accuracy_0.8``).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bouquet.common import metrics
from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest
from bouquet.server.record.reader import Run, is_number

Kind = Literal["fraction", "count", "megabytes", "seconds", "number"]

SUMMARY_METRICS: dict[str, Kind] = {
    "accuracy_micro": "fraction",
    "accuracy_macro": "fraction",
    "accuracy_worst_decile": "fraction",
    "accuracy_deviation": "fraction",
    "f1_micro": "fraction",
    "f1_macro": "fraction",
    "purity": "fraction",
    "ari": "fraction",
    "clusters": "count",
    "bytes_up": "megabytes",
    "bytes_down": "megabytes",
    "bytes_total": "megabytes",
    "seconds": "seconds",
}
QUANTITIES = ("macro", "micro", "worst_decile", "deviation")  # of a score other than the accuracy: mae_macro
TARGETS = {
    "accuracy": "accuracy_macro",
    "accuracy_macro": "accuracy_macro",
    "accuracy_micro": "accuracy_micro",
    "purity": "purity",
    "ari": "ari",
}
EFFORTS: dict[str, Kind] = {"rounds": "count", "bytes": "megabytes", "seconds": "seconds"}
UNITS: dict[Kind, str] = {"fraction": "", "count": "", "megabytes": "MB", "seconds": "s", "number": ""}
NEVER = "—"
CONVERGED_WITHIN = 0.01
CONVERGED_OVER = 6  # two whole cycles of DC-PFL, whose accuracy goes up and down in three rounds

_TARGET = rf"(?:(?P<target>{'|'.join(TARGETS)})_(?P<value>[0-9]*\.?[0-9]+)|(?P<converged>convergence))"
_EFFORT = re.compile(rf"(?P<effort>{'|'.join(EFFORTS)})_to_{_TARGET}")
_LINK = re.compile(rf"seconds_at_(?P<rate>[0-9]*\.?[0-9]+)mbit(_to_{_TARGET})?")


class MetricError(BouquetError):
    """A metric that does not exist."""


@dataclass(frozen=True)
class Metric:
    """One metric by name, and how its values are written."""

    name: str
    kind: Kind

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({UNITS[self.kind]})" if UNITS[self.kind] else self.name

    def of(self, run: Run, tested: str = "method") -> float | None:
        """The value in a finished run, in bytes, seconds, rounds or as a fraction; None where there is none.

        ``tested = "trained"`` is of the devices' models after local training, in the last round that each trained in,
        and not of the models that the method tests. None means that a target was never reached, or that the record does
        not hold the number.
        """
        is_score = self.kind == "fraction" or self.name.startswith(f"{run.score.key}_")
        if tested == "trained" and (is_score or "_to_" in self.name):
            return self._of_trained(run)
        if (match := _EFFORT.fullmatch(self.name)) is not None:
            reached = _reached(run, match)
            return None if reached is None else _effort(run, match["effort"], reached)
        if (match := _LINK.fullmatch(self.name)) is not None:
            if "_to_" not in self.name:
                return link_seconds(run, float(match["rate"]))
            reached = _reached(run, match)
            return None if reached is None else link_seconds(run, float(match["rate"]), reached)
        summary = run.summary or {}
        if self.name == "bytes_total":
            up, down = summary.get("bytes_up"), summary.get("bytes_down")
            return float(up + down) if is_number(up) and is_number(down) else None
        if self.name.startswith("strategy."):
            summary = summary.get("strategy_record") or {}
        value = summary.get(self.name.removeprefix("strategy."))
        return float(value) if is_number(value) else None

    def _of_trained(self, run: Run) -> float | None:
        """As `of`; the record has accuracies of trained models, and neither F1 nor targets."""
        by_client = accuracies(run, "trained")
        values = list(by_client.values())
        match self.name.removeprefix(f"{run.score.key}_"):
            case "macro":
                return metrics.macro(values)
            case "worst_decile":
                return metrics.worst_decile(values, run.score.higher_is_better)
            case "deviation":
                return metrics.deviation(values)
            case "micro":
                tested_on = [run.last_numbers[client].get("tested") or 0 for client in by_client]
                return metrics.micro(values, tested_on)
            case "purity" | "ari":
                return self.of(run)
        return None

    def mean_text(self, values: Sequence[float | None]) -> str:
        """Mean ± sample deviation over seeds, with (k/n) where only k of the n seeds have a value."""
        present = [value for value in values if value is not None]
        share = "" if len(present) == len(values) else f" ({len(present)}/{len(values)})"
        if not present:
            return NEVER + share
        mean = statistics.fmean(present)
        if len(present) == 1:
            return self.number_text(mean) + share
        return f"{self.number_text(mean, like=mean)} ± {self.number_text(statistics.stdev(present), like=mean)}{share}"

    def number_text(self, value: float, like: float | None = None) -> str:
        """One value as it stands in a table, with as many decimals as the mean ``like`` has there."""
        reference = abs(value if like is None else like)
        if self.kind == "fraction":
            return re.sub(r"^(-?)0\.", r"\1.", f"{value:.3f}")
        if self.kind == "megabytes":
            value, reference = value / 1e6, reference / 1e6
        if self.kind == "count" and like is None and value.is_integer():
            return f"{value:.0f}"
        decimals = 1
        if self.kind in ("megabytes", "number"):
            decimals = next((n for n, limit in enumerate((1000, 100, 10, 0.1)) if reference >= limit), 4)
        return f"{value:.{decimals}f}"


def accuracies(run: Run, tested: str = "method") -> dict[str, float]:
    """Client → test accuracy at the end: as the method is tested, or of its model ``trained`` in its last round.

    A device that never trained has no ``trained`` model.
    """
    if tested == "method":
        return run.score_by_client
    own = {client: numbers.get(run.score.of("trained")) for client, numbers in run.last_numbers.items()}
    return {client: float(value) for client, value in own.items() if is_number(value)}


def parse_metric(name: str) -> Metric:
    """The metric of that name, or a `MetricError` that lists what there is."""
    if name in SUMMARY_METRICS:
        return Metric(name, SUMMARY_METRICS[name])
    if (match := _EFFORT.fullmatch(name)) is not None:
        return Metric(name, EFFORTS[match["effort"]])
    if (match := _LINK.fullmatch(name)) is not None and float(match["rate"]) > 0:
        return Metric(name, "seconds")
    if re.fullmatch(rf"strategy\.\w+|\w+_({'|'.join(QUANTITIES)})", name):
        return Metric(name, "number")
    raise MetricError(
        f"Unknown metric {name!r}; {nearest(name, SUMMARY_METRICS)}, strategy.KEY for a number that the "
        f"strategy records, {'|'.join(EFFORTS)}_to_TARGET_VALUE with the targets {', '.join(TARGETS)} "
        "(e.g. rounds_to_accuracy_0.8) or _to_convergence, and seconds_at_RATEmbit, alone or with either of the two."
    )


def rounds_to(run: Run, key: str, target: float) -> int | None:
    """Completed rounds when ``key`` first was at least ``target``; None if it never was.

    The test accuracy in line t of the record is that of the models after t - 1 rounds; purity is the one after round t.
    """
    x, y = run.outcome(key) if key.startswith("accuracy") else run.series(key)
    reached = x[y >= target]
    return int(reached[0]) if len(reached) else None


def rounds_to_convergence(run: Run) -> int | None:
    """Completed rounds from which on the mean accuracy was at most a point below what it had come to at the end.

    That is the mean of the last six tests. Where the accuracy goes up and down with a method's cycle, it is there for a
    test or two long before it stays. None where one of these six is further below, because a run that still swings has
    not converged, and where less than twelve were made: of a short run one cannot tell.
    """
    x, y = run.outcome("accuracy_macro")
    if len(y) < 2 * CONVERGED_OVER:
        return None
    below = np.flatnonzero(y < y[-CONVERGED_OVER:].mean() - CONVERGED_WITHIN)
    stays_from = int(below[-1]) + 1 if len(below) else 0
    return int(x[stays_from]) if stays_from <= len(x) - CONVERGED_OVER else None


def _reached(run: Run, match: re.Match[str]) -> int | None:
    """Completed rounds when the target of a metric's name was reached; None if it never was."""
    if match["converged"]:
        return rounds_to_convergence(run)
    return rounds_to(run, TARGETS[match["target"]], float(match["value"]))


def link_seconds(run: Run, rate: float, rounds: int | None = None) -> float:
    """Communication seconds of the first ``rounds`` rounds (all by default) over links of ``rate`` Mbit/s.

    Every client has a link of its own, on which up and down follow one another, and a round waits for the client that
    sends and receives the most (the setting of DC-PFL, section V-A: 2 Mbit/s a client). Latency is not counted.
    """
    lines = [line for line in run.rounds if rounds is None or line["round"] <= rounds]
    most = [max((up + down for up, down in (line.get("bytes_by_client") or {}).values()), default=0) for line in lines]
    return sum(most) * 8 / (rate * 1e6)


def _effort(run: Run, effort: str, rounds: int) -> float:
    """What the first ``rounds`` rounds took: their number, their bytes up and down, or their seconds."""
    lines = [line for line in run.rounds if line["round"] <= rounds]
    if effort == "rounds":
        return float(rounds)
    keys = ("bytes_up", "bytes_down") if effort == "bytes" else ("seconds",)
    return float(sum(line.get(key) or 0 for line in lines for key in keys))
