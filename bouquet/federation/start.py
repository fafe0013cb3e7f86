"""Starting the server's side of a federation: its folder and its SuperLink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from common.errors import BouquetError
from common.settings import Settings
from common.system.files import make_folder
from common.system.flower_release import require_tested_flower
from common.system.process_group import ProcessGroup
from server.record.writer import RunRecord, check_new
from server.run_folder import CURRENT, DATABASE, REGISTERED, RESUME, RUN_FOLDER, SUPERLINK, holds_run
from server.superlink.certificates import Certificates
from server.superlink.process import LEAST_MESSAGE_BYTES, SuperLink, start_superlink

# How soon Flower's process launcher looks for a task: its default of a second is much of a short round, and every look
# costs a request.
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25", "FLWR_LOG_LEVEL": "INFO"}
DATABASE_FILE = "superlink.db"


def check_folder(folder: Path, settings: Settings, resume: bool) -> None:
    """A new run needs a folder without one; a resumed run needs the run, with settings that fit."""
    if not resume:
        check_new(folder)
    elif not holds_run(folder):
        raise BouquetError(f"The run folder {folder} holds no run to resume.")
    else:
        RunRecord(folder).check_continues(settings)


def start_server(
    group: ProcessGroup,
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int,
    resume: bool = False,
    certificates: Certificates | None = None,
    registered: Path | None = None,
    health: str | None = None,
    current: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    message_bytes: int = LEAST_MESSAGE_BYTES,
) -> SuperLink:
    """Start the SuperLink of a run, which devices reach at ``host:port`` over gRPC.

    With ``certificates`` it speaks TLS and admits only devices that an `Admission` has registered, from the folder
    ``registered``. It knows its devices after a restart. ``current`` is a file that names the run in hand, where there
    are several. ``on_line`` is told what SuperLink logs. No call of a device may hold more than ``message_bytes``.

    Raises `BouquetError` for a Flower that servers are not tested with.
    """
    require_tested_flower()
    directory = make_folder(folder / SUPERLINK, "SuperLink's folder")
    database = directory / DATABASE_FILE
    environment = {**QUICK, RUN_FOLDER: str(folder.absolute()), RESUME: "1" if resume else "0"}
    environment[DATABASE] = str(database.absolute())
    if current is not None:
        environment[CURRENT] = str(current.absolute())
    if registered is not None:
        environment[REGISTERED] = str(registered.absolute())
    return start_superlink(
        group,
        directory,
        fleet_address=f"{host}:{port}",
        # Devices that were connected when the server was restarted are known by it.
        database=database,
        environment=environment,
        health_address=health,
        certificates=certificates,
        supernode_auth=certificates is not None,
        on_line=on_line,
        message_bytes=message_bytes,
    )
