"""What is wrong with a run, told from the lines of its record.

Training that diverges, stands still or gets worse; rounds without replies; clusters that were asked for and never came;
single devices that stand out (`bouquet.server.monitoring.outliers`), or have another release installed.

Pure functions of the lines, so that the live table, the report and the summary say the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bouquet.common.metrics import written
from bouquet.common.task.score import ACCURACY, Score
from bouquet.common.texts import LONGEST
from bouquet.server.monitoring.outliers import (
    LEAST_DEVICES,
    WINDOW,
    always_last,
    differing_speeds,
    misplaced,
    other_unit,
)

LOOK_BACK = 3  # rounds that a judgement of the loss rests on
PATIENCE = 5  # rounds in which training and clustering must have begun to show
AT_CHANCE = 0.97  # of ln(classes), the loss of guessing
LEARNED = 0.8  # of ln(classes), a loss below which the training data are learned, so that the accuracy should show it
RISE = 0.2  # of ln(classes), over the lowest loss
LEAST_TESTED = 30  # test samples, of all devices together, for a word on their accuracy
CLEARLY = 0.1  # of what is between guessing and perfect
QUIET = 20  # rounds in which what was said once is not said again
ABSURD = 1e6  # a loss above it is that of a model that diverged
STILL = 6  # rounds in which the score has gained nothing
GAIN = 0.01  # of the accuracy, below which it stands still; of an error a share of it, also beside that without a model
WELL = 0.95  # an accuracy from which on nobody expects more
FALLS = 0.7  # of the loss before
FALLS_OF_FIRST = 0.05  # of the first round's loss, by which it must have fallen
KEPT = max(PATIENCE, WINDOW) + 1  # lines that are kept whole: `new_warnings` looks one further back
MOST_LINES = 1000  # beside the first
MOST_NAMED = 10
MOST = 50  # warnings in a summary

Line = Mapping[str, Any]
# What of a line is looked at; of lines long past no more than the first.
JUDGED = ("round", "replies", "failed", "loss", "diagnosis", "tested", "naive_macro")
JUDGED_LATELY = ("assignment", "by_client", "seconds_by_client", "late", "steps", "other_releases")


@dataclass(frozen=True)
class Expected:
    """What a run is judged by: its classes, its settings of training, and the clusters that were asked for, if any."""

    classes: int  # 0 where the task has none
    learning_rate: float
    max_gradient_norm: float | None = None
    num_clusters: int = 1
    score: Score = ACCURACY

    @property
    def chance(self) -> float:
        """The loss of guessing; without classes nobody knows it."""
        return math.log(self.classes) if self.classes else math.inf

    @property
    def smaller_step(self) -> str:
        """What to change where the step is too large."""
        limit = "unset" if self.max_gradient_norm is None else f"{self.max_gradient_norm:g}"
        return f"lower train.learning_rate (now {self.learning_rate:g}) or train.max_gradient_norm (now {limit})"


def diagnose(lines: Sequence[Line], expected: Expected) -> dict[str, str]:
    """What is wrong after the last of the ``lines``, by kind."""
    if not lines:
        return {}
    problems = {
        "replies": _no_replies(lines[-1]),
        "diverged": _diverged(lines[-1], expected),
        "chance": _at_chance(lines, expected),
        "rises": _rises(lines, expected),
        "accuracy": _accuracy_at_chance(lines, expected),
        "naive": _no_better_than_naive(lines, expected),
        "still": _stands_still(lines, expected),
        "clusters": _no_clusters(lines, expected),
        "speeds": differing_speeds(lines),
        "releases": other_releases(lines[-1].get("other_releases") or {}),
        **_of_their_data(lines),
        **{f"misplaced {device}": text for device, text in misplaced(lines).items()},
        **{f"last {device}": text for device, text in always_last(lines).items()},
        **{f"unit {device}": text for device, text in other_unit(lines, expected.score).items()},
    }
    return {kind: text for kind, text in problems.items() if text}


def add(lines: list[dict[str, Any]], line: Line) -> None:
    """Append what of a line is judged, and forget what of the earlier ones is not any more."""
    score = Score.in_record(line)
    judged = (*JUDGED, score.of("macro"), score.of("micro"), *JUDGED_LATELY)
    lines.append({key: line[key] for key in judged if key in line} | _of_most(line, score))
    del lines[1:-MOST_LINES]
    for old in lines[-KEPT - 1 : -KEPT]:
        for key in JUDGED_LATELY:
            old.pop(key, None)


def _of_most(line: Line, score: Score) -> dict[str, float]:
    """What three or more devices say, by its median: the record's means are as far off as one device likes."""
    names = {"loss": "loss", score.of("macro"): score.key, score.of("micro"): score.key, "naive_macro": "naive"}
    said = (line.get("by_client") or {}).values()
    given = {key: [its[name] for its in said if name in its] for key, name in {**names, "tested": "tested"}.items()}
    medians = {key: median(values) for key, values in given.items() if len(values) >= LEAST_DEVICES}
    return medians | ({"tested": len(given["tested"]) * medians["tested"]} if "tested" in medians else {})


