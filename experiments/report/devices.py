"""The devices of a run as its page shows them: cards, clusters, and a device by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

import numpy as np

from bouquet.common.model_selection import served_text
from bouquet.common.task.score import ACCURACY, Score
from bouquet.experiments.plots.clients import cluster_colours
from bouquet.experiments.report.curves import chart, spark
from bouquet.experiments.report.units import ago, human_bytes, human_seconds
from bouquet.server.monitoring.diagnosis import failures
from bouquet.server.record.gains import ALONE, OWN, RECEIVED, apart_text, by_chance, is_known, is_level
from bouquet.server.record.overview import (
    AWAY,
    DONE,
    FAILING,
    IN_TROUBLE,
    KEY_REMOVED,
    MISSING,
    NOT_NOW,
    NOT_TESTED,
    OTHER_TAGS,
)
from bouquet.server.record.reader import Points, Run, is_number, natural_order

UNKNOWN = "–"
MOST_NAMES = 6
MOST_CLUSTERS = 8
# The three that are compared, each with its colour on every page.
COMPARED = (("in use", OWN, "var(--ink)"), ("alone", ALONE, "var(--alone)"), ("received", RECEIVED, "var(--received)"))
QUIET = (NOT_NOW, AWAY, OTHER_TAGS)


def capital(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def by_cluster(devices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of a cluster side by side, those without one last."""
    return sorted(devices, key=lambda d: (d["cluster"] is None, d["cluster"] or 0, natural_order(d["name"])))


def cards(run: Run, devices: Sequence[Mapping[str, Any]], now: float | None) -> list[dict[str, Any]]:
    """What is shown of each device. Without ``now``, in a report that is kept, times are those of the clock."""
    colours, curves, score = cluster_colours(run), _curves(run), run.score
    shares = [value for values in curves.values() for value in values] if score.key == ACCURACY.key else []
    found = []
    for device in by_cluster(devices):
        beside, values = device["beside"], curves.get(device["name"], [])
        scale = shares or values or [0.0]
        better = score.is_better(beside[OWN], beside[ALONE]) if is_known(beside) else None
        worse = is_known(beside) and not better and beside[OWN] != beside[ALONE]
        is_told = is_known(beside) and not by_chance(beside, score)
        found.append(
            {
                **device,
                "colour": "" if device["cluster"] is None else colours[device["cluster"]],
                "kind": kind_of(device["state"]),
                "own": _scored(score, beside.get(OWN, device[score.key])),
                "alone": _scored(score, beside.get(ALONE)),
                "label": "in use" if OWN in beside else score.label,
                "gain": difference(beside, score),
                "gain_kind": "calm" if not is_told else "good" if better else "bad" if worse else "calm",
                "worse": worse,
                "look": device["state"] in IN_TROUBLE,
                "spark": spark(values, min(scale), max(scale)),
                "seen": _seen(device, now),
                "why": reason(device),
                "group": run.groups.get(device["name"]),
                "machine": machine(run.last_numbers.get(device["name"], {})),
            }
        )
    return found


def kind_of(state: str) -> str:
    """The colour of a state."""
    return "bad" if state in IN_TROUBLE else "warn" if state in QUIET else "good"


def reason(device: Mapping[str, Any]) -> str:
    """Why a device does not take part as it should, in words; empty where it does."""
    if device["state"] == NOT_NOW:
        said = device["not_now"]
        until = time.strftime("%H:%M", time.localtime(said["until"]))
        return f"{said['reason']} (asked again at {until})"
    if device["state"] in (FAILING, MISSING) and device["last_failure"]:
        return f"round {device['last_failure']['round']}: {device['last_failure']['reason']}"
    if device["state"] == NOT_TESTED:
        return str(device["not_tested"])
    return "its owner removed its key" if device["state"] == KEY_REMOVED else ""


def difference(beside: Mapping[str, float], score: Score) -> str:
    """What is in use less what would be alone, with its sign: ``+5.9 points``; empty where it is not known."""
    if not is_known(beside):
        return ""
    found = beside[OWN] - beside[ALONE]
    sign = "" if is_level(found, score) else "+" if found > 0 else "−"
    return f"{sign}{apart_text(found, score)}"


