"""What the device keeps: its identity, and its own model of the last three rounds of a run.

One safetensors file a round, written to a temporary file, synced and renamed, so that a device that loses power in
the middle of a round comes back to the round before. The round before the last stays too: a server that was
restarted repeats its last round, and the device then starts where it started the first time.

Nothing of this leaves the device but what an instruction asks to upload.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from common.errors import BouquetError
from common.files import sweep, sync_folder, temporary_beside
from common.layout import contiguous
from common.records import records_of

Arrays = dict[str, NDArray[Any]]
PERSONAL = "personal"  # the slot of the device's own model
# A server whose last checkpoint is damaged repeats that round; devices may have kept one that it never finished.
_KEPT = 3
_IDENTITY = "identity.json"
_NEWS = "said.json"  # what the log said of the data, so that it is said again only when it has changed
_NOTED = 20
_CHECKSUM = "crc32"


class Store(Protocol):
    """Named blobs of bytes: a folder on a device, Flower's in-memory context where none is given."""

    def read(self, name: str) -> bytes | None:
        """The blob, or None."""

    def write(self, name: str, content: bytes, spare: str = "") -> None:
        """Replace the blob whole, or leave it as it was; the blob ``spare`` is no longer needed, and goes."""

    def delete(self, name: str) -> None:
        """Remove the blob if it is there."""

    def names(self) -> list[str]:
        """Names of all blobs."""


