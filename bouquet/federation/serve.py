"""``bouquet server``: a SuperLink, and the run on it; with ``--keep-waiting``, one run after another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

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
from bouquet.federation.run import OneKeyTwice, ServerAppLost, admitted_devices, is_finished, live_page, run_federation
from bouquet.federation.start import check_folder, start_server
from bouquet.keys.store import ServerKeys
from bouquet.monitor.round_table import RoundTable, print_summary
from common.errors import BouquetError
from common.system.locks import locked
from common.system.process_group import ProcessGroup
from common.task.task import task_of
from common.trust.app_bundle import signed_app_files
from server.fleet.duplicates import Twins
from server.record.writer import RunRecord
from server.run.stop import RunStopped
from server.run.torch_worker import check_settings
from server.run_folder import REPORT, SUMMARY
from server.superlink.process import LEAST_MESSAGE_BYTES, SuperLink

HINT = "A run has one server; another run needs another --out."
LOOK_SECONDS = 1.0
SIGNATURE = "release.sig"
TOO_LARGE = (
    "The model of {name} takes {bytes} bytes, more than this server lets a device send at once: it was started for a "
    "smaller one. Start a server with this run as its first."
)


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
        """Where the owner's signature on the app lies: the file that was given, else `SIGNATURE` among the keys."""
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
    checked = check_settings(first.settings, first.folder if resume else None)
    if signed := signed_app_files(options.owners_signature)[1]:
        console.print(f"Signed: {signed}.", soft_wrap=True, highlight=False)
    with locked(first.folder, "the run folder", HINT), ProcessGroup() as group:
        checked.hand_on(first.folder)
        registered = secured.registered if secured else None
        one_key_twice = OneKeyTwice(
            registered or Path(), lambda line: console.print(Text(f"devices  {line}", style="yellow"), soft_wrap=True)
        )
        if options.keep_waiting:
            open_queue(first.folder)
        superlink = start_server(
            group,
            first.folder,
            host=options.host,
            port=options.port,
            resume=resume,
            certificates=secured.certificates if secured else None,
            registered=registered,
            health=options.health,
            current=queue_of(first.folder) / CURRENT if options.keep_waiting else None,
            on_line=one_key_twice.on_line,
            message_bytes=LEAST_MESSAGE_BYTES + checked.model_bytes,
        )
        if registered is not None and superlink.database is not None:
            one_key_twice.twins = Twins(superlink.database)
        how = "gRPC over TLS, registered devices only" if secured else "gRPC, neither encrypted nor authenticated"
        needed = first.settings.server.min_clients
        console.print(
            f"Listening on {options.host}:{options.port} ({how}), waiting for {needed} clients.", soft_wrap=True
        )
        shown = [first.folder]
        with (
            live_page(lambda: shown[0], options.web, secured, console),
            admitted_devices(superlink, registered, console),
        ):
            if not options.keep_waiting:
                _do(group, superlink, first, options, one_key_twice.look)
                return
            _report_last(first.folder, console)
            todo = to_begin_with(first, resume, over or ended)
            while True:
                for run, goes_on in todo:
                    shown[0] = run.folder
                    _do_in_turn(group, superlink, run, goes_on, first.folder, options, one_key_twice.look)
                console.print("Waiting for the next run: bouquet run NEXT.toml", soft_wrap=True)
                todo = [(_wait_for_next(superlink, first.folder, console, one_key_twice.look), False)]


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
    group: ProcessGroup,
    superlink: SuperLink,
    run: NextRun,
    resume: bool,
    server: Path,
    options: Options,
    look: Callable[[], None],
) -> None:
    """One of many runs: what is wrong with it does not end the server.

    Where its ServerApp was killed it goes on at once, as long as each time it has come further than the time before.
    """
    # Devices may come when they like.
    run = NextRun(run.settings.with_overrides({"server.wait_for_clients": WITHOUT_LIMIT}), run.folder)
    try:
        with contextlib.nullcontext() if run.folder == server else locked(run.folder, "the run folder", HINT):
            done = 0
            while True:
                run.write(queue_of(server) / CURRENT, resume)
                try:
                    _do(group, superlink, run, options, look)
                    return
                except ServerAppLost as lost:
                    before, done = done, len(RunRecord(run.folder).rounds())
                    if done <= before:
                        raise
                    options.console.print(Text(f"{lost}\nGoing on with {run.settings.run.name}."), soft_wrap=True)
                    resume = True
    except BouquetError as error:
        if not superlink.process.alive:
            raise
        options.console.print(Text(f"The run {run.settings.run.name} failed: {error}", style="red"), soft_wrap=True)


def _do(group: ProcessGroup, superlink: SuperLink, run: NextRun, options: Options, look: Callable[[], None]) -> None:
    settings, console, signature = run.settings, options.console, options.owners_signature
    try:
        title, score = f"{settings.strategy.name}, run {settings.run.name}", task_of(settings).score
        with RoundTable(console, settings.run.rounds, title, score) as table:
            summary = run_federation(superlink, settings, run.folder, table, table.status, look, signature)
    except RunStopped as stopped:
        console.print(f"{stopped}\n{_report_line(run.folder)}", soft_wrap=True)
        return
    print_summary(console, summary)
    console.print(_report_line(run.folder), soft_wrap=True)


def _wait_for_next(superlink: SuperLink, server: Path, console: Console, look: Callable[[], None]) -> NextRun:
    while True:
        if not superlink.process.alive:
            raise BouquetError(f"SuperLink ended.\n{superlink.process.tail()}")
        try:
            if (found := take_next(server)) is not None:
                checked = check_settings(found.settings)
                if found.settings.wire.compresses and not superlink.takes(checked.model_bytes):
                    raise BouquetError(TOO_LARGE.format(bytes=checked.model_bytes, name=found.settings.run.name))
                check_folder(found.folder, found.settings, resume=False)
                checked.hand_on(found.folder)
                return found
        except BouquetError as error:
            put_down(server)
            console.print(Text(f"A run that was asked for cannot be done: {error}", style="red"), soft_wrap=True)
        look()
        time.sleep(LOOK_SECONDS)


def _report_line(folder: Path) -> str:
    from experiments.report.run_report import report_line  # matplotlib, which is needed at the end of a run only

    return report_line(folder)
