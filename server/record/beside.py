"""Whether the federation was worth it to each device: its own figure beside that alone, and that of the model received.

Of devices that compare (`personal.compare`); what is compared is told in `bouquet.client.rounds.beside`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bouquet.common import metrics
from bouquet.common.task.score import Score

OWN, ALONE, RECEIVED = "own", "alone", "received"
HEADS = ("in use", "alone", "received")  # of columns with the three
MOST_NAMES = 5  # of devices, in a sentence

Beside = Mapping[str, Mapping[str, float]]  # client → figure by name


def of_device(reported: Mapping[str, float], score: Score) -> dict[str, float]:
    """What a device reports of the three; empty where it does not compare."""
    named = {OWN: score.own, ALONE: score.alone, RECEIVED: score.received}
    found = {name: round(float(reported[key]), 6) for name, key in named.items() if key in reported}
    return found if {OWN, ALONE} <= set(found) else {}


def cells(found: Mapping[str, float], score: Score) -> list[str]:
    """The three as text, under `HEADS`; – where nothing is known."""
    return [score.number(found[name]) if name in found else "–" for name in (OWN, ALONE, RECEIVED)]


def sentence(beside: Beside, score: Score) -> str:
    """``4 of 5 devices are better off than alone; worse off: window-pi.``, and the means; empty without devices."""
    known = {client: found for client, found in sorted(beside.items()) if {OWN, ALONE} <= set(found)}
    if not known:
        return ""
    better = [c for c, f in known.items() if score.is_better(f[OWN], f[ALONE])]
    worse = [c for c, f in known.items() if score.is_better(f[ALONE], f[OWN])]
    equal = [c for c in known if c not in (*better, *worse)]
    verb = "is" if len(better) == 1 else "are"
    text = f"{len(better)} of {len(known)} devices {verb} better off than alone"
    text += f"; as well off: {_names(equal)}" if equal else ""
    text += f"; worse off: {_names(worse)}" if worse else ""
    means = {n: metrics.macro([f.get(n) for f in known.values()]) for n in (OWN, ALONE, RECEIVED)}
    said = {OWN: "{} in use", ALONE: "{} alone", RECEIVED: "{} as received"}
    each = ", ".join(said[name].format(score.text(mean)) for name, mean in means.items() if mean is not None)
    return f"{text}. Mean {score.label}: {each}."


def _names(clients: list[str]) -> str:
    more = f" and {len(clients) - MOST_NAMES} more" if len(clients) > MOST_NAMES else ""
    return f"{', '.join(clients[:MOST_NAMES])}{more}"
