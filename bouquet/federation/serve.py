"""``bouquet server``: the service, and the run on it; with ``--keep-waiting``, one run after another."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bouquet.common.errors import BouquetError
from bouquet.common.system.locks import locked
from bouquet.common.system.processes import ending_in_order
from bouquet.common.task.task import task_of
from bouquet.common.trust.code import owners_signature
from bouquet.federation.queue import (
    CURRENT,
    WITHOUT_LIMIT,
    NextRun,
    in_hand,
    interrupted,
    open_queue,
    put_down,
    queue_of,
    take_next,
    was_ended,
)
from bouquet.federation.run import check_folder, clear_service, do_run, is_finished, live_page
from bouquet.keys.store import ServerKeys, expiring
from bouquet.monitor.round_table import RoundTable, print_summary
from bouquet.server.run.stop import RunStopped
from bouquet.server.run.torch_worker import Parameters, check_settings, starting_point
from bouquet.server.run_folder import REPORT, SUMMARY
from bouquet.server.service.grid import FleetGrid
from bouquet.server.service.running import serving

HINT = "A run has one server; another run needs another --out."
LOOK_SECONDS = 1.0
SIGNATURE = "release.sig"
EXPIRY_SECONDS = 6 * 3600.0  # between two looks at what expires


@dataclass(frozen=True)
class Options:
    """How the server is reached, and how long it stays."""

    host: str
    port: int
    secured: ServerKeys | None
    console: Console
    health: str | None = None
    web: str | None = None
    keep_waiting: bool = False
    signature: Path | None = None

    @property
    def owners_signature(self) -> Path | None:
        """Where the owner's signature on the code lies: the file that was given, else `SIGNATURE` among the keys."""
        beside = None if self.secured is None else self.secured.registered.parent / SIGNATURE
        return self.signature or (beside if beside is not None and beside.exists() else None)


def serve(first: NextRun, resume: bool, options: Options, ended: bool = False) -> None:
    """Run the server until its run is over; with ``keep_waiting`` until it is ended.

    ``ended`` says that the first run is not to be gone on with, because its owner ended it.
    """
    console, secured = options.console, options.secured
    check_folder(first.folder, first.settings, resume)
    over = resume and is_finished(first.folder, first.settings)
    if over and not (options.keep_waiting and _is_reported(first.folder)):
        # The server may have been stopped between the last round and the report.
        console.print(
            f"The run is finished, after the {first.settings.run.rounds} rounds that are asked for. For more rounds "
            f"raise run.rounds; a new run needs another --out.\n{_report_line(first.folder)}",
            soft_wrap=True,
        )
    if over and not options.keep_waiting:
        return
    made = check_settings(first.settings, first.folder if resume else None)
    if signed := owners_signature(options.owners_signature)[1]:
        console.print(f"Signed: {signed}.", soft_wrap=True, highlight=False)
    with locked(first.folder, "the run folder", HINT), ending_in_order():
        if options.keep_waiting:
            open_queue(first.folder)
        shown = [first.folder]
        # The page first: an address that is wrong or taken is said before devices are listened for.
        with live_page(lambda: shown[0], options.web, secured, console), fleet(first, options) as grid:
            if not options.keep_waiting:
                _do(grid, first, resume, made, options)
                return
            _report_last(first.folder, console)
            todo = to_begin_with(first, resume, over or ended)
            while True:
                for run, goes_on in todo:
                    shown[0] = run.folder
                    _do_in_turn(grid, run, goes_on, made if run is first else None, first.folder, options)
                console.print("Waiting for the next run: bouquet run NEXT.toml", soft_wrap=True)
                todo = [(_wait_for_next(first.folder, console), False)]


