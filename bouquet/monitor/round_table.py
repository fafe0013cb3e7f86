"""What a person sees while a run goes on: one line of a table for each round."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bouquet.common.metrics import written
from bouquet.common.system.log_file import stamp
from bouquet.common.task.score import ACCURACY, Score
from bouquet.common.texts import ENDLESS
from bouquet.experiments.report.units import human_bytes, human_seconds
from bouquet.server.monitoring.diagnosis import failures
from bouquet.server.record.gains import HEADS as GAIN_HEADS
from bouquet.server.record.gains import Gains
from bouquet.server.record.gains import cells as gain_cells
from bouquet.server.record.gains import sentence as sentence_of
from bouquet.server.record.reader import natural_order, untested
from bouquet.server.record.status import TESTING, TRAINING, WAITING, sentence

MOST_DEVICES = 40  # of which each is shown


def heads(score: Score) -> tuple[str, ...]:
    """The heads of the table's columns."""
    return ("round", "clients", "clusters", "purity", "loss", score.title, "trained", "down", "up", "time")


class RoundTable:
    """A table that grows by a line each round: live on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, rounds: int, title: str, score: Score = ACCURACY) -> None:
        self.console = console
        self.rounds = rounds
        self.is_live = console.is_terminal and rounds < ENDLESS  # a table that is drawn again has to end
        self.score = score
        self.table = Table(title=title, title_justify="left", caption_justify="left")
        for column in heads(score):
            self.table.add_column(column, justify="right")
        self._live = Live(self.table, console=console, refresh_per_second=4, transient=False)
        self._said = ""
        self._resting: dict[str, str] = {}
        self.say("waiting for devices")

    def __enter__(self) -> RoundTable:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.table.caption = None
        self._live.stop()

    def say(self, text: str) -> None:
        """What is going on, below the table."""
        self.table.caption = Text(f"{text} …")

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Add a round's line from ``rounds.jsonl``."""
        cells = _cells(line, self.rounds, self.score)
        if self.is_live:
            self.table.add_row(*cells)
        self.say(f"round {line['round'] + 1}" if line["round"] < self.rounds else "testing every client's model")
        if not self.is_live:
            named = (f"{name} {cell}" for name, cell in zip(heads(self.score), cells, strict=True) if cell != "–")
            self.console.print(Text(stamp("  ".join(named))), soft_wrap=True)
        for client, reason in failures(line):
            self._note(f"round {line['round']} without {client}: {reason}", "yellow")
        resting = line.get("not_now") or {}
        for client, reason in resting.items():
            if self._resting.get(client) != reason:
                self._note(f"round {line['round']} without {client}, not now: {reason}")
        self._resting = resting
        if absent := [name for name in line.get("absent", ()) if name not in line["failed"]]:
            self._note(f"round {line['round']} without {', '.join(absent)}: absent", "yellow")
        for warning in line.get("warnings", ()):
            self._note(f"round {line['round']}: {warning}", "bold yellow")

    def status(self, status: Mapping[str, Any]) -> None:
        """What the server is doing: whom it waits for, which round it is in."""
        state = status.get("state")
        if state == WAITING:
            text = f"waiting for devices: {sentence(dict(status)).rstrip('.')}"
            if not self.is_live and text != self._said:
                self.console.print(Text(stamp(text)), soft_wrap=True)
            self._said = text
            self.say(text)
        elif state == TRAINING:
            self.say(f"round {status['round']}")
        elif state == TESTING:
            self.say("testing every client's model")

    def _note(self, text: str, style: str = "") -> None:
        self.console.print(Text(text if self.is_live else stamp(text), style=style), soft_wrap=True)


def _cells(line: Mapping[str, Any], rounds: int, score: Score) -> list[str]:
    answered = line["replies"] + line["failures"]
    return [
        f"{line['round']}/{rounds}" if rounds < ENDLESS else str(line["round"]),
        f"{line['replies']}/{answered}" if line["failures"] else str(line["replies"]),
        str(line["clusters"]),
        *("–" if line[key] is None else written(line[key], digits) for key, digits in (("purity", 2), ("loss", 3))),
        _scored(score, line[score.of("macro")]),
        _scored(score, line[score.of("trained_macro")]),
        human_bytes(line["bytes_down"]),
        human_bytes(line["bytes_up"]),
        human_seconds(line["seconds"]),
    ]


def _scored(score: Score, value: float | None) -> str:
    return "–" if value is None else score.number(value)


def print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """The result of a run in a few lines."""
    table = Table(show_header=False, box=None, pad_edge=False)
    score = Score.in_record(summary)
    rows = [
        (score.title, f"{_scored(score, summary[score.of('macro')])} mean over {summary['clients']} clients"),
        ("", f"{_scored(score, summary[score.of('micro')])} weighted by examples"),
        ("", f"{_scored(score, summary[score.of('worst_decile')])} worst tenth of the clients"),
        ("clusters", str(summary["clusters"])),
        ("bytes", f"{human_bytes(summary['bytes_down'])} down, {human_bytes(summary['bytes_up'])} up"),
        ("time", human_seconds(summary["seconds"])),
    ]
    best = summary.get("best_round")
    if best and best["round"] < summary["rounds"]:
        value = score.number(best[score.of("macro")])
        rows.insert(3, ("", f"{value} mean of the method's own tests after round {best['round']}, their best"))
    if (naive := summary.get("naive_macro")) is not None:
        rows.insert(3, ("", f"{score.number(naive)} mean of the best that is foretold without a model"))
    if summary["purity"] is not None:
        rows.insert(-2, ("", f"purity {summary['purity']:.2f}, adjusted Rand index {summary['ari']:.2f}"))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    if beside := summary.get("beside_by_client"):
        print_beside(console, beside, score)
    for line in untested(summary):
        console.print(Text(line), soft_wrap=True)
    for warning in summary.get("warnings", ()):
        console.print(Text(f"warning  {warning}", style="bold yellow"), soft_wrap=True)


def print_beside(console: Console, beside: Gains, score: Score) -> None:
    """What each device has, would have alone and was sent, and a sentence on it; of many devices the sentence alone."""
    if len(beside) <= MOST_DEVICES:
        table = Table(title="Was it worth it?", title_justify="left")
        for head in ("device", *GAIN_HEADS):
            table.add_column(head, justify="left" if head == "device" else "right")
        for client in sorted(beside, key=natural_order):
            table.add_row(client, *gain_cells(beside[client], score))
        console.print(table)
    console.print(Text(sentence_of(beside, score)), soft_wrap=True)