def new_warnings(lines: Sequence[Line], expected: Expected) -> list[str]:
    """What is wrong after the last of the ``lines`` and was not, or not of that kind, after the one before.

    Nor in the `QUIET` rounds before, as far as the lines have their ``diagnosis``: what comes and goes is said once.
    """
    before = {kind for line in lines[-QUIET - 1 : -1] for kind in line.get("diagnosis") or ()}
    before |= set(diagnose(lines[:-1], expected))
    return [text for kind, text in diagnose(lines, expected).items() if kind not in before]


def all_warnings(lines: Sequence[Line]) -> list[str]:
    """Every warning of a record, with its round; one that is repeated, once."""
    first: dict[str, int] = {}
    for line in lines:
        for text in line.get("warnings") or ():
            first.setdefault(text, line["round"])
    return [f"Round {round_}: {text}" for text, round_ in first.items()][:MOST]


def failures(line: Line) -> list[tuple[str, str]]:
    """Client and reason of all that failed in a round: in the training, then in the evaluation that followed it."""
    tested = (line.get("evaluation") or {}).get("not_evaluated") or {}
    return [
        *((client, str(reason)) for client, reason in (line.get("failed") or {}).items()),
        *((client, f"In the evaluation: {reason}") for client, reason in tested.items()),
    ]


def _no_replies(line: Line) -> str:
    if line["replies"]:
        return ""
    reasons = sorted((line.get("failed") or {}).items())
    return "No client gave a usable reply" + (f"; {reasons[0][0]}: {reasons[0][1]}" if reasons else ".")


def _diverged(line: Line, expected: Expected) -> str:
    clients = sorted(client for client, reason in (line.get("failed") or {}).items() if "diverged" in reason)
    loss = line.get("loss")
    if clients:
        return f"Training diverged on {', '.join(clients)}: {expected.smaller_step}."
    if line["replies"] and loss is not None and not loss < ABSURD:
        return f"The training loss is {loss:.3g}: {expected.smaller_step}."
    return ""


def _at_chance(lines: Sequence[Line], expected: Expected) -> str:
    losses = _losses(lines)
    if len(losses) < PATIENCE or min(losses[-LOOK_BACK:]) < AT_CHANCE * expected.chance or not losses[-1] < ABSURD:
        return ""
    return (
        f"The training loss is {losses[-1]:.3f} after {len(losses)} rounds, no better than guessing "
        f"(ln {expected.classes} = {expected.chance:.3f}): {expected.smaller_step}; if steps are small or few already, "
        "raise train.learning_rate or train.local_epochs."
    )


def _accuracy_at_chance(lines: Sequence[Line], expected: Expected) -> str:
    """The loss may fall where the accuracy stays: labels of the test data that are not those of training, above all."""
    recent = [line for line in lines[-PATIENCE:] if line.get("accuracy_micro") is not None][-LOOK_BACK:]
    tested = min((line.get("tested") or 0 for line in recent), default=0)
    losses = _losses(lines)
    if len(lines) < PATIENCE or len(recent) < LOOK_BACK or tested < LEAST_TESTED or not losses:
        return ""
    if not expected.classes:
        return ""
    chance = 1 / expected.classes
    deviation = math.sqrt(chance * (1 - chance) / tested)
    best = max(line["accuracy_micro"] for line in recent)
    # A loss at chance is said already, and one not far below it may be that of the first rounds.
    if best > chance + min(3 * deviation, CLEARLY * (1 - chance)) or losses[-1] >= LEARNED * expected.chance:
        return ""
    return (
        f"The accuracy is {recent[-1]['accuracy_micro']:.3f} after {len(lines)} rounds, no better than guessing (1 in "
        f"{expected.classes}), though the loss is not: do test and training data have the same labels?"
    )


def _no_better_than_naive(lines: Sequence[Line], expected: Expected) -> str:
    """Numbers that are told no better than without a model: by the last value, that of a day before, or the mean."""
    score, key = expected.score, expected.score.of("macro")
    recent = [line for line in lines[-LOOK_BACK:] if line.get(key) is not None and line.get("naive_macro") is not None]
    if len(lines) < PATIENCE or len(recent) < LOOK_BACK:
        return ""
    best, naive = score.best(line[key] for line in recent), recent[-1]["naive_macro"]
    if score.is_better(best, naive) and abs(best - naive) > GAIN * abs(naive):
        return ""
    return (
        f"The {score.label} is {score.text(recent[-1][key])} after {len(lines)} rounds, no better than without a model "
        f"({score.text(naive)}: the best of the last value, that of a day before, and the mean): more rounds, other "
        "table.inputs, a longer table.history, or another train.learning_rate."
    )


