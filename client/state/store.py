"""Where a device keeps what it keeps: blobs of bytes by name, in a folder or in Flower's memory."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, RecordDict

from bouquet.client.state.room import check_room
from bouquet.common.errors import BouquetError
from bouquet.common.protocol.records import records_of
from bouquet.common.system.files import sweep, sync_folder, temporary_beside


class Store(Protocol):
    """Named blobs of bytes: a folder on a device, Flower's in-memory context where none is given."""

    def read(self, name: str) -> bytes | None:
        """The blob, or None."""

    def write(self, name: str, content: bytes, obsolete: str = "") -> None:
        """Replace the blob whole, or leave it as it was; the blob ``obsolete`` goes."""

    def delete(self, name: str) -> None:
        """Remove the blob if it is there."""

    def names(self) -> list[str]:
        """Names of all blobs."""

    def below(self, name: str) -> Store:
        """A store of its own in this one, which begins to be there when something is written to it."""

    def names_below(self) -> list[str]:
        """Names of the stores in this one."""

    def remove_below(self, name: str) -> None:
        """Remove a store with all that it holds."""


class FolderStore:
    """Blobs as files in a folder; ``durable`` syncs each one to the disk before it takes its name."""

    def __init__(self, folder: Path, durable: bool = True, root: Path | None = None) -> None:
        self.folder = folder
        self.durable = durable
        self.root = folder if root is None else root  # of the state folder, where this is a folder in one
        if root is None:
            self._make()
        sweep(folder)

    def _make(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot be made: {error.strerror}."
            raise BouquetError(
                f"The state folder {self.folder} {reason}", public=f"The state folder {reason}"
            ) from None

    def read(self, name: str) -> bytes | None:
        """The file's bytes, or None."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, obsolete: str = "") -> None:
        """Write beside, sync, rename.

        An obsolete file's place on the disk is written over: to delete one and make another takes longer than to write
        it. Not that of a file which is another's, or which a backup holds, too (`cp -al`).
        """
        temporary = temporary_beside(self.folder / name)
        check_room(self.root, len(content))
        if not self.folder.is_dir():
            self._make()
            if self.durable:
                sync_folder(self.root)
        try:
            if obsolete and self._is_all_ours(obsolete):
                os.replace(self.folder / obsolete, temporary)
            elif obsolete:
                self.delete(obsolete)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(content)
                file.truncate()
                if self.durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, self.folder / name)
            if self.durable:
                sync_folder(self.folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise BouquetError(
                f"The device's state cannot be written to {self.folder}: {error.strerror}.",
                public=f"The device's state cannot be written: {error.strerror}.",
            ) from None

    def _is_all_ours(self, name: str) -> bool:
        try:
            about = os.lstat(self.folder / name)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_uid == os.geteuid()

    def delete(self, name: str) -> None:
        """Unlink."""
        (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Files that are not hidden."""
        return self._entries(os.DirEntry.is_file)

    def below(self, name: str) -> FolderStore:
        """A folder in this one."""
        return FolderStore(self.folder / name, self.durable, self.root)

    def names_below(self) -> list[str]:
        """Folders that are not hidden."""
        return self._entries(os.DirEntry.is_dir)

    def remove_below(self, name: str) -> None:
        """Remove a folder, as far as this user may."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def _entries(self, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        try:
            with os.scandir(self.folder) as entries:
                return sorted(e.name for e in entries if is_wanted(e) and not e.name.startswith("."))
        except FileNotFoundError:
            return []


class ContextStore:
    """Blobs in the state that Flower keeps for a node while the node runs."""

    def __init__(self, state: RecordDict, place: str = "") -> None:
        if "bouquet" not in state:
            state["bouquet"] = ConfigRecord()
        self.state = state
        self.record = records_of(state, ConfigRecord)["bouquet"]
        self.place = place  # ends in a slash, where this is a store in another

    def read(self, name: str) -> bytes | None:
        """The bytes, or None."""
        value = self.record.get(self.place + name)
        return value if isinstance(value, bytes) else None

    def write(self, name: str, content: bytes, obsolete: str = "") -> None:
        """Replace."""
        self.record[self.place + name] = content
        self.delete(obsolete)

    def delete(self, name: str) -> None:
        """Remove."""
        self.record.pop(self.place + name, None)

    def names(self) -> list[str]:
        """All names that are of no store below."""
        return [name for name in self._all() if "/" not in name]

    def below(self, name: str) -> ContextStore:
        """The same record, under longer names."""
        return ContextStore(self.state, f"{self.place}{name}/")

    def names_below(self) -> list[str]:
        """First parts of longer names."""
        return sorted({name.partition("/")[0] for name in self._all() if "/" in name})

    def remove_below(self, name: str) -> None:
        """Remove all names that begin so."""
        for known in self._all():
            if known.startswith(f"{name}/"):
                self.delete(known)

    def _all(self) -> list[str]:
        return sorted(name.removeprefix(self.place) for name in self.record if name.startswith(self.place))
