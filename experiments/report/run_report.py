"""The report of a run: one self-contained HTML page in the run folder, also for a run that has not ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.common.privacy_accounting import DELTA
from bouquet.common.system.files import write_atomically
from bouquet.common.texts import of_rounds, plain
from bouquet.experiments.plots.run import plots_of
from bouquet.experiments.report.devices import MOST_CLUSTERS, capital, cards, charts, charts_of, clusters, rounds_of
from bouquet.experiments.report.pages import DEVICE, RUN, embed, render
from bouquet.experiments.report.reproduce import reproduce, settings_rows
from bouquet.experiments.report.units import human_bytes, human_seconds
from bouquet.server.monitoring.diagnosis import all_warnings, failures
from bouquet.server.record.gains import by_chance, gain, is_known, verdict
from bouquet.server.record.overview import NOT_NOW, overview
from bouquet.server.record.reader import Run, natural_order, read_run, untested
from bouquet.server.record.status import FAILED, STOPPED, WAITING
from bouquet.server.run_folder import REPORT

KINDS = {FAILED: "bad", STOPPED: "warn", WAITING: "warn"}  # colours of states; of the others "good"
MOST_CARDS = 24  # of more devices a line each
MOST_ROWS = 200  # of failures, and of rounds on a device's page
RANGES = (100, 1000, 10_000)  # of the newest rounds, that curves are offered of
FEW = 4  # layers that are named
UNKNOWN = "—"


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder and return its path; what was there is replaced in one step.

    Raises `bouquet.server.record.reader.RecordError` for a folder that is not a run or a record that cannot be read.
    """
    path = folder / REPORT
    write_atomically(path, render_report(read_run(folder)).encode())
    return path


def report_line(folder: Path) -> str:
    """Write the report and say where it is, or why there is none: a run that cannot be drawn has its result still."""
    try:
        return f"report   {write_report(folder)}"
    except Exception as error:  # whatever Matplotlib or a method's own plots raise for what is in a record
        reason = plain(f"{type(error).__name__}: {error}")
        return f"report   could not be made ({reason}). The record is whole: bouquet report {folder}"


def render_report(
    run: Run,
    status: Mapping[str, Any] | None = None,
    live: Mapping[str, Any] | None = None,
    figures: Sequence[Mapping[str, str]] | None = None,
) -> str:
    """The page as text; the same record gives the same page.

    ``live`` makes it the page of a server: ``now``, ``seconds`` between renewals, the ``nonce`` of its script, and
    ``newest``, of how many rounds the curves are, None of all. ``status`` is the run's `overview`, ``figures`` are
    plots that were drawn before.
    """
    status = overview(run) if status is None else status
    devices = cards(run, status["devices"], live["now"] if live else None)
    failed = [(line["round"], client, reason) for line in reversed(run.rounds) for client, reason in _failed(line)]
    now, before = _warnings(run, status)
    # That it has not ended is what the live page is for.
    notes = list(run.notes[1:] if live and run.summary is None else run.notes)
    if len(failed) > MOST_ROWS:
        notes.append(f"{len(failed)} failures are recorded; the page shows the last {MOST_ROWS}.")
    extra = (run.summary or {}).get("strategy_record") or (run.rounds[-1].get("strategy") if run.rounds else None)
    return render(
        RUN,
        embed(plots_of(run)) if figures is None else figures,
        title=run.settings.run.name,
        what=run.title,
        when=_times(run),
        live=live,
        run={**status["run"], "folder_name": run.folder.absolute().name},
        state=where(status["run"]),
        verdict=verdict_of(run),
        warnings=[*now, *notes, *untested(run.summary)],
        before=before,
        devices=devices,
        filters=(some := filters(devices) if len(devices) > MOST_CARDS else []),
        shown=next((key for key, *_ in some if key in ("look", "worse")), "device"),
        clusters=clusters(run, status["devices"]),
        groups=len(set(run.groups.values())),
        charts=charts(run, live["newest"] if live else None),
        ranges=ranges(run) if live else [],
        about=f"{len(run.clients)} clients, model {run.settings.model.name}, seed {run.settings.run.seed}."
        f"{start_text(run.start)}",
        numbers=headline(run),
        compares=bool(run.beside),
        by_class=class_rows(run),
        failures=failed[:MOST_ROWS],
        absences=[(client, len(rounds), _spans(rounds)) for client, rounds in sorted(run.absences.items())],
        endless=run.settings.run.is_endless,
        reproduce=reproduce(run.settings, run.folder),
        settings=settings_rows(run.settings),
        extra=json.dumps(extra, indent=2, ensure_ascii=False) if extra else "",
    )


