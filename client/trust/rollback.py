"""What a device remembers of the signed code it has run: an older one is not run again.

Whoever holds the server may keep an old release with its true signature, and send it when a fault of that release is
known. The device keeps the highest serial that it has run, in its state folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import sync_folder, write_json
from bouquet.common.trust.signature import SignatureError, Statement

ROLLOUT_FILE = "rollout.json"  # in the state folder


@dataclass(frozen=True)
class Newest:
    """The newest signed app that ran here, and the `files_digest` of what was ``installed`` when it first ran."""

    serial: int
    files: str
    release: str
    signed: str
    installed: str


class Memory:
    """The file that holds the `Newest`."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def newest(self) -> Newest | None:
        """None where no signed app ever ran. Raises `BouquetError` for a file that cannot be read.

        Such a file is not passed over: whoever can spoil it could otherwise bring an old release back.
        """
        try:
            return Newest(**json.loads(self.file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise BouquetError(
                f"{self.file}, which holds the newest release that ran here, cannot be read ({error}); delete it if "
                "you know which release the server has."
            ) from None

    def check_signed(self, statement: Statement) -> None:
        """Raise `SignatureError` for an app that is older than one that ran here."""
        newest = self.newest()
        if newest is None or statement.serial > newest.serial:
            return
        if statement.serial == newest.serial and statement.files == newest.files:
            return
        ran = f"release {newest.release}, signed {newest.signed} (serial {newest.serial})"
        raise SignatureError(f"it is {statement}, and a newer one has run here: {ran}")

    def check_own(self, files: str) -> None:
        """Raise `SignatureError` where the code of this installation is older than a signed one that ran here.

        It is taken again when something else has been installed since: whoever installs here, is trusted.
        """
        newest = self.newest()
        if newest is not None and files != newest.files and files == newest.installed:
            raise SignatureError(
                f"it is what is installed here, and a newer one has run: release {newest.release}, signed "
                f"{newest.signed} (serial {newest.serial})"
            )

    def remember(self, statement: Statement, installed: str) -> None:
        """Keep a signed app as the newest, on the disk before it runs. Raises `BouquetError` when that fails."""
        newest = self.newest()
        if newest is not None and newest.serial >= statement.serial:
            return
        said = Newest(statement.serial, statement.files, statement.release, statement.signed, installed)
        write_json(self.file, asdict(said))
        sync_folder(self.file.parent)  # the new name, too, must outlive a power cut
