"""Devices that stand out, told from the lines of a run's record: pure functions, as
`bouquet.server.monitoring.diagnosis` has them.

Each rule looks at several rounds and at the other devices, and has a margin, so that a small test set, a busy minute or
data that differ from device to device are no warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from bouquet.common.task.score import Score

ROUNDS = 3  # of a device's own, that a judgement of it rests on
WINDOW = 5  # last rounds of the run in which they are looked for, and in each of which a device must be the last one
LEAST_DEVICES = 3  # among fewer nobody stands out
GAP = 0.25  # of accuracy, beyond what is usual among the devices
DEVIATIONS = 3.0  # of the accuracy over so many test samples, at its widest: 0.5 / √n each
TIMES_SLOWER = 1.5  # than the one before it,
SECONDS_SLOWER = 2.0  # and by so much
SPEEDS_DIFFER = 3.0  # times as long as most take, that the slowest does
OTHER_UNIT = 100.0  # times the others' error without a model, or a hundredth of it

Line = Mapping[str, Any]


def misplaced(lines: Sequence[Line]) -> dict[str, str]:
    """Device → what is wrong, for devices that are sent a model far worse for them than what they make of it.

    Training on the device improves the model that it is sent; for a device that is in a cluster of others, or whose
    labels are not theirs, by far more than for the others.
    """
    if len(lines) < WINDOW:
        return {}
    devices: dict[str, tuple[float, float, float]] = {}
    for device in lines[-1].get("by_client") or {}:
        rounds = [line["by_client"][device] for line in lines[-WINDOW:] if device in (line.get("by_client") or {})]
        rounds = [n for n in rounds if {"accuracy", "accuracy_trained", "tested"} <= n.keys() and n["tested"] > 0]
        if len(rounds) >= ROUNDS:
            recent = rounds[-ROUNDS:]
            sent, own = fmean(n["accuracy"] for n in recent), fmean(n["accuracy_trained"] for n in recent)
            devices[device] = sent, own, min(n["tested"] for n in recent)
    said = {}
    assignment = lines[-1].get("assignment") or {}
    for device, (sent, own, tested) in devices.items():
        others = [theirs - got for other, (got, theirs, _) in devices.items() if other != device]
        if len(others) + 1 < LEAST_DEVICES:
            continue
        usual = median(others)
        if own - sent - usual < max(GAP, DEVIATIONS * 0.5 / math.sqrt(tested)):
            continue
        many = len(set(assignment.values())) > 1 and device in assignment
        whose = f"the model of its cluster, {assignment[device]}," if many else "the model that it is sent"
        said[device] = (
            f"{device}: {whose} is far worse for it (accuracy {sent:.2f}) than what it makes of it by training "
            f"({own:.2f}, where half of the others change by {usual:+.2f} or less). Look at its labels and data"
            + ("; or it belongs to another cluster." if many else "; or it needs a cluster, or a model, of its own.")
        )
    return said


def always_last(lines: Sequence[Line]) -> dict[str, str]:
    """Device → what is wrong, for a device that each round waits for: the last by far, in every round lately."""
    times = [line.get("seconds_by_client") or {} for line in lines[-WINDOW:]]
    if len(times) < WINDOW or min(map(len, times)) < LEAST_DEVICES:
        return {}
    slowest = {max(taken, key=lambda device: taken[device]) for taken in times}
    if len(slowest) > 1:
        return {}
    (device,) = slowest
    next_to_last = [max(seconds for other, seconds in taken.items() if other != device) for taken in times]
    for taken, before in zip(times, next_to_last, strict=True):
        if taken[device] < max(TIMES_SLOWER * before, before + SECONDS_SLOWER):
            return {}
    return {
        device: f"{device} was the last in each of the last {WINDOW} rounds: {fmean(t[device] for t in times):.0f} s, "
        f"where all others had answered after {fmean(next_to_last):.0f} s. server.straggler_grace says how long a "
        "round waits; fewer train.local_epochs, or fewer photos on it, make it quicker."
    }


def differing_speeds(lines: Sequence[Line]) -> str:
    """What to set where rounds wait for the slowest device several times as long as for most (docs/own-speeds.md)."""
    recent = lines[-2:]  # after them a round does not wait so long for a device that held up both
    times = [[*(line.get("seconds_by_client") or {}).values()] for line in recent]
    if len(times) < 2 or min(map(len, times)) < LEAST_DEVICES or any(x.get("late") or x.get("steps") for x in recent):
        return ""
    if any(max(t) < max(SPEEDS_DIFFER * median(t), median(t) + SECONDS_SLOWER) for t in times):
        return ""
    first, most, last = (fmean(map(of, times)) for of in (min, median, max))
    return (
        f"Your devices differ by {last / max(first, 0.1):.0f}×: a round waits {last:.0f} s for the slowest, where half "
        f"of them have answered after {most:.0f} s. With server.buffer = 0.3 no round waits for it; where slow devices "
        "have data of their own, wait for all."
    )


def other_unit(lines: Sequence[Line], score: Score) -> dict[str, str]:
    """Device → what is wrong, for devices whose targets are on another scale than the others', as with mg for µg.

    Devices scale what they train on, each by its own, and send no values. What is foretold without a model (``naive``)
    is wrong by so much in the unit of the targets, and tells their scale. More than half of the devices must be of one.
    """
    if score.higher_is_better:  # no error, and in no unit of the targets
        return {}
    reported = lines[-1].get("by_client") or {}
    naive = {device: n["naive"] for device, n in reported.items() if n.get("naive") and math.isfinite(n["naive"])}
    said = {}
    for device, error in naive.items():
        others = [abs(theirs) for other, theirs in naive.items() if other != device]
        if len(others) + 1 < LEAST_DEVICES:
            continue
        usual = median(others)
        times = max(abs(error), usual) / min(abs(error), usual)
        if times < OTHER_UNIT:
            continue
        said[device] = (
            f"{device}: without a model its {score.label} would be {score.text(error)}, and the median of the other "
            f"devices' {score.text(usual)}: is its unit another one, or does its sensor stand still? The mean over the "
            "devices is worth little then."
        )
    return said