class FolderStore:
    """Blobs as files in a folder; ``durable`` syncs each one to the disk before it takes its name."""

    def __init__(self, folder: Path, durable: bool = True) -> None:
        self.folder = folder
        self.durable = durable
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BouquetError(f"The state folder {folder} cannot be made: {error.strerror}.") from None
        sweep(folder)

    def read(self, name: str) -> bytes | None:
        """The file's bytes, or None."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes, spare: str = "") -> None:
        """Write beside, sync, rename.

        A spare file's place on the disk is written over: to delete one and make another takes longer than to write it.
        Not that of a file which is another's, or which a backup holds, too (`cp -al`).
        """
        temporary = temporary_beside(self.folder / name)
        try:
            if spare and self._is_all_ours(spare):
                os.replace(self.folder / spare, temporary)
            elif spare:
                self.delete(spare)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb") as file:
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
            raise BouquetError(f"The device's state cannot be written to {self.folder}: {error.strerror}.") from None

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
        with os.scandir(self.folder) as entries:
            return sorted(e.name for e in entries if e.is_file() and not e.name.startswith("."))


class ContextStore:
    """Blobs in the state that Flower keeps for a node while the node runs."""

    def __init__(self, state: RecordDict) -> None:
        if "bouquet" not in state:
            state["bouquet"] = ConfigRecord()
        self.record = records_of(state, ConfigRecord)["bouquet"]

    def read(self, name: str) -> bytes | None:
        """The bytes, or None."""
        value = self.record.get(name)
        return value if isinstance(value, bytes) else None

    def write(self, name: str, content: bytes, spare: str = "") -> None:
        """Replace."""
        self.record[name] = content
        self.delete(spare)

    def delete(self, name: str) -> None:
        """Remove."""
        self.record.pop(name, None)

    def names(self) -> list[str]:
        """All names."""
        return sorted(self.record)


@dataclass(frozen=True)
class Kept:
    """What the device kept of a round: slots of tensors (``personal`` is its own model) and small facts.

    ``card`` is the JSON of the model's `common.model_card.ModelCard`, empty where an older release kept it.
    ``backbone`` is the digest of what `DeviceState.keep_backbone` wrote of the same model, empty where there is none.
    """

    round: int
    slots: dict[str, Arrays] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    card: str = ""
    backbone: str = ""


class DeviceState:
    """The device's memory between messages, each of which is a new process."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def identity(self, given: str = "") -> str:
        """The device's stable identity: the given one, else the one it once made for itself."""
        if given:
            return given
        return self._identity()["client-id"]

    def first_name(self, name: str) -> str:
        """The name that the device had first, of which its randomness derives: renamed, it is the device it was."""
        known = self._identity()
        if "first-name" not in known:
            known["first-name"] = name
            self.store.write(_IDENTITY, json.dumps(known).encode())
        return known["first-name"]

    def _identity(self) -> dict[str, str]:
        content = self.store.read(_IDENTITY)
        if content is not None:
            try:
                known = json.loads(content)
                return {**known, "client-id": str(known["client-id"])}
            except (ValueError, KeyError, TypeError, AttributeError):
                raise BouquetError(
                    f"The device's {_IDENTITY} is damaged; restore it, or delete it to join as a new device."
                ) from None
        made = {"client-id": f"device-{uuid.uuid4().hex[:12]}"}
        self.store.write(_IDENTITY, json.dumps(made).encode())
        return made

    def is_news(self, name: str, text: str) -> bool:
        """Whether this was not the last that was noted under the name; it is from now on."""
        content = self.store.read(_NEWS)
        try:
            noted = json.loads(content) if content else {}
        except ValueError:
            noted = {}
        if noted.get(name) == text:
            return False
        # A device lives through many runs.
        kept = dict(list({k: v for k, v in noted.items() if k != name}.items())[-_NOTED:])
        self.store.write(_NEWS, json.dumps({**kept, name: text}).encode())
        return True

    def recall(self, run: str, before: int) -> Kept | None:
        """What was kept at the end of the latest round of this run before round ``before``; None if nothing was.

        A file that cannot be read counts as lost: the round before it is taken.
        """
        for round_ in self._numbers("round"):
            if round_ < before and (kept := self._load(run, round_)) is not None:
                return kept
        return None

    def keep(
        self,
        run: str,
        round_: int,
        slots: Mapping[str, Arrays],
        facts: Mapping[str, Any],
        card: str = "",
        backbone: str = "",
    ) -> None:
        """Write the state of a finished round, and drop rounds that are no longer needed."""
        tensors = {f"{slot}/{name}": contiguous(a) for slot, arrays in slots.items() for name, a in arrays.items()}
        metadata = {"run": run, "round": str(round_), "facts": json.dumps(dict(facts)), "card": card}
        metadata |= {"backbone": backbone} if backbone else {}
        self._keep("round", round_, _pack(tensors, metadata))

    def latest(self) -> Kept | None:
        """The last model this device trained, of whichever run."""
        for round_ in self._numbers("round"):
            if (kept := self._load(None, round_)) is not None:
                return kept
        return None

    def keep_backbone(self, digest: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write what stays the same all through a run, and drop what no model that is kept needs."""
        self.store.write(_backbone(digest), _pack({k: contiguous(a) for k, a in arrays.items()}, {"run": ""}))
        models = [self._load(None, round_) for round_ in self._numbers("round")]
        needed = {_backbone(digest), *(_backbone(kept.backbone) for kept in models if kept is not None)}
        for name in self.store.names():
            if re.fullmatch(_backbone("[0-9a-f]+"), name) and name not in needed:
                self.store.delete(name)

    def recall_backbone(self, digest: str) -> Arrays | None:
        """What `keep_backbone` wrote under this digest; None where that is lost."""
        found = self._read(None, _backbone(digest))
        return None if found is None else found[1]

    def keep_aside(
        self, run: str, name: str, version: int, arrays: Arrays, also: Collection[int] | None = None
    ) -> None:
        """Write tensors that outlast many rounds, so that they are not written again in each.

        The last three stay; where the versions to keep beside this one are given by ``also``, those and no others.
        """
        self._keep(name, version, _pack({k: contiguous(a) for k, a in arrays.items()}, {"run": run}), also)

    def recall_aside(self, run: str, name: str, version: int) -> Arrays | None:
        """What `keep_aside` wrote for this version in this run; None where that is lost."""
        found = self._read(run, f"{name}-{version:06d}.safetensors")
        return None if found is None else found[1]

    def versions_aside(self, name: str) -> list[int]:
        """The versions of what `keep_aside` wrote, in whichever run, the last one first."""
        return self._numbers(name)

    def _keep(self, name: str, number: int, content: bytes, also: Collection[int] | None = None) -> None:
        """Write ``name-number``, and drop all but the last three up to it, or all but it and ``also``."""
        known = {*self._numbers(name), number}
        # Those after this one belong to an older run, or to a server that lost its last rounds.
        kept = sorted((n for n in known if n <= number), reverse=True)[:_KEPT] if also is None else [number, *also]
        files = [f"{name}-{old:06d}.safetensors" for old in sorted(known - set(kept))]
        # One that goes before the new one is there must leave another, for a device that loses power in between.
        spare = files.pop(0) if files and also is None and len(known) > 2 else ""
        self.store.write(f"{name}-{number:06d}.safetensors", content, spare)
        for file in files:
            self.store.delete(file)

    def _numbers(self, name: str) -> list[int]:
        """The numbers of the files of a name, the last one first."""
        pattern = re.compile(rf"{re.escape(name)}-(\d{{6}})\.safetensors")
        return sorted((int(match[1]) for n in self.store.names() if (match := pattern.fullmatch(n))), reverse=True)

    def _load(self, run: str | None, round_: int) -> Kept | None:
        found = self._read(run, f"round-{round_:06d}.safetensors")
        if found is None:
            return None
        metadata, tensors = found
        slots: dict[str, Arrays] = {}
        for key, array in tensors.items():
            slot, _, name = key.partition("/")
            slots.setdefault(slot, {})[name] = array
        said = (metadata.get("card", ""), metadata.get("backbone", ""))
        return Kept(round_, slots, json.loads(metadata["facts"]), metadata["run"], *said)

    def _read(self, run: str | None, file: str) -> tuple[dict[str, str], Arrays] | None:
        """Metadata and tensors of a file; None where there is none, it is damaged, or it is of another run."""
        content = self.store.read(file)
        if content is None:
            return None
        try:
            metadata, tensors = _unpack(content)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return None if run is not None and metadata["run"] != run else (metadata, tensors)


def _pack(tensors: Arrays, metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose metadata hold a checksum of all the rest: a bit that a disk turned is no weight."""
    plain = save_safetensors(tensors, dict(metadata))
    header, data = _split(plain)
    header["__metadata__"][_CHECKSUM] = _checksum(header, data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, data))


def _unpack(content: bytes) -> tuple[dict[str, str], Arrays]:
    """Metadata and tensors; `ValueError`, among others, for what is damaged."""
    header, data = _split(content)
    metadata: dict[str, str] = header["__metadata__"]
    if metadata.pop(_CHECKSUM) != _checksum(header, data):
        raise ValueError("the checksum is another")
    return metadata, load_safetensors(content)


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header, and the bytes of the tensors, not a copy of them."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]


def _checksum(header: Mapping[str, Any], data: memoryview) -> str:
    return f"{zlib.crc32(data, zlib.crc32(json.dumps(header, sort_keys=True).encode())):08x}"


def _backbone(digest: str) -> str:
    return f"backbone-{digest}.safetensors"
