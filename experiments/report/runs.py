"""The runs of a folder as a page: one under another, and two of them side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.common.settings import parse_settings
from bouquet.common.task.score import Score
from bouquet.common.texts import of_rounds
from bouquet.experiments.report.curves import chart
from bouquet.experiments.report.devices import UNKNOWN, capital, compared_by_round, difference
from bouquet.experiments.report.pages import RUNS, render
from bouquet.experiments.report.reproduce import settings_rows
from bouquet.experiments.report.run_report import KINDS, MOST_CARDS, headline, verdict_of, where
from bouquet.experiments.report.units import human_seconds
from bouquet.server.record.gains import ALONE, OWN, is_known, means
from bouquet.server.record.overview import overview, state_of
from bouquet.server.record.reader import Points, Run, natural_order, read_object, read_run, run_title
from bouquet.server.record.status import read_status
from bouquet.server.run_folder import SETTINGS, SUMMARY

MOST_RUNS = 200
# What the runs may be ordered by → the head of its column.
COLUMNS = {"began": "began", "took": "took", "score": "in use", "gain": "against alone"}


def runs_in(parent: Path) -> dict[str, Path]:
    """The run folders in a folder by name, the newest first."""
    with contextlib.suppress(OSError):
        found = [folder for folder in parent.iterdir() if (folder / SETTINGS).is_file()]
        return {f.name: f for f in sorted(found, key=lambda f: (f / SETTINGS).stat().st_mtime, reverse=True)}
    return {}


def render_runs(
    found: Mapping[str, Path], parent: Path, first: str | None, second: str | None, by: str, nonce: str
) -> str:
    """The page of the runs ``found``; ``first`` is the one that the others may be held against, ``second`` that is.

    ``by`` is one of `COLUMNS`, of which the greatest comes first, or after a minus the least.
    """
    listed = [row for folder in list(found.values())[:MOST_RUNS] if (row := _row(folder))]
    both = first is not None and second is not None and {first, second} <= found.keys()
    runs = [read_run(found[name]) for name in (first, second) if name is not None] if both else []
    return render(
        RUNS,
        (),
        title="Runs",
        folder=str(parent),
        runs=ordered(listed, by),
        by=by,
        columns=COLUMNS,
        more=max(0, len(found) - MOST_RUNS),
        first=first if first in found else "",
        second=second if both else "",
        differing=[row for row in _beside(map(_settings, runs)) if row[1] != row[2]],
        rows=_beside(map(_outcome, runs)),
        charts=_curves(*runs) if both else [],
        nonce=nonce,
    )


def ordered(rows: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """The rows by what is in a column, those of which it is not known last."""
    key = by.removeprefix("-")
    known = [row for row in rows if row["by"].get(key) is not None]
    known.sort(key=lambda row: row["by"][key], reverse=not by.startswith("-"))
    return known + [row for row in rows if row["by"].get(key) is None]


def _curves(first: Run, second: Run) -> list[dict[str, Any]]:
    """Score and loss of two runs, each pair on the same axes; of different scores there are none."""
    score, colours = first.score, ((first, "var(--ink)"), (second, "var(--received)"))
    own = [(run.folder.name, colour, _points(run)) for run, colour in colours if run.score == score]
    losses = [(run.folder.name, colour, run.outcome("loss")) for run, colour in colours]
    drawn = chart(capital(score.title), own if len(own) == 2 else [], score.number)
    return [one for one in (drawn, chart("Training loss", losses, "{:.3g}".format)) if one]


def _points(run: Run) -> Points:
    own = compared_by_round(run, OWN)
    return own if len(own[1]) else run.outcome(run.score.of("macro"))


def _beside(two: Iterable[Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """The key, and what each of two has there."""
    both = [*two]
    keys = dict.fromkeys(key for one in both for key in one)
    return [(key, both[0].get(key, UNKNOWN), both[1].get(key, UNKNOWN)) for key in keys]


def _settings(run: Run) -> dict[str, str]:
    return {key: value for _, some in settings_rows(run.settings) for key, value in some}


def _outcome(run: Run) -> dict[str, str]:
    """What a run came to, and, of few devices, each of them."""
    state, found = where(overview(run)["run"]), verdict_of(run)
    devices = {f"device {name}": score for name, score in _scores(run).items()}
    return {
        "state": f"{state['word']}, {state['text']}",
        "verdict": found["lead"],
        "": found["text"],
        **dict(headline(run)),
        **(devices if len(devices) <= MOST_CARDS else {}),
    }


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
    sign = 1 if score.higher_is_better else -1
    began = said.get("started") or (folder / SETTINGS).stat().st_mtime
    seconds = run.total("seconds") if run else summary.get("seconds")
    return {
        "folder": folder.name,
        "state": state,
        "kind": KINDS.get(state, "good"),
        "what": run_title(settings),
        "began": f"{datetime.fromtimestamp(began).astimezone():%Y-%m-%d %H:%M}",
        "rounds": f"{run.completed if run else summary.get('rounds', 0)}{of_rounds(settings.run.rounds)}",
        "own": UNKNOWN if mean is None else score.text(mean),
        "alone": score.text(beside[ALONE]) if ALONE in beside else UNKNOWN,
        "gain": difference(beside, score),
        "took": "" if seconds is None else human_seconds(seconds),
        "by": {
            "began": began,
            "took": seconds,
            # Scores of one kind stay together, the best of them first.
            "score": None if mean is None else (score.key, sign * mean),
            "gain": (score.key, sign * (beside[OWN] - beside[ALONE])) if is_known(beside) else None,
        },
    }
