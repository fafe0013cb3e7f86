"""The commands of the first hour: ``bouquet init`` and ``bouquet try``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bouquet.console import console


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Settings file; the folder's name and .toml by default."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of tables, the column that is to be told.")
    ] = None,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Also make the server's keys, and those of each device, in keys/. A settings file stays."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a settings file that is there.")] = False,
) -> None:
    """Look at photos, tables or .npz, and write a settings file that works for them.

    FOLDER has a folder for each device, or is one device's. Nothing is asked. It says what it saw and what it assumed,
    reads all data once as a round would, and says what comes next.

    Example: bouquet init plants
    """
    from bouquet.begin.draft import draft_text, name_of
    from bouquet.begin.look import look
    from bouquet.begin.server_setup import server_files, settings_of
    from bouquet.common.errors import BouquetError
    from bouquet.common.system.files import write_atomically

    draft = look(folder, target=target)
    file = file or Path(f"{draft.sections['run']['name']}.toml")
    stays = file.exists() and not force
    if stays and not server:
        raise BouquetError(f"{file} is there already and is not overwritten: --force, or another --out.")

    def say(what: str, lines: list[str]) -> None:
        for line in lines:
            _say(f"{what:<9}{line}")

    say("seen", draft.seen)
    say("assumed", draft.assumed)
    if stays:
        say("kept", [f"{file}, as it is"])
    else:
        write_atomically(file, draft_text(draft, f"bouquet init {folder}").encode())
        say("written", [str(file)])
    settings_of(draft)
    if server:
        say("made", server_files(draft))
    several, device = len(draft.devices) > 1, draft.devices[0]
    access = f"--keys keys/devices/{name_of(device)}" if server and several else "--insecure"
    called = "" if server else f" --name {name_of(device)}"
    steps = [
        (f"bouquet try {folder} {file}", "is federation worth it?"),
        *([(f"bouquet simulate {file} --out runs/simulated", "one run, and its report")] if several else []),
        (
            f"bouquet server {file}{'' if server else ' --insecure'}",
            f"with keys: bouquet init {folder} --server" * (not server),
        ),
        (f"bouquet check {file} {access} --data {device}", "on a device, before it joins"),
        (f"bouquet client --server HOST:9092 {access} --data {device}{called}", "on a device"),
    ]
    width = max(len(command) for command, _ in steps) + 2
    say("next", [f"{command:<{width}}# {what}" if what else command for command, what in steps])


def try_(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER… [SETTINGS.toml]"),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of tables, the column that is to be told.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=2, help="Rounds of each run; at most 15 by default.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the runs go, a folder for each state of the data.")
    ] = Path("runs/try"),
) -> None:
    """Say whether federation is worth it for these devices: some minutes of simulation on their own data.

    Give the devices' folders, one that holds them, or one device's. Settings are those of FOLDER.toml where it is
    there, else what bouquet init would write. The learning rate that is found goes into a file that init wrote.

    Each device alone, FedAvg, FedPer, Ditto, FeSEM and what the settings say, each with the learning rate that is best
    for it, chosen on samples that are not tested. Several seeds say what is chance. One device's data are divided into
    five, by their order.

    Example: bouquet try plants
    """
    from rich.table import Table as RichTable

    from bouquet.begin.draft import name_of
    from bouquet.begin.look import batch_size_for, devices_in, look
    from bouquet.begin.parts import digest, read_devices
    from bouquet.begin.trial import (
        a_guess,
        advice,
        gain_text,
        lines_to_put,
        outcomes,
        put_into,
        speed_advice,
        trial_table,
        unit_of,
        what_is_put,
    )
    from bouquet.common.errors import BouquetError
    from bouquet.common.settings import load_settings, parse_settings
    from bouquet.experiments.comparison.tables import write_results
    from bouquet.experiments.comparison.tuning import run_comparison

    settings = folders.pop() if folders[-1].suffix == ".toml" else None
    if not settings and len(folders) == 1 and not target:
        written = Path(f"{name_of(folders[0].resolve())}.toml")  # by bouquet init
        settings = written if written.is_file() else None
        if settings:
            _say(f"Settings: {settings}.")
    draft = None if settings else look(*folders, target=target)
    chosen = parse_settings(draft.sections, {}) if draft else load_settings(settings)
    if not folders:
        if not chosen.data.data_dir:
            raise BouquetError(f"{settings} has no data.data_dir: give the devices' folders before it.")
        folders = [Path(chosen.data.data_dir)]
    places = folders if len(folders) > 1 else devices_in(folders[0])
    devices = read_devices(chosen, places)
    for line in [*draft.seen, *draft.assumed] if draft else ():
        _say(line)
    if len(places) == 1:
        if draft:  # whose batch size is for all of them in one place
            size = batch_size_for([len(one.y) for one in devices.values()])
            chosen = chosen.with_overrides({"train.batch_size": size})
        console.print(f"One device's data, divided into {len(devices)} by their order: no devices that there are.")
    out /= digest(devices, chosen.data.test_fraction)
    table = trial_table(chosen, devices, out, rounds, "the defaults" if draft else "your settings")
    results = run_comparison(table, out, None, console, quiet=True)
    if results.interrupted:
        raise typer.Abort
    if failed := results.every_failed:
        raise BouquetError(f"{len(failed)} runs failed, {failed[0].cell.slug} first: {failed[0].error}")
    write_results(results, out)
    score = table.score
    guess = a_guess(results, devices)
    found = outcomes(results, next(iter(devices.values())).in_order, guess)
    shown = RichTable("", score.title, f"over alone ({unit_of(score)})", "learning rate", title_justify="left")
    for one in found:
        mark = "" if one.gain is None or one.claimed else "≈ "
        shown.add_row(
            "each device alone" if one.gain is None else one.row,
            score.number(one.score),
            mark + gain_text(score, one),
            f"{one.learning_rate:g}",
        )
    console.print(shown)
    console.print(f"± is of 95 % over {len(table.seeds)} seeds; ≈: may be chance.")
    for said in filter(None, (advice(found, score, guess), speed_advice(results))):
        _say(said)
    if any(one.learned for one in found):
        done = settings is not None and put_into(settings, found)
        where = f"now in {settings}" if done else f"for {settings or 'the settings file'}"
        _say(f"{what_is_put(found)}, {where}:\n{lines_to_put(found)}")
    _say(f"All of it: {out}/compare.html")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
