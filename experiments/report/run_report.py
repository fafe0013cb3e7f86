"""The report of a run: one self-contained HTML page in the run folder, also for a run that has not ended."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bouquet.common.privacy_accounting import DELTA
from bouquet.common.settings import Settings, parse_settings
from bouquet.common.settings.sections import OWN_DATA
from bouquet.common.system.files import write_atomically
from bouquet.common.texts import plain
from bouquet.experiments.plots.clients import cluster_colours
from bouquet.experiments.plots.run import plots_of
from bouquet.experiments.report.pages import RUN, embed, render
from bouquet.experiments.report.units import human_bytes, human_seconds
from bouquet.server.monitoring.diagnosis import all_warnings, failures
from bouquet.server.record.beside import HEADS
from bouquet.server.record.beside import cells as beside_cells
from bouquet.server.record.beside import sentence as sentence_of
from bouquet.server.record.reader import Run, natural_order, read_run, untested
from bouquet.server.run_folder import REPORT

SHORT_OPTIONS = {
    "strategy.name": "--strategy",
    "data.dataset": "--dataset",
    "data.data_dir": "--data-dir",
    "data.partition": "--partition",
    "data.clients": "--clients",
    "data.groups": "--groups",
    "model.name": "--model",
    "run.rounds": "--rounds",
    "run.seed": "--seed",
}
ALWAYS_SHOWN = ("strategy.name", "data.dataset", "data.partition", "data.clients", "run.rounds", "run.seed")
MOST_FAILURES = 200
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
    run: Run, live: Mapping[str, Any] | None = None, figures: Sequence[Mapping[str, str]] | None = None
) -> str:
    """The page as text; the same record gives the same page.

    ``live`` makes it the page of a server that runs: ``headline``, a table ``devices`` and its head, ``seconds``
    between renewals. ``figures`` are plots that were drawn before.
    """
    failed = [(line["round"], client, reason) for line in run.rounds for client, reason in _failed(line)]
    # That it has not ended is what the live page is for.
    notes = list(run.notes[1:] if live and run.summary is None else run.notes)
    if len(failed) > MOST_FAILURES:
        notes.append(f"{len(failed)} failures are recorded; the page shows the first {MOST_FAILURES}.")
    notes += untested(run.summary)
    notes += all_warnings(run.rounds)
    extra = (run.summary or {}).get("strategy_record") or (run.rounds[-1].get("strategy") if run.rounds else None)
    state = f"{run.completed} rounds" if run.summary else f"{run.completed} of {run.settings.run.rounds} rounds so far"
    what = f"model {run.settings.model.name}, {state}, seed {run.settings.run.seed}"
    return render(
        RUN,
        embed(plots_of(run)) if figures is None else figures,
        title=run.settings.run.name,
        what=run.title,
        when=_times(run),
        live=live,
        lead=f"{len(run.clients)} clients, {what}.{start_text(run.start)}",
        notes=notes,
        numbers=headline(run),
        clients=(rows := client_rows(run, Counter(client for _, client, _ in failed))),
        keeps=any(row["kept"] for row in rows),
        beside=HEADS if run.beside else (),
        worth=sentence_of(run.beside, run.score),
        score=run.score.label,
        groups_known=bool(run.groups),
        by_class=class_rows(run),
        failures=failed[:MOST_FAILURES],
        absences=[(client, len(rounds), _spans(rounds)) for client, rounds in sorted(run.absences.items())],
        reproduce=reproduce(run.settings, run.folder),
        settings=settings_rows(run.settings),
        extra=json.dumps(extra, indent=2, ensure_ascii=False) if extra else "",
    )


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
    """The numbers on top of the page, as (name, value); what the record does not know is left out."""
    label = run.score.label
    numbers = [
        (f"{label}, mean over clients", _score(run, "macro")),
        (f"{label}, mean over examples", _score(run, "micro")),
        (f"{label}, worst tenth of clients", _score(run, "worst_decile")),
        ("the best mean over clients", _best(run)),
        ("the best that is foretold without a model", _scored(run, run.final("naive_macro"))),
        (f"deviation of {label} over clients", _score(run, "deviation")),
        ("F1, mean over clients", _fraction(run.final("f1_macro"))),
    ]
    clusters = run.final("clusters")
    if clusters is not None:
        true = f" for {len(set(run.groups.values()))} true groups" if run.groups else ""
        numbers.append((f"clusters{true}", f"{clusters:g}"))
    numbers += [
        ("purity", _fraction(run.final("purity"))),
        ("adjusted Rand index", _fraction(run.final("ari"))),
    ]
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


def client_rows(run: Run, failed: Counter[str]) -> list[dict[str, Any]]:
    """One row a client, by true group (else by cluster)."""
    colours = cluster_colours(run)
    rows = []
    for client in run.by_group() if run.groups else run.by_cluster():
        cluster = run.assignment.get(client)
        up, down = run.bytes_by_client.get(client, (None, None))
        numbers = run.last_numbers.get(client, {})
        rows.append(
            {
                "name": client,
                "group": run.groups.get(client, UNKNOWN),
                "cluster": UNKNOWN if cluster is None else cluster,
                "colour": "" if cluster is None else colours[cluster],
                "score": _scored(run, run.score_by_client.get(client)),
                "beside": beside_cells(run.beside.get(client, {}), run.score),
                "kept": run.served(client),
                "samples": _count(numbers.get("samples")),
                "up": UNKNOWN if up is None else human_bytes(up),
                "down": UNKNOWN if down is None else human_bytes(down),
                "failures": failed[client],
            }
        )
    return rows


def class_rows(run: Run) -> list[list[str]]:
    """Accuracy and samples by class, of the clients that report them, heads first; empty where none does."""
    found = {client: numbers["classes"] for client, numbers in run.last_numbers.items() if numbers.get("classes")}
    if not found:
        return []
    count = max(len(classes["samples"]) for classes in found.values())
    names = run.settings.data.classes if len(run.settings.data.classes) == count else [str(k) for k in range(count)]
    rows = [["client", *names]]
    for client in sorted(found, key=natural_order):
        classes = zip(found[client]["accuracy"], found[client]["samples"], strict=True)
        rows.append([client, *(f"{_fraction(accuracy)} of {samples}" for accuracy, samples in classes)])
    return rows


def settings_rows(settings: Settings) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings as ``section.key`` and value: those that were chosen, then those that have their defaults."""
    defaults = _flat(Settings())
    chosen: list[tuple[str, str]] = []
    untouched: list[tuple[str, str]] = []
    for key, value in _flat(settings).items():
        if key == "data.partition" and _on_devices(settings):
            continue  # nobody divides what devices have
        (untouched if _is_default(key, value, defaults) else chosen).append((key, _text(value) or "(empty)"))
    return [("chosen for this run", chosen), ("at their defaults", untouched)]


