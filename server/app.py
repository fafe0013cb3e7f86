"""The ServerApp, ``bouquet.server.app:app``: Flower's entry point, for Flower's own processes and simulation."""

from __future__ import annotations

import contextlib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bouquet.common.settings import Settings
from bouquet.server.record.status import note_failure
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import Follow, run_rounds
from bouquet.server.run.stop import RunStopped


def make_server_app(
    settings: Settings | None = None, folder: Path | None = None, resume: bool = False, follow: Follow | None = None
) -> ServerApp:
    """Build the ServerApp.

    Without ``settings`` they are read from Flower's run config; without ``folder`` the record goes to ``runs/NAME``
    below the current folder.
    """
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        own = settings or Settings.from_run_config(context.run_config)
        target = folder or Path("runs") / own.run.name
        try:
            from bouquet.server.initial_model.torch_model import starting_point  # PyTorch

            start = starting_point(own, target if resume else None)
            run_rounds(grid, own, start.record, RunRecord(target), resume, follow, None, start)
        except RunStopped as stopped:
            note_failure(target, stopped)
        except Exception as error:
            with contextlib.suppress(Exception):  # on a full disk the reason is in the log alone
                note_failure(target, error)
            raise

    return server_app


app = make_server_app()
