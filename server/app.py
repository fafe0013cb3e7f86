"""The ServerApp: Flower's entry point on the server, ``server.app:app``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from common.errors import BouquetError
from common.settings import Settings
from common.system.files import make_folder
from common.system.locks import hold
from server.fleet.names import Names
from server.initial_model.seed_model import PlainStart
from server.record.status import FAILED, STOPPED, note_end
from server.record.writer import RunRecord
from server.run.failure import record_failure
from server.run.loop import Follow, run_rounds
from server.run.stop import RunStopped
from server.run.torch_worker import starting_point
from server.run_folder import CURRENT, CURRENT_RUN, DATABASE, REGISTERED, RESUME, RUN_FOLDER, SERVERAPP
from server.superlink.grid import as_they_arrive

if TYPE_CHECKING:
    from server.initial_model.torch_model import Start


def make_server_app(
    settings: Settings | None = None, folder: Path | None = None, resume: bool = False, follow: Follow | None = None
) -> ServerApp:
    """Build the ServerApp.

    Without ``settings`` they are read from Flower's run config, and the run folder from the environment, else
    ``runs/NAME`` below the current folder.
    """
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        own = settings or Settings.from_run_config(context.run_config)
        target, again = (folder, resume) if folder else _where(own)
        try:
            if settings is None:
                hold(make_folder(target, "the run folder") / SERVERAPP, str(context.run_id))
            torch_model = _start(own, target, again, apart=settings is None)
            names = None if settings else _names(target, again, own.server.tags)
            run_rounds(
                as_they_arrive(grid, torch_model.layout),
                own,
                torch_model.record,
                RunRecord(target),
                again,
                follow,
                names,
                torch_model,
            )
        except RunStopped as stopped:
            note_end(target, STOPPED, str(stopped))
            record_failure(target, stopped)
        except Exception as error:
            reason = str(error) if isinstance(error, BouquetError) else f"{type(error).__name__}: {error}"
            # On a full disk neither can be written, and the reason is in the log alone.
            with contextlib.suppress(BouquetError):
                note_end(target, FAILED, reason)
            if isinstance(error, BouquetError):
                with contextlib.suppress(BouquetError):
                    record_failure(target, error)
            raise

    return server_app


def _start(settings: Settings, folder: Path, resumed: bool, apart: bool) -> Start | PlainStart:
    """What the run starts from; in a simulation, whose devices have PyTorch in this process, it is used here, too."""
    if apart:
        return starting_point(settings, folder, resumed)
    from server.initial_model import torch_model

    return torch_model.starting_point(settings, folder if resumed else None)


def _where(settings: Settings) -> tuple[Path, bool]:
    """The run folder that `bouquet server` chose, and whether the run in it goes on."""
    if current := os.environ.get(CURRENT):
        content = json.loads(Path(current).read_text(encoding="utf-8"))
        return Path(content[CURRENT_RUN]), bool(content["resume"])
    return Path(os.environ.get(RUN_FOLDER) or Path("runs") / settings.run.name), os.environ.get(RESUME) == "1"


def _names(folder: Path, resumed: bool, tags: Iterable[str]) -> Names:
    """What a real server knows of its devices' names."""
    database, registered = os.environ.get(DATABASE), os.environ.get(REGISTERED)
    return Names(
        folder,
        Path(database) if database else None,
        Path(registered) if registered else None,
        resumed,
        tags=frozenset(tags),
    )


app = make_server_app()
