"""The commands by which an owner looks after a fleet: ``bouquet status``, ``check``, ``run`` and ``stop``."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from bouquet.commands import options
from bouquet.console import console


def status(
    target: Annotated[str | None, typer.Argument(metavar="[RUN | SERVER]")] = None,
    json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    token: Annotated[
        str | None, typer.Option(envvar="BOUQUET_WEB_TOKEN", help="The page's token, where it wants one.")
    ] = None,
    authority: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="ca.crt of the server; keys/ca.crt where that is there.")
    ] = None,
) -> None:
    """Say which devices are there and how the run goes; by default of the run in runs/ that is newest.

    SERVER is the address of a server's page (--web). The exit status is 1 when the run failed or its server stopped.
    """
    from bouquet.monitor.status import WELL, collect, fetch, newest_run
    from bouquet.monitor.status_table import print_status

    if target is not None and target.startswith(("http://", "https://")):
        default = Path("keys/ca.crt")
        content = fetch(target, token, authority or (default if default.is_file() else None))
    else:
        content = collect(Path(target) if target else newest_run())
    if json:
        typer.echo(json_.dumps(content, indent=2))
    else:
        print_status(console, content)
    if content["run"]["state"] not in WELL:
        raise typer.Exit(1)


def check(
    server: Annotated[str | None, options.SERVER_ADDRESS] = None,
    data: options.DeviceData = None,
    state_dir: options.StateDir = options.STATE_DIR,
    settings: options.SettingsFile = None,
    keys: options.DeviceKeys = None,
    insecure: options.DeviceInsecure = False,
    strict: options.Strict = False,
    least_noise: options.LeastNoise = None,
    most_epsilon: options.MostEpsilon = None,
    when: options.When = None,
) -> None:
    """Check a device before it joins: data, keys, clock, disk and memory, a step of training, the server.

    Its options are those of "bouquet client" that say who and where the device is. The server's settings file, where
    the device has it, says the classes and the model. The exit status is 1 when something is wrong.
    """
    from bouquet.device.check import check_device, print_checks
    from bouquet.device.config import device_demands

    results = check_device(
        server=server,
        data=data,
        state_dir=state_dir,
        settings=settings,
        keys=keys,
        insecure=insecure,
        strict=strict,
        owner=device_demands(least_noise, most_epsilon),
        when=when,
    )
    print_checks(console, results)
    if any(line.wrong for line in results):
        raise typer.Exit(1)


def run(
    chosen: Annotated[Path, typer.Argument(metavar="NEXT.toml")],
    out: options.Out = None,
    overrides: options.Overrides = None,
    on: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder that the server was started on; found below runs/ by default."),
    ] = None,
) -> None:
    """Have a server that was started with --keep-waiting do a run, after those that it was asked for before.

    Devices need no restart. The settings are checked here, at once.
    """
    from bouquet.common.settings import load_settings
    from bouquet.federation.queue import NextRun, enqueue, waiting_server
    from bouquet.server.run.build import build_strategy

    settings = load_settings(chosen, overrides or [])
    build_strategy(settings)
    server = on or waiting_server()
    folder = out or Path("runs") / settings.run.name
    enqueue(server, NextRun(settings, folder))
    console.print(f"asked    the server of {server} for the run {settings.run.name}; see {folder}", soft_wrap=True)


def stop(
    folder: Annotated[Path | None, typer.Argument(metavar="[RUN]")] = None,
) -> None:
    """End a run, or the newest in runs/, after the round in hand; it goes on with bouquet server --resume.

    A server with --keep-waiting then waits for the next run.
    """
    from bouquet.common.errors import BouquetError
    from bouquet.monitor.status import collect, newest_run
    from bouquet.server.record.overview import is_alive
    from bouquet.server.run.stop import ask_to_stop

    folder = folder or newest_run()
    status = collect(folder)["run"]
    if not is_alive(status):
        raise BouquetError(f"No run is going on in {folder}: it is {status['state']}.")
    ask_to_stop(folder)
    console.print(f"asked    the run {status['name']} to end after the round in hand.", soft_wrap=True)
