"""`bouquet compare`: run what is missing of a grid, some cells at once, and gather the results.

Every cell is a run folder ``OUT/cells/SLUG``, with its log beside it. A cell is done when it has a summary and its
settings are the ones that the table asks for now, so that a comparison that was stopped, or whose table has grown, goes
on where it is. A part of a table is a table with fewer rows, columns or seeds, and the same ``OUT``.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.system.files import make_folder
from bouquet.common.system.locks import locked
from bouquet.common.system.resources import available_cores
from bouquet.experiments.comparison.cell_process import CellProcess
from bouquet.experiments.comparison.measures import Metric
from bouquet.experiments.comparison.table import Cell, ComparisonTable
from bouquet.experiments.report.units import human_seconds
from bouquet.server import run_folder
from bouquet.server.record.reader import RecordError, Run, read_run

MOST_SHOWN = 3  # running cells that the progress names
GRACE = 15.0  # seconds that cells have to end themselves after Ctrl-C
Begin = Callable[[Settings, Path], CellProcess]
# A second comparison would remove the cells that the first is running.
ALONE = "Another comparison is running there; wait for it, or give another --out."
# Settings of the server that say which devices a figure is of, and after which rounds; a run may go on with others.
TESTED_BY = ("evaluate_every", "fraction_evaluate", "buffer", "min_replies")
State = Literal["done", "missing", "other settings"]


@dataclass
class CellResult:
    """One cell after the comparison: its run, or why there is none."""

    cell: Cell
    run: Run | None = None
    error: str | None = None


@dataclass
class Results:
    """All cells of a table in its order; ``interrupted`` when Ctrl-C ended the comparison."""

    table: ComparisonTable
    cells: list[CellResult] = field(default_factory=list)
    interrupted: bool = False
    tuning: Results | None = None  # of the table that its rows were tuned with

    @property
    def failed(self) -> list[CellResult]:
        """Cells that ran and failed."""
        return [result for result in self.cells if result.error is not None]

    @property
    def every_failed(self) -> list[CellResult]:
        """Those, and those of the tuning."""
        return [*(self.tuning.failed if self.tuning else ()), *self.failed]

    @property
    def missing(self) -> list[CellResult]:
        """Cells that have neither failed nor been run."""
        return [one for one in self.cells if one.run is None and one.error is None]

    def runs(self, strategy: str, data: str) -> list[Run]:
        """The finished runs of one row and column, in the order of the seeds."""
        return [result.run for result in self.cells_of(strategy, data) if result.run is not None]

    def cells_of(self, strategy: str, data: str) -> list[CellResult]:
        """The cells that one row and column are read from, in the order of the seeds."""
        cells = self.table.row(strategy).cells
        return [result for result in self.cells if (result.cell.strategy, result.cell.data) == (cells, data)]

    def values(self, metric: Metric, strategy: str, data: str) -> list[float | None]:
        """A metric in every seed of one row and column; None where it has no value or the cell has not been run."""
        tested = self.table.row(strategy).tested
        return [
            None if result.run is None else metric.of(result.run, tested) for result in self.cells_of(strategy, data)
        ]


def run_table(
    table: ComparisonTable,
    out: Path,
    jobs: int | None,
    console: Console,
    check: Callable[[Settings], None] | None = None,
    quiet: bool = False,
    begin: Begin = CellProcess,
    wanted: Collection[str] | None = None,
) -> Results:
    """Run the cells that are not done, ``jobs`` at once, and read them all.

    A cell that fails is reported and the others go on. Ctrl-C, or SIGTERM, ends the cells that are running, keeps those
    that are done, and returns what there is. A cell that was cut short starts anew. ``check`` is called with the
    settings of a cell of each row and column, and of each column and seed, before the first runs. ``quiet`` says
    nothing but the progress, and what failed. With ``wanted``, slugs of cells, no others are run or read.
    Raises `BouquetError` when ``out`` is in use by another comparison or holds what is not a run, and for what does not
    pass the ``check``.
    """
    folder = make_folder(out / "cells", "the folder of the runs")
    with locked(out, "the comparison's folder", ALONE), _terminated_like_interrupted():
        results = Results(table, [CellResult(cell) for cell in table.cells])
        todo = []
        for result in results.cells if wanted is None else [r for r in results.cells if r.cell.slug in wanted]:
            state = cell_state(result.cell, folder / result.cell.slug)
            if state == "done":
                result.run = read_run(folder / result.cell.slug)
            else:
                todo.append((result, state))
        if check is not None:
            check_cells([result.cell for result, _ in todo], check)
        for result, state in todo:
            _check_removable(folder / result.cell.slug)
            if state == "other settings" and not quiet:
                console.print(Text(f"{result.cell.slug} was run with other settings and is run again."))
        done = sum(result.run is not None for result in results.cells)
        if not quiet:
            console.print(f"{done} of {len(results.cells)} cells are done already.")
        if todo:
            at_once = min(jobs or default_jobs([result.cell for result, _ in todo]), len(todo))
            _run_all(results, [result for result, _ in todo], folder, at_once, begin, console, quiet)
    return results


def check_cells(cells: Sequence[Cell], check: Callable[[Settings], None]) -> None:
    """Check a cell of each row and column, and of each column and seed; the others differ from them in nothing checked.

    Raises `BouquetError` with all that does not pass.
    """
    seen: set[object] = set()
    wrong = []
    for cell in cells:
        new = {(cell.strategy, cell.data), (cell.data, cell.seed)} - seen
        if not new:
            continue
        seen |= new
        try:
            check(cell.settings)
        except BouquetError as error:
            wrong.append(f"{cell.slug}: {error}")
    if wrong:
        raise BouquetError("\n".join(["Nothing was run, because cells of the table cannot be:", *wrong]))


def cell_state(cell: Cell, folder: Path) -> State:
    """What a cell's folder holds, against what the table asks for now."""
    if not (folder / run_folder.SUMMARY).exists():
        return "missing"
    try:
        run = read_run(folder)
    except RecordError:  # by another release
        return "other settings"
    return "done" if _shown_by(run.settings) == _shown_by(cell.settings) else "other settings"


