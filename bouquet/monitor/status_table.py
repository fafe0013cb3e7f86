"""A run's status as a person reads it on a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from bouquet.common.task.score import Score
from bouquet.common.texts import of_rounds
from bouquet.experiments.report.units import ago, human_bytes, human_seconds
from bouquet.server.record.gains import HEADS
from bouquet.server.record.gains import cells as gain_cells
from bouquet.server.record.overview import is_alive
from bouquet.server.record.status import WAITING

TEXT_COLUMNS = 3  # to the left; what follows are numbers


def headline(run: Mapping[str, Any]) -> str:
    """The run in a sentence: ``plants: training, round 3 of 20, about 4 min 05 s left.``"""
    text = f"{run['name']}: {run['state']}"
    if run["state"] == WAITING:
        return f"{text}. {run['waiting']}"
    text += f", round {run['round']}{of_rounds(run['rounds'])}"
    if run["time_left"] is not None:
        text += f", about {human_seconds(run['time_left'])} left"
    return text + (f". {run['reason']}" if run["reason"] else ".")


def columns(status: Mapping[str, Any], now: float) -> list[tuple[str, ...]]:
    """The table of the devices as text, heads first."""
    devices, alive, score = status["devices"], is_alive(status["run"]), Score.in_record(status["run"])
    compared = any(device["beside"] for device in devices)
    heads = ("device", "connected", "last seen", "round", "cluster", score.title, *(HEADS if compared else ()))
    tagged = any(device["tags"] for device in devices)
    rows: list[tuple[str, ...]] = [(*heads, "samples", "failures", "bouquet", *(["tags"] if tagged else []))]
    for device in devices:
        said = [
            (device["removed"], "key removed"),
            (device["not_now"], "not now"),
            (not device["takes_part"], "other tags"),
            (device["connected"], "yes"),
            (alive and device["expected"], "MISSING"),
            (True, "no"),
        ]
        connected = next(text for holds, text in said if holds)
        shown = [device["round"], device["cluster"], device[score.key], device["samples"]]
        cells = [
            "–" if value is None else score.number(value) if isinstance(value, float) else str(value) for value in shown
        ]
        if moved := device["moved"]:
            cells[1] += f" (since round {moved['round']}, before {moved['from']})"
        if device["left_out"]:
            cells[-1] += f" (−{device['left_out']})"
        cells[3:3] = gain_cells(device["beside"], score) if compared else ()
        known = device["last_seen"] is not None or device["round"] is None
        # The service forgets a device without keys when it has gone.
        seen = ago(device["last_seen"], now) if known else f"in round {device['round']}"
        cells += [str(device["failures"]), device["release"] or "–"]
        cells += [", ".join(device["tags"] or ["–"])] if tagged else []
        rows.append((device["name"], connected, seen, *cells))
    served = [device["serves"] for device in devices]
    return [(*row, text) for row, text in zip(rows, ["serves", *served], strict=True)] if any(served) else rows


def not_now(status: Mapping[str, Any]) -> list[str]:
    """A line for each device whose owner does not let it work now, with the reason and the time."""
    found = [(device["name"], device["not_now"]) for device in status["devices"] if device["not_now"]]
    return [
        f"{name}, not now: {said['reason']} (asked again at {time.strftime('%H:%M', time.localtime(said['until']))})"
        for name, said in found
    ]


def print_status(console: Console, status: Mapping[str, Any], now: float | None = None) -> None:
    """The status on a terminal."""
    now = time.time() if now is None else now
    run, devices = status["run"], status["devices"]
    console.print(Text(headline(run)), soft_wrap=True)
    rows = columns(status, now)
    # Padded here: a table of Rich's is cut to 80 columns in a log file.
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [
            c.ljust(w) if k < TEXT_COLUMNS else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        style = "bold" if row is rows[0] else "yellow" if "MISSING" in row else ""
        console.print(Text("  ".join(cells).rstrip(), style=style), soft_wrap=True)
    for line in not_now(status):
        console.print(Text(line), soft_wrap=True)
    for device in devices:
        if device["last_failure"]:
            failure = device["last_failure"]
            console.print(Text(f"{device['name']}, round {failure['round']}: {failure['reason']}"), soft_wrap=True)
        if reason := device["not_tested"]:
            console.print(Text(f"{device['name']}, test at the end: {reason}"), soft_wrap=True)
    for warning in run["warnings"]:
        console.print(Text(f"warning  {warning}", style="bold yellow"), soft_wrap=True)
    console.print(f"bytes    {human_bytes(run['bytes_down'])} down, {human_bytes(run['bytes_up'])} up")
    score = Score.in_record(run)
    if run[score.key] is not None:
        shown = f"{score.label:<8} {score.text(run[score.key])}"
        clusters = "1 cluster" if run["clusters"] == 1 else f"{run['clusters']} clusters"
        console.print(f"{shown} mean over the devices, {clusters}")
    if run["worth"]:
        console.print(Text(run["worth"]), soft_wrap=True)
