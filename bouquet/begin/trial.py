"""``bouquet try``: whether federation pays for some devices, by a small comparison of their own data.

Each row is run with each learning rate of one grid. What is best on a part of its own, which nothing is tested on,
chooses the rate of each row, and the row to advise: so one claim is tested, and luck among many rows is none of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from bouquet.begin.draft import INIT_RATE, rate_line
from bouquet.begin.parts import DeviceSamples, settings_of_parts, write_parts
from bouquet.common.settings import Settings
from bouquet.common.system.files import write_atomically
from bouquet.common.task.score import ACCURACY, Score
from bouquet.common.task.task import task_of
from bouquet.experiments.comparison.claims import by_seed, worth_by_seed
from bouquet.experiments.comparison.grid import make_table
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.significance import Difference, paired_difference
from bouquet.experiments.comparison.table import STANDARD_ROWS, ComparisonTable
from bouquet.server.monitoring.outliers import differing_speeds

SEEDS = tuple(range(8))
CHOSEN_ON_SEEDS = (100, 101)
LEARNING_RATES = (0.03, 0.1, 0.3)  # one grid for every row
ROUNDS = 15
ALONE = "Standalone"
COLUMN = "your devices"
MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class RowResult:
    """What a row came to: its mean score, the gain over each device alone with its noise, and by device.

    Gains are positive where the row is better. ``promise`` is what it was worth on what is chosen on, ``claimed`` says
    that its gain is not noise, ``learned`` that it is better than `a_guess` by more than noise.
    """

    row: str
    strategy: str
    learning_rate: float
    promise: float
    score: float
    gain: Difference | None
    by_device: Mapping[str, float]
    claimed: bool
    learned: bool = True

    @property
    def mean(self) -> float:
        """Of the gain."""
        return self.gain.mean if self.gain else 0.0

    @property
    def pays(self) -> bool:
        """Whether it is better than each device alone, and not by chance."""
        return self.claimed and self.mean > 0

    @property
    def noise(self) -> float:
        """Half of the interval."""
        return self.gain.mean - self.gain.low if self.gain and self.gain.low is not None else 0.0


def trial_table(
    settings: Settings, devices: Mapping[str, DeviceSamples], out: Path, rounds: int | None, yours: str
) -> ComparisonTable:
    """The rows on these devices' samples, which are written below ``out``; ``yours`` is what the settings say."""
    parts = (out / "data").absolute()
    write_parts(devices, parts, settings.data.test_fraction, SEEDS)
    shape = tuple(next(iter(devices.values())).x.shape[1:])
    base = settings_of_parts(settings, shape).model_dump(mode="json", exclude_unset=True)
    strategy = base.pop("strategy", {})
    base["run"] = {"rounds": rounds or min(ROUNDS, settings.run.rounds)}
    base.get("train", {}).pop("learning_rate", None)
    base.pop("personal", None)
    serve = {"personal.serve": settings.personal.serve}  # the other rows have what a method itself has
    last = {"label": yours, "name": settings.strategy.name, **strategy, "set": serve}
    own = [*STANDARD_ROWS, {"label": "FeSEM", "name": "fesem", "num_clusters": "auto"}]
    table = make_table(
        {
            "name": "try",
            "seeds": list(SEEDS),
            "metrics": [task_of(settings).score.of("macro")],
            "base": base,
            "strategy": [*own, last],
            "data": [{"label": COLUMN, "dataset": "own", "data_dir": str(parts / f"s{SEEDS[0]}")}],
            "tune": {"seeds": list(CHOSEN_ON_SEEDS), "train.learning_rate": list(LEARNING_RATES)},
        }
    )
    assert table.tune is not None
    cells = tuple(
        replace(one, settings=one.settings.with_overrides({"data.data_dir": str(parts / f"s{one.seed}")}))
        for one in table.cells
    )
    return replace(table, cells=cells, tune=replace(table.tune, overrides={"data.data_dir": str(parts / "chosen-on")}))


def a_guess(results: Results, devices: Mapping[str, DeviceSamples]) -> float | None:
    """The mean score of who answers each device's most frequent class, or of numbers their mean; None: not known."""
    if task_of(results.table.cells[0].settings).has_classes:
        return fmean(max(Counter(one.y.tolist()).values()) / len(one.y) for one in devices.values())
    runs = [one.run for one in results.cells_of(ALONE, COLUMN) if one.run]
    naive = [value for run in runs if (value := run.final("naive_macro")) is not None]
    return fmean(naive) if naive else None


def outcomes(results: Results, in_order: bool, guess: float | None = None) -> list[RowResult]:
    """Every row that was run, in the table's order; ``guess`` is `a_guess`.

    A gain is claimed where its interval over seeds does not hold 0. Where the newest part is tested, which is the same
    for every seed, that over devices must not either.
    """
    table = results.table
    worth = {row.label: worth_by_seed(results, row.label, COLUMN) for row in table.rows}
    found, sign = [], 1 if table.score.higher_is_better else -1
    for row in (label for label, seeds in worth.items() if any(seeds.values())):
        gain = None if row == ALONE else paired_difference(worth[row], worth[ALONE])
        devices = _by_device(worth[row], worth[ALONE])
        claimed = gain is not None and not gain.is_noise and not (in_order and _over_devices(devices).is_noise)
        scores = [score for clients in by_seed(results, row, COLUMN).values() for score in clients.values()]
        over_guess = guess is not None and paired_difference(
            worth[row], {seed: dict.fromkeys(clients, sign * guess) for seed, clients in worth[row].items()}
        )
        learned = not over_guess or (over_guess.mean > 0 and not over_guess.is_noise)
        name = results.cells_of(row, COLUMN)[0].cell.settings.strategy.name
        choice = table.choices[row, COLUMN]
        tried = next(scores for values, scores in choice.tried if values == choice.values)
        promise = fmean(score for score in tried if score is not None) * sign
        rate = choice.values["train.learning_rate"]
        found.append(RowResult(row, name, rate, promise, fmean(scores), gain, devices, claimed, learned))
    return found