def machine(numbers: Mapping[str, Any]) -> str:
    """What a device said of itself in its last round: ``61 °C, battery 80 %``."""
    said = [(numbers.get("temperature"), "{:.0f}\u00a0°C"), (numbers.get("battery"), "battery {:.0%}")]
    return ", ".join(text.format(value) for value, text in said if is_number(value))


def clusters(run: Run, devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each cluster: its devices, and the means of what they have in use and would have alone."""
    colours = cluster_colours(run)
    found: dict[int, list[Mapping[str, Any]]] = {}
    for device in by_cluster(devices):
        if device["cluster"] is not None:
            found.setdefault(device["cluster"], []).append(device)
    shown = []
    for cluster, members in found.items():
        known = [d["beside"] for d in members if is_known(d["beside"])]
        scores = [d[run.score.key] for d in members if d[run.score.key] is not None]
        beside = {name: fmean(one[name] for one in known) for name in (OWN, ALONE)} if known else {}
        names = [d["name"] for d in members]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        shown.append(
            {
                "cluster": cluster,
                "colour": colours[cluster],
                "count": len(members),
                "names": ", ".join(names[:MOST_NAMES]) + more,
                "own": _scored(run.score, beside.get(OWN, fmean(scores) if scores else None)),
                "alone": _scored(run.score, beside.get(ALONE)),
                "gain": difference(beside, run.score),
            }
        )
    return shown


def charts(run: Run, newest: int | None = None) -> list[dict[str, Any]]:
    """The curves of a run, or of its ``newest`` rounds: what is compared, clusters, loss and bytes by round."""
    score = run.score
    compared = [(label, colour, compared_by_round(run, name)) for label, name, colour in COMPARED]
    if not len(compared[0][2][1]):
        compared = [
            ("the models sent", "var(--ink)", run.outcome(score.of("macro"))),
            ("after training on the device", "var(--received)", run.series(score.of("trained_macro"))),
        ]
    losses = [
        ("the models sent", "var(--ink)", run.outcome("loss")),
        ("while training", "var(--received)", run.series("train_loss")),
    ]
    ways = [
        ("up, to the server", "var(--ink)", run.series("bytes_up")),
        ("down, to the devices", "var(--received)", run.series("bytes_down")),
    ]
    groups = [
        ("purity", "var(--ink)", run.series("purity")),
        ("adjusted Rand index", "var(--received)", run.series("ari")),
    ]
    changed = any(len(set(values)) > 1 for _, _, (_, values) in groups)
    drawn = [
        chart(capital(score.title), compared, score.number, newest=newest),
        chart(f"{capital(score.title)} of each cluster", _of_clusters(run), score.number, newest=newest),
        chart("Training loss", losses, "{:.3g}".format, newest=newest),
        chart("Agreement with the true groups", groups if changed else [], "{:.2f}".format, True, newest),
        chart("Bytes a round", ways, human_bytes, True, newest),
    ]
    return [one for one in drawn if one]


def compared_by_round(run: Run, name: str, clients: frozenset[str] | None = None) -> Points:
    """Rounds and the mean, over the clients that compare, of one of the three; after the last round the summary's.

    The model received in a round is what the round before led to.
    """
    shift = 1 if name == RECEIVED else 0
    found = {}
    for line in run.rounds:
        own = [n.get("beside") or {} for c, n in (line.get("by_client") or {}).items() if not clients or c in clients]
        if values := [beside[name] for beside in own if name in beside]:
            found[line["round"] - shift] = fmean(values)
    last = (run.summary or {}).get("beside_by_client") or {}
    if values := [b[name] for c, b in last.items() if (not clients or c in clients) and name in b]:
        found[run.completed] = fmean(values)
    return np.array([*found], dtype=float), np.array([*found.values()], dtype=float)


def rounds_of(run: Run, name: str, newest: int) -> list[dict[str, str]]:
    """A line for each of the ``newest`` rounds that had to do with a device, the last one first."""
    score, lines = run.score, []
    for line in run.rounds[-newest:]:
        numbers = (line.get("by_client") or {}).get(name)
        said = [f"failed: {reason}" for client, reason in failures(line) if client == name]
        said += ["absent"] if name in (line.get("absent") or ()) else []
        for kind, words in (
            ("not_now", "not now: {}"),
            ("late", "came late: {}"),
            ("limited", "limited: {}"),
            ("moved", "was in cluster {}"),
        ):
            if name in (found := line.get(kind) or {}):
                said.append(words.format(found[name]))
        if numbers is None and not said:
            continue
        numbers = numbers or {}
        beside = numbers.get("beside") or {}
        seconds = (line.get("seconds_by_client") or {}).get(name)
        way_up, way_down = (line.get("bytes_by_client") or {}).get(name, (None, None))
        row = {
            "round": str(line["round"]),
            "cluster": str((line.get("assignment") or {}).get(name, "")),
            "loss": _text(numbers.get("loss"), "{:.3g}".format),
            f"{score.label}, sent": _text(numbers.get(score.key), score.number),
            "after training": _text(numbers.get(score.of("trained")), score.number),
            "in use": _text(beside.get(OWN), score.number),
            "alone": _text(beside.get(ALONE), score.number),
            "keeps": served_text(numbers),
            "machine": machine(numbers),
            "time": _text(seconds, human_seconds),
            "up": _text(way_up, human_bytes),
            "down": _text(way_down, human_bytes),
            "what happened": "; ".join(said),
        }
        lines.append(row)
    used = [key for key in (lines[0] if lines else ()) if any(row[key] for row in lines)]
    return [{key: row[key] for key in used} for row in reversed(lines)]


def charts_of(run: Run, name: str, newest: int | None) -> list[dict[str, Any]]:
    """The curves of one device, or of its ``newest`` rounds."""
    score, only = run.score, frozenset((name,))
    found = [(line["round"], (line.get("by_client") or {}).get(name) or {}) for line in run.rounds]

    def series(key: str) -> Points:
        pairs = [(at, n[key]) for at, n in found if is_number(n.get(key))]
        return np.array([x for x, _ in pairs], dtype=float), np.array([y for _, y in pairs], dtype=float)

    compared = [(label, colour, compared_by_round(run, key, only)) for label, key, colour in COMPARED]
    if not len(compared[0][2][1]):
        sent, trained = series(score.key), series(score.of("trained"))
        compared = [("sent", "var(--ink)", sent), ("after training", "var(--received)", trained)]
    drawn = [
        chart(capital(score.title), compared, score.number, newest=newest),
        chart("Training loss", [("loss", "var(--ink)", series("loss"))], "{:.3g}".format, newest=newest),
    ]
    return [one for one in drawn if one]


def _of_clusters(run: Run) -> list[tuple[str, str, Points]]:
    """The mean of what is in use, else of what is sent, of the devices that are in each cluster in the end."""
    colours = cluster_colours(run)
    if not 1 < len(set(run.assignment.values())) <= MOST_CLUSTERS:
        return []
    found = []
    for cluster in sorted(set(run.assignment.values())):
        members = frozenset(c for c, k in run.assignment.items() if k == cluster)
        x, y = compared_by_round(run, OWN, members)
        if not len(y):
            means = {}
            for line in run.rounds:
                by_client = line.get("by_client") or {}
                scores = [n[run.score.key] for c, n in by_client.items() if c in members and run.score.key in n]
                if scores:
                    means[line["round"] - 1] = fmean(scores)
            x, y = np.array([*means], dtype=float), np.array([*means.values()], dtype=float)
        found.append((f"cluster {cluster}", colours[cluster], (x, y)))
    return found


def _curves(run: Run) -> dict[str, list[float]]:
    """Device → what it has in use by round, else the score of what it was sent, else of what it made of it."""
    found: dict[str, list[float]] = {}
    for line in run.rounds:
        for name, numbers in (line.get("by_client") or {}).items():
            beside = numbers.get("beside") or {}
            value = beside.get(OWN, numbers.get(run.score.key, numbers.get(run.score.of("trained"))))
            if is_number(value):
                found.setdefault(name, []).append(float(value))
    return found


def _seen(device: Mapping[str, Any], now: float | None) -> str:
    seen = device["last_seen"]
    if seen is None or device["state"] == DONE:  # the service forgets a device without keys when it has gone
        return "never seen" if device["round"] is None else f"last reply in round {device['round']}"
    if now is None:
        return f"seen {datetime.fromtimestamp(seen).astimezone():%Y-%m-%d %H:%M}"
    return f"seen {ago(seen, now)}"


def _scored(score: Score, value: float | None) -> str:
    return UNKNOWN if value is None else score.number(value)


def _text(value: Any, text: Callable[[float], str]) -> str:
    return text(value) if is_number(value) else ""