@contextlib.contextmanager
def fleet(first: NextRun, options: Options) -> Iterator[FleetGrid]:
    """Serve devices inside the ``with`` block, and say who comes and goes."""
    console, secured = options.console, options.secured

    def report(line: str) -> None:
        console.print(Text(f"devices  {line}"), soft_wrap=True)

    over = threading.Event()
    if secured is not None:
        if not any(secured.registered.glob("*.crt")):
            console.print("No device is registered yet: bouquet keys add DEVICE …, also while this server runs.")
        threading.Thread(target=_say_what_expires, args=(secured, console, over), daemon=True).start()
    with serving(
        f"{f'[{options.host}]' if ':' in options.host else options.host}:{options.port}",
        clear_service(first.folder),
        certificates=secured.certificates if secured else None,
        registered=secured.registered if secured else None,
        health=options.health,
        report=report,
    ) as grid:
        how = "gRPC over TLS, registered devices only" if secured else "gRPC, neither encrypted nor authenticated"
        needed = first.settings.server.min_clients
        console.print(
            f"Listening on {options.host}:{options.port} ({how}), waiting for {needed} clients.", soft_wrap=True
        )
        try:
            yield grid
        finally:
            over.set()


def _say_what_expires(secured: ServerKeys, console: Console, over: threading.Event) -> None:
    while True:
        with contextlib.suppress(BouquetError):
            for line in expiring(secured.registered.parent, datetime.now(UTC)):
                console.print(Text(f"keys     {line}", style="yellow"), soft_wrap=True)
        if over.wait(EXPIRY_SECONDS):
            return


def to_begin_with(first: NextRun, resume: bool, over: bool) -> list[tuple[NextRun, bool]]:
    """The runs of a server that starts, and whether each goes on: the one it was at when it went down, and its first.

    ``over`` says that there is nothing to do for the first.
    """
    runs = []
    if (before := interrupted(first.folder)) is not None:
        runs.append((before, True))
    if not over:
        runs.append((first, resume))
    return runs


def _is_reported(folder: Path) -> bool:
    """Whether the report is of the result: drawing it would keep devices waiting for the next run."""
    report, summary = folder / REPORT, folder / SUMMARY
    return report.exists() and (not summary.exists() or report.stat().st_mtime >= summary.stat().st_mtime)


def _report_last(server: Path, console: Console) -> None:
    """Draw the report of a further run after whose end the server went down too soon."""
    last = in_hand(server)
    if last is not None and was_ended(last.folder) and not _is_reported(last.folder):
        console.print(_report_line(last.folder), soft_wrap=True)


def _do_in_turn(
    grid: FleetGrid, run: NextRun, resume: bool, made: Parameters | None, server: Path, options: Options
) -> None:
    """One of many runs: what is wrong with it does not end the server."""
    # Devices may come when they like.
    run = NextRun(run.settings.with_overrides({"server.wait_for_clients": WITHOUT_LIMIT}), run.folder)
    try:
        with contextlib.nullcontext() if run.folder == server else locked(run.folder, "the run folder", HINT):
            run.write(queue_of(server) / CURRENT)
            made = made or check_settings(run.settings, run.folder if resume else None)
            _do(grid, run, resume, made, options)
    except BouquetError as error:
        options.console.print(Text(f"The run {run.settings.run.name} failed: {error}", style="red"), soft_wrap=True)


def _do(grid: FleetGrid, run: NextRun, resume: bool, made: Parameters | None, options: Options) -> None:
    settings, console = run.settings, options.console
    registered = options.secured.registered if options.secured else None
    try:
        title, score = f"{settings.strategy.name}, run {settings.run.name}", task_of(settings).score
        with RoundTable(console, settings.run.rounds, title, score) as table:
            summary = do_run(
                grid,
                settings,
                run.folder,
                resume,
                starting_point(settings, run.folder if resume else None, made),
                registered=registered,
                signature=options.owners_signature,
                follow=table,
                show=table.status,
            )
    except RunStopped as stopped:
        console.print(f"{stopped}\n{_report_line(run.folder)}", soft_wrap=True)
        return
    print_summary(console, summary)
    console.print(_report_line(run.folder), soft_wrap=True)


def _wait_for_next(server: Path, console: Console) -> NextRun:
    while True:
        try:
            if (entry := take_next(server)) is not None:
                check_settings(entry.settings)
                check_folder(entry.folder, entry.settings, resume=False)
                return entry
        except BouquetError as error:
            put_down(server)
            console.print(Text(f"A run that was asked for cannot be done: {error}", style="red"), soft_wrap=True)
        time.sleep(LOOK_SECONDS)


def _report_line(folder: Path) -> str:
    from bouquet.experiments.report.run_report import (
        report_line,  # matplotlib, which is needed at the end of a run only
    )

    return report_line(folder)