def _by_device(row: Mapping[int, Mapping[str, float]], alone: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Device → mean gain over the seeds."""
    clients = sorted({client for clients in row.values() for client in clients})
    gains = {
        client: [row[s][client] - alone[s][client] for s in row if client in row[s] and client in alone.get(s, {})]
        for client in clients
    }
    return {client: sum(values) / len(values) for client, values in gains.items() if values}


def _over_devices(gains: Mapping[str, float]) -> Difference:
    """The mean gain with devices as the sample."""
    found = paired_difference(
        {k: {"": gain} for k, gain in enumerate(gains.values())}, {k: {"": 0.0} for k in range(len(gains))}
    )
    assert found is not None
    return found


def candidate(found: Sequence[RowResult]) -> RowResult:
    """The row to advise, if it is better than alone: that which promised most; of equals the last, the settings'."""
    return max(reversed([one for one in found if one.gain]), key=lambda one: round(one.promise, 6))


def gain_text(score: Score, one: RowResult) -> str:
    """``+4.2 ± 1.1`` points of an accuracy, or in the unit of an error."""
    if one.gain is None:
        return "–"
    noise = "" if one.gain.low is None else f" ± {amount(score, one.noise)}"
    return f"{'+' if one.mean >= 0 else '−'}{amount(score, abs(one.mean))}{noise}"


def amount(score: Score, value: float) -> str:
    """A difference of scores: points of an accuracy, else in two digits."""
    return f"{100 * value:.1f}" if score == ACCURACY else score.number(float(f"{value:.2g}"))


def unit_of(score: Score) -> str:
    """What a gain is counted in."""
    return "points" if score == ACCURACY else score.unit or score.label


def advice(found: Sequence[RowResult], score: Score, guess: float | None = None) -> str:
    """What to do, in a sentence or two."""
    if guess is not None and not any(one.learned for one in found):
        return (
            f"Nobody learned: no row is better than a guess without a model ({score.label} {score.text(guess)}), so "
            "nothing can be said of federation. Try it with more samples, more rounds (--rounds), or a smaller "
            "train.batch_size."
        )
    best = candidate(found)
    gain = f"{gain_text(score, best)} {unit_of(score)}"
    if not best.pays:
        what = "is no better than each device alone" if best.mean <= 0 else "may be better by chance"
        return (
            f"Do not federate on the strength of this: {best.row}, the best row on the samples to choose on, {what} "
            f"({gain}). More samples, or more devices, may tell."
        )
    by_gain = sorted(best.by_device.items(), key=lambda item: -item[1])
    most = ", ".join(f"{name} (+{amount(score, gain)})" for name, gain in by_gain[:MOST_NAMED] if gain > 0)
    worse = [f"{name} (−{amount(score, -gain)})" for name, gain in by_gain if gain < 0]
    return f"Take {best.row}: {gain} over each device alone. Most gain {most}; worse off: {', '.join(worse) or 'none'}."


def speed_advice(results: Results) -> str:
    """What to set where devices differ in speed, as far as the settings say so (`simulation.speeds`); else nothing."""
    runs = [one.run.rounds[:2] for one in results.cells if one.run and one.cell.settings.simulation.speeds]
    return next(filter(None, map(differing_speeds, runs)), "")


def what_is_put(found: Sequence[RowResult]) -> str:
    """What the `lines_to_put` are: the row that is advised, or the rate that suits the settings' own best."""
    best, _ = _taken(found)
    return "What was best here" if best.pays else f"The learning rate that suited {best.row} best"


def lines_to_put(found: Sequence[RowResult]) -> str:
    """The lines of the settings file for what is advised; where nothing is, the learning rate of the settings' row."""
    best, other = _taken(found)
    return f"{_method(best) if other else ''}[train]\nlearning_rate = {best.learning_rate:g}"


def put_into(file: Path, found: Sequence[RowResult]) -> bool:
    """Put these lines into a file of `bouquet init`'s; False, and nothing is done, where it has not init's own line."""
    best, other = _taken(found)
    text = file.read_text(encoding="utf-8")
    new, lines = INIT_RATE.subn(rate_line(best.learning_rate), text)
    if lines != 1 or (other and "[strategy]" in text):
        return False
    write_atomically(file, (new + (f"\n{_method(best)}" if other else "")).encode())
    return True


def _taken(found: Sequence[RowResult]) -> tuple[RowResult, bool]:
    """The row that is advised, else the settings', and whether it is another than theirs."""
    best = candidate(found)
    best = best if best.pays else found[-1]
    return best, best is not found[-1]


def _method(one: RowResult) -> str:
    return f'[strategy]\nname = "{one.strategy}"\n'