def _shown_by(settings: Settings) -> object:
    """What a cell's figures depend on: more than a run that goes on may not change."""
    server = {name: getattr(settings.server, name) for name in TESTED_BY}
    fleet = settings.simulation.speeds, settings.simulation.links, settings.personal.compare
    return settings.fingerprint(), settings.run.rounds, settings.train.budget, settings.model.weights, server, fleet


def default_jobs(cells: Sequence[Cell]) -> int:
    """How many cells fit on this machine: one, if a cell takes all cores (Ray does), else cores over its threads."""
    cores = available_cores()
    needed = [
        cores if cell.settings.simulation.engine == "ray" else cell.settings.train.threads or cores for cell in cells
    ]
    return max(1, cores // max(needed, default=1))


def _run_all(
    results: Results,
    todo: Sequence[CellResult],
    folder: Path,
    jobs: int,
    begin: Begin,
    console: Console,
    quiet: bool,
) -> None:
    """Keep ``jobs`` cells running until none is left, showing how far they are."""
    waiting = list(reversed(todo))
    running: dict[CellProcess, tuple[CellResult, float]] = {}
    columns = (TextColumn("{task.completed}/{task.total} cells"), BarColumn(), TextColumn("{task.fields[state]}"))
    progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    bar = progress.add_task("", total=len(todo), state="")
    with progress:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    result = waiting.pop()
                    running[_begin(result.cell, folder / result.cell.slug, begin)] = result, time.monotonic()
                ended = [process for process in running if process.has_ended]
                for process in ended:
                    result, since = running.pop(process)
                    _take(result, process, folder / result.cell.slug)
                    _say(result, time.monotonic() - since, console, quiet)
                state = _state_text(results, [result for result, _ in running.values()], folder)
                progress.update(bar, advance=len(ended), state=state)
                if not ended:
                    time.sleep(0.1)
        except KeyboardInterrupt:
            results.interrupted = True
            console.print("Stopping the cells that are running; those that are done are kept.")
            _stop([*running])
            for process, (result, _) in running.items():
                if not process.failure():
                    _take(result, process, folder / result.cell.slug)


def _begin(cell: Cell, folder: Path, begin: Begin) -> CellProcess:
    """Start a cell in its folder, without whatever an earlier run left there."""
    if folder.exists():
        shutil.rmtree(folder)
    return begin(cell.settings, folder)


def _take(result: CellResult, process: CellProcess, folder: Path) -> None:
    """Note what became of a cell."""
    result.error = process.failure() or None
    if result.error is None and cell_state(result.cell, folder) != "done":
        result.error = f"The run ended without a summary for these settings in {folder}."
    if result.error is None:
        result.run = read_run(folder)


def _say(result: CellResult, seconds: float, console: Console, quiet: bool) -> None:
    took = f"{result.cell.slug} ({human_seconds(seconds)})"
    if result.error is not None:
        console.print(Text.assemble(("failed", "red"), f"  {took}\n{result.error}"))
    elif not quiet:
        console.print(Text.assemble(("done", "green"), f"    {took}"))


def _stop(processes: Sequence[CellProcess]) -> None:
    """Interrupt cells as Ctrl-C would; kill what is still there after `GRACE` seconds, or at a second Ctrl-C."""
    end = time.monotonic() + GRACE
    try:
        for process in processes:
            process.send(signal.SIGINT)
        for process in processes:
            process.wait(max(0.0, end - time.monotonic()))
    finally:
        for process in processes:
            process.send(signal.SIGKILL)
            process.wait(GRACE)


def _state_text(results: Results, running: Sequence[CellResult], folder: Path) -> str:
    """Running cells with their rounds, and failures."""
    now = [f"{r.cell.slug} {_rounds(folder / r.cell.slug)}/{r.cell.settings.run.rounds}" for r in running]
    more = f" and {len(now) - MOST_SHOWN} more" if len(now) > MOST_SHOWN else ""
    parts = [f"{len(now)} running: {', '.join(now[:MOST_SHOWN])}{more}"] if now else []
    parts += [f"[red]{len(results.failed)} failed[/]"] if results.failed else []
    return " · ".join(parts)


def _rounds(folder: Path) -> int:
    """Rounds that a running cell has recorded."""
    try:
        return (folder / run_folder.ROUNDS).read_bytes().count(b"\n")
    except OSError:
        return 0


def _check_removable(folder: Path) -> None:
    """Refuse to touch a folder that holds something other than a run."""
    if not folder.exists():
        return
    names = (entry.name for entry in folder.iterdir() if entry.name[0] != ".")
    strange = [name for name in names if name not in run_folder.EVERYTHING]
    if strange:
        raise BouquetError(
            f"{folder} holds {sorted(strange)[0]!r}, which no run leaves there; move it away, or give another --out."
        )


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end the cells too. A signal can be handled in the main thread only; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
