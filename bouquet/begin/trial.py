"""``bouquet try``: whether federation pays for some devices, by a small comparison of their own data.

Each row is run with each learning rate of one grid, which is chosen on a part that nothing is trained or tested on;
then on several seeds. What is advised is held against the noise of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bouquet.begin.parts import Samples, settings_of_parts, write_parts
from bouquet.common.settings import Settings
from bouquet.common.task.score import Score
from bouquet.experiments.comparison.claims import by_seed, worth_by_seed
from bouquet.experiments.comparison.grid import make_table
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.significance import Difference, holm, paired_difference
from bouquet.experiments.comparison.table import STANDARD_ROWS, Table

SEEDS = (0, 1, 2, 3, 4)
CHOSEN_ON_SEED = 100
LEARNING_RATES = (0.01, 0.03, 0.1)  # one grid for every row
ROUNDS = 15
ALONE = "Standalone"
YOURS = "as the settings say"
COLUMN = "your devices"
MOST_NAMED = 3


@dataclass(frozen=True)
class Outcome:
    """What a row came to: its mean score, the gain over each device alone with its noise, and by device.

    Gains are positive where the row is better. ``claimed`` says that it is not noise.
    """

    row: str
    strategy: str
    learning_rate: float
    score: float
    gain: Difference | None
    by_device: Mapping[str, float]
    claimed: bool

    @property
    def mean(self) -> float:
        """Of the gain."""
        return self.gain.mean if self.gain else 0.0

    @property
    def noise(self) -> float:
        """Half of the interval."""
        return self.gain.mean - self.gain.low if self.gain and self.gain.low is not None else 0.0


def trial_table(settings: Settings, devices: Mapping[str, Samples], out: Path, rounds: int | None) -> Table:
    """The rows on these devices' samples, which are written below ``out``."""
    fraction = settings.data.test_fraction
    for seed in (*SEEDS, CHOSEN_ON_SEED):
        write_parts(devices, _folder(out, seed), fraction, seed)
    shape = tuple(next(iter(devices.values())).x.shape[1:])
    base = settings_of_parts(settings, shape).model_dump(mode="json", exclude_unset=True)
    strategy = base.pop("strategy", {})
    base["run"] = {"rounds": rounds or min(ROUNDS, settings.run.rounds)}
    base.get("train", {}).pop("learning_rate", None)
    yours = {"label": YOURS, "name": settings.strategy.name, **strategy}
    own = [*STANDARD_ROWS, {"label": "FeSEM", "name": "fesem", "num_clusters": "auto"}]
    table = make_table(
        {
            "name": "try",
            "seeds": list(SEEDS),
            "metrics": ["accuracy_macro"],
            "base": base,
            # What a method itself has: only the last row serves what the settings say.
            "strategy": [*({**row, "set": {"personal.serve": "own"}} for row in own), yours],
            "data": [{"label": COLUMN, "dataset": "own", "data_dir": str(_folder(out, SEEDS[0]) / "test")}],
            "tune": {"seeds": [CHOSEN_ON_SEED], "train.learning_rate": list(LEARNING_RATES)},
        }
    )
    assert table.tune is not None
    cells = tuple(
        replace(one, settings=one.settings.with_overrides({"data.data_dir": str(_folder(out, one.seed) / "test")}))
        for one in table.cells
    )
    apart = {"data.data_dir": str(_folder(out, CHOSEN_ON_SEED) / "chosen-on")}
    return replace(table, cells=cells, tune=replace(table.tune, overrides=apart))


def outcomes(results: Results, in_order: bool) -> list[Outcome]:
    """Every row that was run, in the table's order.

    A gain is claimed where its interval over seeds is above or below 0, after Holm over the rows. Where the newest part
    is tested, which is the same for every seed, that over devices has to be, too.
    """
    worth = {row.label: worth_by_seed(results, row.label, COLUMN) for row in results.table.rows}
    alone = worth[ALONE]
    rows = [row for row in worth if worth[row]]
    others = [row for row in rows if row != ALONE]
    gains = holm({row: paired_difference(worth[row], alone) for row in others})
    found = []
    for row in rows:
        gain, devices = gains.get(row), _by_device(worth[row], alone)
        claimed = gain is not None and not gain.is_noise and not (in_order and _over_devices(devices).is_noise)
        scores = [score for clients in by_seed(results, row, COLUMN).values() for score in clients.values()]
        name = results.cells_of(row, COLUMN)[0].cell.settings.strategy.name
        rate = results.table.choices[row, COLUMN].values["train.learning_rate"]
        found.append(Outcome(row, name, rate, sum(scores) / len(scores), gain, devices, claimed))
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


def chosen(found: Sequence[Outcome]) -> Outcome | None:
    """The row to take, None for no federation: of those that are better than alone the best.

    Or what the settings say, where that is behind by less than the noise of the best.
    """
    better = [one for one in found if one.claimed and one.mean > 0]
    if not better:
        return None
    best = max(better, key=lambda one: one.mean)
    yours = (one for one in better if one.row == YOURS and best.mean - one.mean <= best.noise)
    return next(yours, best)


def gain_text(score: Score, one: Outcome) -> str:
    """``+4.2 ± 1.1`` points of an accuracy, or in the unit of an error."""
    if one.gain is None:
        return "–"
    noise = "" if one.gain.low is None else f" ± {amount(score, one.noise)}"
    return f"{'+' if one.mean >= 0 else '−'}{amount(score, abs(one.mean))}{noise}"


def amount(score: Score, value: float) -> str:
    """A difference of scores: points of an accuracy, else as the score is written."""
    return f"{100 * value:.1f}" if not score.unit and score.higher_is_better else score.number(value)


def unit_of(score: Score) -> str:
    """What a gain is counted in."""
    return "points" if not score.unit and score.higher_is_better else score.unit or score.label


def advice(found: Sequence[Outcome], score: Score) -> str:
    """What to do, in a sentence or two."""
    if (best := chosen(found)) is None:
        highest = max((one for one in found if one.gain), key=lambda one: one.mean)
        return (
            "Do not federate on the strength of this: no row is better than each device alone by more than chance; "
            f"{highest.row}, the highest, has {gain_text(score, highest)} {unit_of(score)}. More samples to test on, "
            "or more devices, may tell."
        )
    by_gain = sorted(best.by_device.items(), key=lambda item: -item[1])
    most = ", ".join(f"{name} (+{amount(score, gain)})" for name, gain in by_gain[:MOST_NAMED] if gain > 0)
    worse = [f"{name} (−{amount(score, -gain)})" for name, gain in by_gain if gain < 0]
    strategy = "" if best.row == YOURS else f'strategy.name = "{best.strategy}", '
    return (
        f"Take {best.row} ({strategy}train.learning_rate = {best.learning_rate:g}): {gain_text(score, best)} "
        f"{unit_of(score)} over each device alone. Most gain {most}; worse off: {', '.join(worse) or 'none'}."
    )


def _folder(out: Path, seed: int) -> Path:
    return (out / "data" / f"s{seed}").absolute()