def _stands_still(lines: Sequence[Line], expected: Expected) -> str:
    """The loss falls on what is trained on, and what is tested gets no better: samples are learnt by heart."""
    score, key = expected.score, expected.score.of("micro")
    tested = [line for line in lines if line.get(key) is not None and line.get("loss") is not None]
    before, recent = tested[:-STILL], tested[-STILL:]
    if len(before) < LOOK_BACK or min(line.get("tested") or 0 for line in recent) < LEAST_TESTED:
        return ""
    most = score.best(line[key] for line in before)
    best = next(line for line in before if line[key] == most)
    share = score.key == ACCURACY.key
    lately = score.best(line[key] for line in recent)
    gain = abs(lately - most) if score.is_better(lately, most) else 0.0
    if (share and most >= WELL) or gain > (GAIN if share else GAIN * abs(most)):
        return ""
    then, now = (sum(line["loss"] for line in some[-LOOK_BACK:]) / LOOK_BACK for some in (before, recent))
    # In parts of what the loss was at first, too: one that is next to nothing has nothing left to learn by heart.
    if now > FALLS * then or then - now < FALLS_OF_FIRST * abs(tested[0]["loss"]):
        return ""
    return (
        f"The training loss falls ({written(then)} → {written(now)}) while the tested {score.label} stands still since "
        f"round {best['round']} ({score.text(most)} there, {score.text(recent[-1][key])} now): more rounds learn the "
        "training samples by heart. Fewer rounds, more samples, or of images train.augment."
    )


def other_releases(releases: Mapping[str, str]) -> str:
    """The warning about devices with a release that is not the server's; empty where there are none."""
    others = sorted(releases.items())
    named = ", ".join(f"{device} ({release})" for device, release in others[:MOST_NAMED])
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    return f"Another release of Bouquet than the server's is installed on {named}{more}." if others else ""


def _of_their_data(lines: Sequence[Line]) -> dict[str, str]:
    """What devices say of their data, if they replied lately: classes of no use here, what is odd, what is left out.

    The kinds name classes or devices, so that it is said again where it is of others.
    """
    latest: dict[str, Mapping[str, Any]] = {}
    for line in lines[-KEPT:]:
        latest |= line.get("by_client") or {}
    having = Counter(name for said in latest.values() for name in said.get("unknown_classes") or ())
    common = [(name, count) for name, count in having.most_common(MOST_NAMED) if count > 1]
    problems = {f"class {c}": f"{count} devices have a class that this run does not know: {c}." for c, count in common}
    # A line for each device, said again when there is more or less of it: nobody's words take the places of others'.
    for key, text in (("unknown_classes", "{}: a class that this run does not know: {}."), ("warnings", "{}: {}")):
        said_of = {device: [one for one in said.get(key) or () if having[one] < 2] for device, said in latest.items()}
        saying = [(device, texts) for device, texts in sorted(said_of.items()) if texts]
        for device, (first, *others) in saying[:MOST_NAMED]:
            more = f" And {len(others)} more of the kind." if others else ""
            problems[f"{key} {device} {len(others)}"] = text.format(device, first) + more
        if (rest := len(saying) - MOST_NAMED) > 0:
            problems[f"{key} {rest}"] = f"So {rest} more device{'s' if rest > 1 else ''}, whose own pages have it."
    left_out = {device: int(said["left_out"]) for device, said in sorted(latest.items()) if said.get("left_out")}
    if left_out:
        named = ", ".join(f"{device} {count}" for device, count in list(left_out.items())[:MOST_NAMED])
        more = f" and {len(left_out) - MOST_NAMED} devices more" if len(left_out) > MOST_NAMED else ""
        problems[f"left out {' '.join(left_out)}"[:LONGEST]] = (
            f"Photos or rows that cannot be read are left out, which the devices' logs name: {named}{more}."
        )
    return problems


def _rises(lines: Sequence[Line], expected: Expected) -> str:
    """Means over some rounds, because one round's loss may fall and rise with what is sent in it."""
    losses = _losses(lines)
    if len(losses) < 2 * LOOK_BACK or not losses[-1] < ABSURD:
        return ""
    means = [sum(losses[i : i + LOOK_BACK]) / LOOK_BACK for i in range(len(losses) - LOOK_BACK + 1)]
    if means[-1] <= min(means) + RISE * expected.chance:
        return ""
    now, least = written(means[-1]), written(min(means))
    return f"The training loss rises: {now}, after {least} at its lowest: {expected.smaller_step}."


def _no_clusters(lines: Sequence[Line], expected: Expected) -> str:
    if expected.num_clusters < 2 or len(lines) < PATIENCE:
        return ""
    assignment = lines[-1].get("assignment") or {}
    if not assignment:
        return (
            f"No clusters after {len(lines)} rounds: too few clients have replied for them; raise "
            "server.fraction_train, lower strategy.num_clusters, or connect more clients."
        )
    if len(set(assignment.values())) == 1 and len(assignment) > 1:
        return f"All {len(assignment)} clients are in one cluster after {len(lines)} rounds."
    return ""


def _losses(lines: Sequence[Line]) -> list[float]:
    return [line["loss"] for line in lines if line.get("loss") is not None]