def reproduce(settings: Settings, folder: Path) -> dict[str, str]:
    """The command that runs the same settings again, and a sentence that says so."""
    if _on_devices(settings):
        command = ["bouquet", "server", *arguments(settings, short=False)]
        text = "The devices trained on data of their own, which only they have. With the devices connected again:"
    else:
        command = ["bouquet", "simulate", *arguments(settings), "--out", f"{folder.name or 'run'}-again"]
        text = "The same settings and seed give the same summary.json, seconds apart:"
    return {"text": text, "command": shlex.join(command)}


def arguments(settings: Settings, short: bool = True) -> list[str]:
    """Command line arguments that `bouquet.common.settings.load_settings` reads back as these very settings."""
    defaults, values = _flat(Settings()), _flat(settings)
    words: list[str] = []
    for key in [*SHORT_OPTIONS, *(key for key in values if key not in SHORT_OPTIONS)]:
        if _is_default(key, values[key], defaults) and not (short and key in ALWAYS_SHOWN):
            continue
        if short and key in SHORT_OPTIONS:
            words += [SHORT_OPTIONS[key], _text(values[key])]
        else:
            words += ["--set", f"{key}={_as_setting(settings, key, values[key])}"]
    return words


def _on_devices(settings: Settings) -> bool:
    """Whether the data are the devices' own, which this machine does not have."""
    return settings.data.dataset == OWN_DATA and not settings.data.data_dir


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
    plain = run.total(f"{key}_plain")  # 0 in a record of an older release
    return "" if plain in (0, run.total(key)) else f", {human_bytes(plain)} uncompressed"


def _failed(line: Any) -> list[tuple[str, str]]:
    """Client and reason of every failure of a round; those that the record only counted come as one row."""
    named = failures(line)
    uncounted = (line.get("failures") or 0) - len(line.get("failed") or {})
    return named + ([(UNKNOWN, f"{uncounted} without a recorded reason")] if uncounted > 0 else [])


def _not_evaluated(line: Any) -> int:
    return len((line.get("evaluation") or {}).get("not_evaluated") or {})


def _flat(settings: Settings) -> dict[str, Any]:
    """``section.key`` → value, as JSON has it."""
    content = settings.model_dump(mode="json")
    return {f"{section}.{key}": value for section, values in content.items() for key, value in values.items()}


def _is_default(key: str, value: Any, defaults: dict[str, Any]) -> bool:
    return key in defaults and defaults[key] == value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_setting(settings: Settings, key: str, value: Any) -> str:
    """The text from which ``--set`` reads this very value: bare where that is enough, else as JSON."""
    bare = _text(value)
    section, _, name = key.partition(".")
    read = parse_settings(settings.model_dump(), {key: bare}).model_dump(mode="json")
    return bare if read[section][name] == value else json.dumps(value)


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


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
