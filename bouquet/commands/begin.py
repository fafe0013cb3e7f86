"""The commands of the first hour: ``bouquet init`` and ``bouquet try``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bouquet.console import console


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder for each device with its photos or tables, or one's own.")
    ],
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Settings file; the folder's name and .toml by default."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of tables, the column that is to be told.")
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="Also make the server's keys, and those of each device, in keys/.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a settings file that is there.")] = False,
) -> None:
    """Look at photos, tables or .npz, and write a settings file that works for them.

    It asks nothing. It says what it saw and what it assumed, reads all data once as a round would, and says what comes
    next.

    Example: bouquet init plants
    """
    from bouquet.begin.beside import server_files, settings_of
    from bouquet.begin.draft import draft_text
    from bouquet.begin.look import look
    from bouquet.common.errors import BouquetError
    from bouquet.common.system.files import write_atomically

    draft = look(folder, target)
    file = file or Path(f"{draft.sections['run']['name']}.toml")
    if file.exists() and not force:
        raise BouquetError(f"{file} is there already and is not overwritten: --force, or another --out.")

    def say(what: str, lines: list[str]) -> None:
        for line in lines:
            console.print(f"{what:<9}{line}", soft_wrap=True, highlight=False)

    say("seen", draft.seen)
    say("assumed", draft.assumed)
    write_atomically(file, draft_text(draft, f"bouquet init {folder}").encode())
    say("written", [str(file)])
    settings_of(draft)
    if server:
        say("made", server_files(draft))
    several = len(draft.devices) > 1
    say(
        "next",
        [
            f"bouquet try {folder} --settings {file}",
            *([f"bouquet simulate --settings {file}"] if several else []),
            f"bouquet server --settings {file}" + ("" if server else " --insecure"),
            f"bouquet check --settings {file} --data {draft.devices[0]}",
        ],
    )
