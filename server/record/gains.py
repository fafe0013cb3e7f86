"""Whether the federation was worth it to each device: its own figure beside that alone, and that of the model received.

Of devices that compare (`personal.compare`); what is compared is told in `bouquet.client.rounds.comparing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bouquet.common import metrics
from bouquet.common.task.score import ACCURACY, Score

OWN, ALONE, RECEIVED = "own", "alone", "received"
TESTED = "tested"  # samples that the three are of
HEADS = ("in use", "alone", "received")  # of columns with the three
MOST_NAMES = 5  # of devices, in a sentence
# Of as many test samples one model is right where the other is not, at least, before a sign test tells them apart:
# 2 · 2⁻⁶ < 5 %.
TOLD_APART = 6

Gains = Mapping[str, Mapping[str, float]]  # client → figure by name


def of_device(reported: Mapping[str, float], score: Score, tested: float) -> dict[str, float]:
    """What a device reports of the three, and of how many samples; empty where it does not compare."""
    named = {OWN: score.own, ALONE: score.alone, RECEIVED: score.received}
    scores = {name: round(float(reported[key]), 6) for name, key in named.items() if key in reported}
    return scores | {TESTED: int(tested)} if is_known(scores) else {}


def is_known(scores: Mapping[str, float]) -> bool:
    """Whether a device says what it has in use and what it would have alone."""
    return {OWN, ALONE} <= set(scores)


def cells(scores: Mapping[str, float], score: Score) -> list[str]:
    """The three as text, under `HEADS`; – where nothing is known."""
    return [score.number(scores[name]) if name in scores else "–" for name in (OWN, ALONE, RECEIVED)]


def apart_text(difference: float, score: Score) -> str:
    """How far two scores are apart: ``5.9 points`` of an accuracy, else in the unit of the error, in two digits."""
    apart = abs(difference)
    return f"{100 * apart:.1f} points" if score.key == ACCURACY.key else score.text(float(f"{apart:.2g}"))


def is_level(difference: float, score: Score) -> bool:
    """Whether two scores so far apart are read as the same."""
    return not difference or apart_text(difference, score) == "0.0 points"


def gain(scores: Mapping[str, float], score: Score) -> str:
    """What is in use against alone, in words: ``5.9 points better than alone``; empty where it is not known."""
    if not is_known(scores):
        return ""
    difference = scores[OWN] - scores[ALONE]
    if is_level(difference, score):
        return "as good as alone"
    how = "better" if score.is_better(scores[OWN], scores[ALONE]) else "worse"
    return f"{apart_text(difference, score)} {how} than alone"


def means(beside: Gains) -> dict[str, float]:
    """The mean of each of the three over the devices that have it."""
    scores = {n: metrics.macro([f[n] for f in beside.values() if n in f]) for n in (OWN, ALONE, RECEIVED)}
    return {name: mean for name, mean in scores.items() if mean is not None}


@dataclass(frozen=True)
class GainVerdict:
    """Whether it was worth it: ``lead`` is the mean gain, ``text`` for whom, ``is_gain`` None of no difference."""

    lead: str
    text: str
    is_gain: bool | None
    worse: tuple[str, ...]


def verdict(beside: Gains, score: Score) -> GainVerdict | None:
    """Of all devices that compare; None where none does."""
    known = {client: scores for client, scores in sorted(beside.items()) if is_known(scores)}
    if not known:
        return None
    scores = means(known)
    own, alone, received = scores[OWN], scores[ALONE], scores.get(RECEIVED)
    better = [c for c, f in known.items() if score.is_better(f[OWN], f[ALONE])]
    worse = [c for c, f in known.items() if score.is_better(f[ALONE], f[OWN])]
    equal = [c for c in known if c not in (*better, *worse)]
    text = f"Mean {score.label}: {score.text(own)} in use, {score.text(alone)} alone"
    if received is not None and score.is_better(received, own):
        text += f", {score.text(received)} as received"
    text += f". {len(better)} of {len(known)} devices {'is' if len(better) == 1 else 'are'} better off"
    text += f"; as well off: {_names(equal)}" if equal else ""
    said = [c + by_chance(known[c], score) if len(worse) <= MOST_NAMES else c for c in worse]
    text += f"; worse off: {_names(said)}" if worse else ""
    lead = gain(scores, score)
    is_ahead = None if lead.startswith("as good") else score.is_better(own, alone)
    share = score.key == ACCURACY.key and all(f.get(TESTED) for f in known.values())
    if is_ahead is not None and share and abs(sum(map(_apart, known.values()))) < TOLD_APART:
        lead, is_ahead = f"{lead}, which may be chance", None
    elif is_ahead is not None and (len(better) < len(worse) if is_ahead else len(worse) < len(better)):
        lead, is_ahead = f"{lead}, but not on most devices", None
    return GainVerdict(lead[0].upper() + lead[1:], f"{text}.", is_ahead, tuple(worse))


def sentence(beside: Gains, score: Score) -> str:
    """``5.9 points better than alone. Mean accuracy: … 5 of 6 devices are better off; worse off: window-pi.``"""
    result = verdict(beside, score)
    return f"{result.lead}. {result.text}" if result else ""


def by_chance(scores: Mapping[str, float], score: Score) -> str:
    """Of a share of few samples, that the difference may be chance, as no test could tell it; else empty."""
    apart, tested = _apart(scores), int(scores.get(TESTED) or 0)
    if score.key != ACCURACY.key or not tested or not 0 < abs(apart) < TOLD_APART:
        return ""
    return f" (by {abs(apart)} of {tested} test samples, which may be chance)"


def _apart(scores: Mapping[str, float]) -> int:
    """By how many test samples what is in use is ahead of what would be alone."""
    return round((scores[OWN] - scores[ALONE]) * (scores.get(TESTED) or 0))


def _names(clients: list[str]) -> str:
    more = f" and {len(clients) - MOST_NAMES} more" if len(clients) > MOST_NAMES else ""
    return f"{', '.join(clients[:MOST_NAMES])}{more}"
