"""What the device keeps: its identity, and its own model of the last three rounds of a run.

Each run has a folder of its own (`bouquet.client.state.kept_runs`), with one safetensors file a round, written to a
temporary file, synced and renamed, so that a device that loses power in the middle of a round comes back to the round
before. The round before the last stays too: a server that was restarted repeats its last round, and the device then
starts where it started the first time.

Nothing of this leaves the device but what an instruction asks to upload.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from bouquet.client.state.kept_runs import KeptRuns
from bouquet.client.state.store import ContextStore, FolderStore, Store
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import contiguous

__all__ = ["PERSONAL", "Arrays", "ContextStore", "DeviceState", "FolderStore", "Kept"]

Arrays = dict[str, NDArray[Any]]
PERSONAL = "personal"  # the slot of the device's own model
# A server whose last checkpoint is damaged repeats that round; devices may have kept one that it never finished.
_KEPT = 3
_IN_USE, _TAKEN_BACK = "in-use", "taken-back"
_IDENTITY = "identity.json"
_NEWS = "said.json"  # what the log said of the data, so that it is said again only when it has changed
_NOTED = 20
_CHECKSUM = "crc32"
_LARGEST_NUMBER = 10**9


@dataclass(frozen=True)
class Kept:
    """What the device kept of a round: slots of tensors (``personal`` is its own model) and small facts.

    ``card`` is the JSON of the model's `bouquet.common.model.card.ModelCard`, empty where another's ClientApp made it.
    ``backbone`` is the digest of what `DeviceState.keep_backbone` wrote of the same model, empty where there is none.
    ``data`` is the file that keeps what it was trained on (`bouquet.client.data.cache`), empty where none does.
    """

    round: int
    slots: dict[str, Arrays] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    card: str = ""
    backbone: str = ""
    data: str = ""


class DeviceState:
    """The device's memory between messages, each of which is a new process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.runs = KeptRuns(store)

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
        name, text = (
            hashlib.sha256(part.encode()).hexdigest()[:16] for part in (name, text)
        )  # the server's, of any length
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
        store = self.runs.of(run)
        earlier = (round_ for round_ in _numbers(store, "round") if round_ < before)
        return next((kept for round_ in earlier if (kept := _load(store, round_, run)) is not None), None)

    def keep(
        self,
        run: str,
        round_: int,
        slots: Mapping[str, Arrays],
        facts: Mapping[str, Any],
        card: str = "",
        backbone: str = "",
        data: str = "",
    ) -> None:
        """Write the state of a finished round, and drop rounds that are no longer needed."""
        self._keep(run, "round", round_, _packed(Kept(round_, dict(slots), dict(facts), run, card, backbone, data)))

    def latest(self) -> Kept | None:
        """The last model this device trained, of whichever run."""
        return next(self._all("round"), None)

    def use(self, model: Kept) -> None:
        """Put these models in use, each under its slot's name, as number ``round``. The two before stay."""
        self._keep(model.run, _IN_USE, model.round, _packed(model))
        for store in self.runs.latest_first():
            for number in _numbers(store, _TAKEN_BACK):
                store.delete(_file(_TAKEN_BACK, number))

    def in_use(self) -> Kept | None:
        """What `use` was given last and is not taken back; None where nothing is, or it is lost."""
        return next(self._all(_IN_USE), None)

    def taken_back(self) -> list[Kept]:
        """What `roll_back` took out of use since `use`."""
        return [*self._all(_TAKEN_BACK)]

    def roll_back(self) -> Kept:
        """Take back the models in use; those before them. Raises `BouquetError` where there are none."""
        models = [*self._all(_IN_USE)]
        if len(models) < 2:
            raise BouquetError("There is no model before the one in use: nothing is taken back.")
        store, name = self.runs.of(models[0].run), _file(_IN_USE, models[0].round)
        store.write(_file(_TAKEN_BACK, models[0].round), store.read(name) or b"")
        store.delete(name)
        return models[1]

    def _all(self, name: str) -> Iterator[Kept]:
        """All of a name in all runs, the last ones first; each is read when it is asked for."""
        files = ((store, number) for store in self.runs.latest_first() for number in _numbers(store, name))
        return (kept for store, number in files if (kept := _load(store, number, name=name)) is not None)

    def keep_backbone(self, run: str, digest: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write what stays the same all through a run, and drop what no model that is kept needs."""
        store = self.runs.begin(run)
        store.write(_backbone(digest), _pack({k: contiguous(a) for k, a in arrays.items()}, {"run": ""}))
        kinds = ("round", _IN_USE, _TAKEN_BACK)
        models = [_load(store, number, name=name) for name in kinds for number in _numbers(store, name)]
        needed = {_backbone(digest), *(_backbone(kept.backbone) for kept in models if kept is not None)}
        for name in store.names():
            if name.startswith("backbone-") and name not in needed:
                store.delete(name)

    def recall_backbone(self, run: str, digest: str) -> Arrays | None:
        """What `keep_backbone` wrote under this digest; None where that is lost."""
        content = _try_unpack(self.runs.of(run).read(_backbone(digest)))
        return None if content is None else content[1]

    def save_arrays(
        self, run: str, name: str, version: int, arrays: Arrays, also: Collection[int] | None = None
    ) -> None:
        """Write tensors that outlast many rounds, so that they are not written again in each.

        The last three stay; where the versions to keep beside this one are given by ``also``, the last three of those.
        """
        self._keep(run, name, version, _pack({k: contiguous(a) for k, a in arrays.items()}, {"run": run}), also)

    def load_arrays(self, run: str, name: str, version: int) -> Arrays | None:
        """What `save_arrays` wrote for this version in this run; None where that is lost."""
        content = _read(self.runs.of(run), _file(name, version), run)
        return None if content is None else content[1]

    def array_versions(self, run: str, name: str) -> list[int]:
        """The versions of what `save_arrays` wrote in this run, the last one first."""
        return _numbers(self.runs.of(run), name)

    def _keep(self, run: str, name: str, number: int, content: bytes, also: Collection[int] | None = None) -> None:
        """Write ``name-number``, and drop all but the last three up to it, or all but it and ``also``."""
        if not 0 <= number <= _LARGEST_NUMBER:
            raise BouquetError(f"The server's round is {number}; it must be from 0 to {_LARGEST_NUMBER}.")
        store = self.runs.begin(run)
        known = {*_numbers(store, name), number}
        # Those after this one belong to a server that lost its last rounds.
        last = sorted((n for n in known if n <= number), reverse=True)[:_KEPT]
        kept = last if also is None else [number, *sorted(also, reverse=True)[:_KEPT]]
        files = [_file(name, old) for old in sorted(known - set(kept))]
        # An old file may go before the new one is written only where another stays, for a loss of power in between.
        obsolete = files.pop(0) if files and also is None and len(known) > 2 else ""
        store.write(_file(name, number), content, obsolete)
        for file in files:
            store.delete(file)


def _file(name: str, number: int) -> str:
    return f"{name}-{number:06d}.safetensors"


def _numbers(store: Store, name: str) -> list[int]:
    """The numbers of the files of a name, the last one first."""
    pattern = re.compile(rf"{re.escape(name)}-(\d{{6,}})\.safetensors")
    return sorted((int(match[1]) for n in store.names() if (match := pattern.fullmatch(n))), reverse=True)


def _load(store: Store, round_: int, run: str | None = None, name: str = "round") -> Kept | None:
    content = _read(store, _file(name, round_), run)
    if content is None:
        return None
    metadata, tensors = content
    slots: dict[str, Arrays] = {}
    for key, array in tensors.items():
        slot, _, tensor = key.partition("/")
        slots.setdefault(slot, {})[tensor] = array
    said = (metadata.get(key, "") for key in ("card", "backbone", "data"))
    return Kept(round_, slots, json.loads(metadata["facts"]), metadata["run"], *said)


def _read(store: Store, file: str, run: str | None) -> tuple[dict[str, str], Arrays] | None:
    """Metadata and tensors of a file; None where there is none, it is damaged, or it is of another run."""
    content = _try_unpack(store.read(file))
    return None if content is None or (run is not None and content[0]["run"] != run) else content


def _try_unpack(content: bytes | None) -> tuple[dict[str, str], Arrays] | None:
    if content is None:
        return None
    try:
        return _unpack(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _packed(kept: Kept) -> bytes:
    tensors = {f"{slot}/{name}": contiguous(a) for slot, arrays in kept.slots.items() for name, a in arrays.items()}
    metadata = {"run": kept.run, "round": str(kept.round), "facts": json.dumps(kept.facts), "card": kept.card}
    metadata |= {name: value for name, value in (("backbone", kept.backbone), ("data", kept.data)) if value}
    return _pack(tensors, metadata)


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