def render_device(run: Run, status: Mapping[str, Any], name: str, live: Mapping[str, Any]) -> str:
    """The page of one device. Raises `BouquetError` for one that the run does not know."""
    devices = [device for device in status["devices"] if device["name"] == name]
    if not devices:
        raise BouquetError(f"The run {run.settings.run.name} knows no device of this name.")
    (device,) = cards(run, devices, live["now"])
    about = {
        "cluster": "" if device["cluster"] is None else str(device["cluster"]),
        "serves": device["serves"],
        "samples": device["samples"],
        "left out": device["left_out"],
        "its data": " ".join(device["warnings"]),
        "true group": device["group"],
        "bouquet": device["release"],
        "tags": ", ".join(device["tags"]),
        "failures": device["failures"],
        "absent in rounds": _spans(run.absences.get(name, [])),
        "sent to the server": human_bytes(device["bytes_up"]),
        "received": human_bytes(device["bytes_down"]),
        "machine": device["machine"],
    }
    classes = class_rows(run, name)
    return render(
        DEVICE,
        (),
        title=f"{name}, {run.settings.run.name}",
        run={**status["run"], "folder_name": run.folder.absolute().name},
        live=live,
        device=device,
        verdict=capital(gain(device["beside"], run.score)),
        chance=by_chance(device["beside"], run.score) if is_known(device["beside"]) else "",
        about=[(key, value) for key, value in about.items() if value not in (None, "", 0)],
        charts=charts_of(run, name, live["newest"]),
        ranges=ranges(run),
        rounds=rounds_of(run, name, newest := live["newest"] or MOST_ROWS),
        newest=newest if newest < len(run.rounds) else None,
        by_class=classes,
    )


def ranges(run: Run) -> list[tuple[str, int | None]]:
    """What the curves may be of, in words, and how many rounds that is; empty where there are few."""
    some = [(f"last {count}", count) for count in reversed(RANGES) if count < len(run.rounds)]
    return [("all rounds", None), *some] if some else []


def where(run: Mapping[str, Any]) -> dict[str, str]:
    """A run's state: the word, its colour, and where it is."""
    kind = KINDS.get(run["state"], "good")
    if run["state"] == WAITING:
        return {"word": run["state"], "kind": kind, "text": run["waiting"]}
    text = f"round {run['round']}{of_rounds(run['rounds'])}"
    text += f", about {human_seconds(run['time_left'])} left" if run["time_left"] is not None else ""
    return {"word": run["state"], "kind": kind, "text": f"{text}. {run['reason'] or ''}".strip()}


def verdict_of(run: Run) -> dict[str, str]:
    """The line that a page leads with: the gain over alone, else the score."""
    if found := verdict(run.beside, run.score):
        kind = "calm" if found.is_gain is None else "good" if found.is_gain else "bad"
        return {"lead": found.lead, "text": found.text, "kind": kind}
    if (mean := run.final(run.score.of("macro"))) is None:
        return {"lead": "Nothing is tested yet" if run.summary is None else "No score was sent", "text": "", "kind": ""}
    lead = f"{capital(run.score.label)} {run.score.text(mean)}"
    return {"lead": lead, "text": "Mean of the devices, of the models that they are sent. None compares.", "kind": ""}


