"""The runs of a folder as a page: one under another, and two of them side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.common.settings import parse_settings
from bouquet.common.task.score import Score
from bouquet.common.texts import of_rounds
from bouquet.experiments.report.curves import chart
from bouquet.experiments.report.devices import UNKNOWN, capital, compared_by_round
from bouquet.experiments.report.pages import RUNS, render
from bouquet.experiments.report.reproduce import settings_rows
from bouquet.experiments.report.run_report import KINDS, MOST_CARDS, headline, verdict_of, where
from bouquet.experiments.report.units import human_seconds
from bouquet.server.record.gains import ALONE, OWN, gain, means
from bouquet.server.record.overview import overview, state_of
from bouquet.server.record.reader import Run, natural_order, read_object, read_run, run_title
from bouquet.server.record.status import read_status
from bouquet.server.run_folder import SETTINGS, SUMMARY

MOST_RUNS = 100


def runs_in(parent: Path) -> dict[str, Path]:
    """The run folders in a folder by name, the newest first."""
    with contextlib.suppress(OSError):
        found = [folder for folder in parent.iterdir() if (folder / SETTINGS).is_file()]
        return {f.name: f for f in sorted(found, key=lambda f: (f / SETTINGS).stat().st_mtime, reverse=True)}
    return {}


def render_runs(found: Mapping[str, Path], parent: Path, first: str | None, second: str | None) -> str:
    """The page of the runs ``found``; ``first`` is the one that the others may be held against, ``second`` that is."""
    listed = [row for folder in list(found.values())[:MOST_RUNS] if (row := _row(folder))]
    both: tuple[str, str] | None = None
    rows, curves = [], None
    if first is not None and second is not None and {first, second} <= found.keys():
        runs = [read_run(found[name]) for name in (first, second)]
        both, rows = (first, second), side_by_side(*runs)
        score = runs[0].score
        lines = [
            (name, colour, _points(run))
            for name, colour, run in zip((first, second), ("var(--ink)", "var(--received)"), runs, strict=True)
        ]
        curves = chart(capital(score.title), lines, score.number)
    return render(
        RUNS,
        (),
        title="Runs",
        folder=str(parent),
        runs=listed,
        more=max(0, len(found) - MOST_RUNS),
        first=first if first in found else "",
        both=both,
        rows=rows,
        chart=curves,
    )


def _points(run: Run) -> Any:
    own = compared_by_round(run, OWN)
    return own if len(own[1]) else run.outcome(run.score.of("macro"))


def side_by_side(first: Run, second: Run) -> list[tuple[str, str, str]]:
    """What two runs came to, the settings in which they differ, and, of few devices, each of them."""
    rows: dict[str, list[str]] = {}
    for place, run in enumerate((first, second)):
        state = where(overview(run)["run"])
        settings = {key: value for _, some in settings_rows(run.settings) for key, value in some}
        devices = {f"device {name}": found for name, found in _scores(run).items()}
        found = verdict_of(run)
        said = {
            "state": f"{state['word']}, {state['text']}",
            "verdict": found["lead"],
            "": found["text"],
            **dict(headline(run)),
            **(devices if len(devices) <= MOST_CARDS else {}),
            **settings,
        }
        for key, value in said.items():
            rows.setdefault(key, [UNKNOWN, UNKNOWN])[place] = value
    known = {key for _, some in settings_rows(first.settings) + settings_rows(second.settings) for key, _ in some}
    return [(key, one, two) for key, (one, two) in rows.items() if key not in known or one != two]


def _scores(run: Run) -> dict[str, str]:
    own = {client: found[OWN] for client, found in run.beside.items() if OWN in found}
    found = {**run.score_by_client, **own}
    return {client: run.score.number(found[client]) for client in sorted(found, key=natural_order)}


def _row(folder: Path) -> dict[str, Any] | None:
    """A run of the list; None of one that this version cannot read. Of one that is over the record is not read."""
    try:
        settings = parse_settings(read_object(folder / SETTINGS), {})
        summary = read_object(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
        run = None if summary else read_run(folder)
    except BouquetError:
        return None
    said, score = read_status(folder), run.score if run else Score.in_record(summary)
    state = state_of(folder, said, bool(summary))
    beside = means(run.beside if run else summary.get("beside_by_client") or {})
    mean = beside.get(OWN, run.final(score.of("macro")) if run else summary.get(score.of("macro")))
    began = said.get("started")
    return {
        "folder": folder.name,
        "state": state,
        "kind": KINDS.get(state, "good"),
        "what": run_title(settings),
        "began": f"{datetime.fromtimestamp(began).astimezone():%Y-%m-%d %H:%M}" if began else "",
        "rounds": f"{run.completed if run else summary.get('rounds', 0)}{of_rounds(settings.run.rounds)}",
        "own": UNKNOWN if mean is None else score.text(mean),
        "alone": score.text(beside[ALONE]) if ALONE in beside else UNKNOWN,
        "gain": gain(beside, score),
        "took": human_seconds(summary["seconds"]) if "seconds" in summary else "",
    }