def filters(devices: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """What a page of many devices may show alone: the class of their rows, words, and how many they are."""
    found = Counter(f"k{device['cluster']}" for device in devices if device["cluster"] is not None)
    some = [(key, f"cluster {key[1:]}", count) for key, count in found.items()] if len(found) <= MOST_CLUSTERS else []
    look = sum(device["look"] for device in devices)
    worse = sum(device["worse"] for device in devices)
    resting = sum(device["state"] == NOT_NOW for device in devices)
    first = [("look", "need a look", look), ("worse", "worse off than alone", worse), ("rest", "not now", resting)]
    return [("device", "all", len(devices)), *(one for one in (*first, *some) if one[2])]


def _warnings(run: Run, status: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What is wrong now, with the round that said it first where one did; and what was."""
    said, now = all_warnings(run.rounds), status["run"]["warnings"]
    current = [next((text for text in said if text.endswith(one)), one) for one in now]
    return current, [text for text in said if text not in current]


def start_text(start: Mapping[str, Any]) -> str:
    """What a run started from beside its seed, in words; empty where that was all."""
    text = ""
    if file := start.get("weights"):
        drawn = f"; drawn: {', '.join(start['fresh'])}" if start["fresh"] else ""
        text += f" Starts from {file} (SHA-256 {start['sha256'][:12]}…), {start['taken']} tensors{drawn}."
    if frozen := start.get("frozen"):
        text += f" Frozen: {', '.join(frozen) if len(frozen) <= FEW else f'{len(frozen)} layers'}."
    return text


def headline(run: Run) -> list[tuple[str, str]]:
    """The numbers beside the verdict, as (name, value); what the record does not know is left out."""
    label = run.score.label
    numbers = [
        (f"{label}, worst tenth of clients", _score(run, "worst_decile")),
        ("the best mean over clients", _best(run)),
        ("the best that is foretold without a model", _scored(run, run.final("naive_macro"))),
        ("F1, mean over clients", _fraction(run.final("f1_macro"))),
    ]
    numbers += [("purity", _fraction(run.final("purity"))), ("adjusted Rand index", _fraction(run.final("ari")))]
    if run.rounds or run.summary:
        numbers += [
            (f"up, to the server{_uncompressed(run, 'bytes_up')}", human_bytes(run.total("bytes_up"))),
            (f"down, to the devices{_uncompressed(run, 'bytes_down')}", human_bytes(run.total("bytes_down"))),
            ("time", human_seconds(run.total("seconds"))),
            ("failed replies", f"{run.series('failures')[1].sum():g}"),
            ("failed evaluations between rounds", str(sum(map(_not_evaluated, run.rounds)) or UNKNOWN)),
            ("privacy spent, at most", _spent(run)),
        ]
    return [(name, value) for name, value in numbers if value != UNKNOWN]


def _score(run: Run, what: str) -> str:
    return _scored(run, run.final(run.score.of(what)))


def _scored(run: Run, value: float | None) -> str:
    return UNKNOWN if value is None else run.score.text(value)


def class_rows(run: Run, only: str | None = None) -> list[list[str]]:
    """Accuracy and samples by class, of the clients that report them, heads first; empty where none does."""
    named = run.last_numbers if only is None else {only: run.last_numbers.get(only, {})}
    found = {client: numbers["classes"] for client, numbers in named.items() if numbers.get("classes")}
    if not found:
        return []
    count = max(len(classes["samples"]) for classes in found.values())
    names = run.settings.data.classes if len(run.settings.data.classes) == count else [str(k) for k in range(count)]
    rows = [["client", *names]]
    for client in sorted(found, key=natural_order):
        classes = zip(found[client]["accuracy"], found[client]["samples"], strict=True)
        rows.append([client, *(f"{_fraction(accuracy)} of {samples}" for accuracy, samples in classes)])
    return rows


def _spent(run: Run) -> str:
    """The greatest (ε, δ) of a client; what it does not cover is said beside it."""
    spent = run.rounds[-1].get("epsilon") if run.rounds else None
    if spent is None:
        return UNKNOWN
    privacy = run.settings.privacy
    if None in spent.values():
        return "no ε: clipped, without noise"
    found = f"ε = {max(spent.values(), default=0.0):.3g} at δ = {DELTA:g}"
    return found if privacy.withholds else f"{found}, of the models; scores were sent"


def _best(run: Run) -> str:
    """The best mean score, and after which round, from two rounds on."""
    rounds, values = run.outcome(run.score.of("macro"))
    if len(values) < 2:
        return UNKNOWN
    best = run.score.best(values)
    return f"{run.score.text(best)} after round {rounds[list(values).index(best)]:g}"


def _uncompressed(run: Run, key: str) -> str:
    """What the bytes of one way would have been, where the run compressed them."""
    plain = run.total(f"{key}_plain")
    return "" if plain == run.total(key) else f", {human_bytes(plain)} uncompressed"


def _failed(line: Any) -> list[tuple[str, str]]:
    """Client and reason of every failure of a round; those that the record only counted come as one row."""
    named = failures(line)
    uncounted = (line.get("failures") or 0) - len(line.get("failed") or {})
    return named + ([(UNKNOWN, f"{uncounted} without a recorded reason")] if uncounted > 0 else [])


def _not_evaluated(line: Any) -> int:
    return len((line.get("evaluation") or {}).get("not_evaluated") or {})


def _times(run: Run) -> str:
    """When the run began and ended, in local time; empty where that was not recorded."""
    if run.started is None:
        return ""
    began, ended = (
        None if seconds is None else f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M %Z}"
        for seconds in (run.started, run.ended)
    )
    return f"Started {began}, ended {ended}." if ended else f"Started {began}."


def _spans(rounds: list[int]) -> str:
    """``1–3, 7`` of 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in spans)


def _fraction(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"
