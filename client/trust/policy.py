"""What code a device runs: the app that Flower sends from the server, if its owner trusts it.

SuperNode hands whatever app (FAB, a zip archive) the SuperLink sends to a Python process, so that whoever runs the
server, or breaks into it, runs code on every device. `AppTrust` decides before anything of an app is unpacked:
by default only the app that this device would build from its own installation, file for file, is accepted; beside it,
where the owner says so, one that a key of the owner's has signed (`common.trust.signature`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

from client.trust.rollback import Memory
from common.errors import BouquetError
from common.torchvision_compat import TORCHVISION
from common.trust.signature import (
    LARGEST_BYTES,
    NOT_SIGNED,
    PUBLIC_KEY,
    SIGNATURE_FILE,
    SignatureError,
    Statement,
    files_digest,
    fingerprint,
    verify,
)

SHA256 = re.compile(r"[0-9a-f]{64}")
MANIFEST = ".info/CONTENT"  # Flower's list of hashes, removed on installation; not code
NAMED_FILES = 3
LARGEST_APP_BYTES = 64 * 2**20  # unpacked: Bouquet has less than one
MOST_APP_FILES = 5_000
DAMAGED = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error)
# Settings that can name code of the user's own, what it is called, and the option that allows it.
OWN_CODE = {
    "model.name": ("model", "--allow-model"),
    "task.kind": ("task", "--allow-model"),
    "data.dataset": ("data set", "--allow-data"),
    "data.partition": ("partition", "--allow-data"),
}


# Procedures are named in messages, which only the ClientApp reads: it is told by the key of a SuperNode's
# --node-config which ones are allowed, names with spaces between them.
ALLOWED_PROCEDURES = "allowed-procedures"
ANY_PROCEDURE = "*"


class AppRefused(BouquetError):
    """The device's owner does not trust what the server wants to run."""


@dataclass(frozen=True)
class AppTrust:
    """What a device's owner allows.

    ``hashes`` are SHA-256 of other bundles, in hexadecimal; ``anything`` accepts every app, with every model, data set,
    partition and procedure. Of code that is the owner's own, the server may ask for ``models`` and tasks, for
    ``data`` (sets and partitions), names ``package.module:function``, and for ``procedures``, by name or as
    ``package.module``.
    ``signers`` are public keys (`common.trust.signature.PUBLIC_KEY`) whose apps are run, none older than the newest,
    which
    the file ``memory`` holds. Raises `BouquetError` for a hash, name or key of another form.
    """

    hashes: frozenset[str] = frozenset()
    anything: bool = False
    models: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()
    procedures: frozenset[str] = frozenset()
    signers: frozenset[str] = frozenset()
    memory: Path | None = None

    def __post_init__(self) -> None:
        if self.signers and self.memory is None:
            raise BouquetError("A device that trusts a signer needs a file that remembers the newest release.")
        for text in self.signers:
            if not PUBLIC_KEY.fullmatch(text):
                raise BouquetError(f"{text!r} is no signer's public key: ssh-ed25519 AAAA…, as in signer.pub.")
        for text in self.hashes:
            if not SHA256.fullmatch(text):
                raise BouquetError(f"{text!r} is no SHA-256: 64 hexadecimal digits, as sha256sum APP.fab prints them.")
        for name in self.models:
            if ":" not in name:
                raise BouquetError(f"{name!r} names no model of your own; it is of the form package.module:factory.")
        for name in self.data:
            if ":" not in name:
                raise BouquetError(
                    f"{name!r} names no data set or partition of your own; it is of the form package.module:function."
                )
        for name in self.procedures:
            if not name or ":" in name or name.split() != [name]:
                raise BouquetError(
                    f"{name!r} names no procedure; it is its name, or of the form package.module, without a colon."
                )

    def check_app(self, bundle: bytes) -> str:
        """Raise `AppRefused`, with the reason, unless the bundle is trusted. Nothing of it is run or unpacked.

        Returns what the device's log should say of it; nothing of the app that is installed here.
        """
        digest = hashlib.sha256(bundle).hexdigest()
        if digest in self.hashes:
            return ""
        if too_large := _too_large(bundle):
            raise AppRefused(f"The server's app is refused before it is unpacked: {too_large}.")
        if self.anything:
            return ""
        difference = _difference(bundle, self.own_files)
        if self.signers:
            return self._check_signed(bundle, difference)
        if difference:
            raise AppRefused(
                f"This device runs only the app of its own installation ({_release()}), and the server's differs: "
                f"{difference}. Install the same release on both or, to trust that app, give --trust-app {digest}."
            )
        return ""

    def _check_signed(self, bundle: bytes, difference: str) -> str:
        assert self.memory is not None
        memory = Memory(self.memory)
        own = files_digest({name: digest for name, (_, digest) in self.own_files.items()})
        try:
            statement, signer = self._signed(bundle)
            memory.check_signed(statement)
            memory.remember(statement, own)
        except BouquetError as error:
            reason = str(error)
        else:
            if not difference:
                return ""
            return (
                f"The server's app is {statement}, signed by {fingerprint(signer)}, and trusted. It is not the one "
                f"installed here ({_release()}): each message starts a fresh Python."
            )
        if difference:
            raise AppRefused(
                f"This device runs only the app of its own installation ({_release()}), and what its owner signed. "
                f"The server's differs, {difference}, and {reason.rstrip('.')}. Sign the server's release with bouquet "
                "keys sign, or install it here, too."
            )
        try:
            memory.check_own(own)
        except BouquetError as error:
            raise AppRefused(
                f"The server's app is not taken, because {str(error).rstrip('.')}. The newest release runs on signed "
                "apps only (bouquet keys sign), until another is installed here."
            ) from None
        return ""

    def _signed(self, bundle: bytes) -> tuple[Statement, str]:
        """What a trusted signer says of the bundle, and who. Raises `SignatureError` with the reason if none does."""
        try:
            with zipfile.ZipFile(BytesIO(bundle)) as archive:
                names = archive.namelist()
                if SIGNATURE_FILE not in names:
                    raise SignatureError(NOT_SIGNED)
                if len(set(names)) != len(names):
                    raise SignatureError("it holds a file twice")
                # A line break in a name could make one file look like two.
                if not all(name.isascii() and name.isprintable() for name in names):
                    raise SignatureError("it holds a file of a name that nobody signs")
                if archive.getinfo(SIGNATURE_FILE).file_size > LARGEST_BYTES:
                    raise SignatureError(f"its signature has more than {LARGEST_BYTES} bytes")
                files = {name: hashlib.sha256(archive.read(name)).digest() for name in names if name != MANIFEST}
                return verify(archive.read(SIGNATURE_FILE), files_digest(files), self.signers)
        except DAMAGED as error:
            raise SignatureError(f"it is no bundle of Flower's ({error})") from None

    def is_own(self, bundle: bytes) -> bool:
        """Whether the bundle is the app of this installation, file for file; a bundle can be trusted and another."""
        return not _difference(bundle, self.own_files)

    def check_config(self, config: Mapping[str, object]) -> None:
        """Raise `AppRefused` when the run's settings name code whose import the owner has not allowed."""
        for key, (what, option) in OWN_CODE.items():
            name = str(config.get(key, ""))
            own = ":" in name and not (what == "model" and name.startswith(TORCHVISION))
            if not own or self.anything or name in (self.models if option == "--allow-model" else self.data):
                continue
            raise AppRefused(
                f"The server asks for the {what} {name!r}, code that is not Bouquet's; if the device's owner trusts "
                f"it, start bouquet client with {option} {name}."
            )

    @property
    def newest_serial(self) -> int:
        """Of the signed apps that ran here; 0 where none did, -1 where that cannot be read."""
        if self.memory is None:
            return 0
        try:
            newest = Memory(self.memory).newest()
        except BouquetError:
            return -1
        return newest.serial if newest else 0

    @property
    def node_config(self) -> dict[str, str]:
        """What the ClientApp is told."""
        allowed = ANY_PROCEDURE if self.anything else " ".join(sorted(self.procedures))
        return {ALLOWED_PROCEDURES: allowed} if allowed else {}

    @cached_property
    def own_files(self) -> dict[str, tuple[int, bytes]]:
        """The files of the app that this installation builds: size in bytes and SHA-256 of each."""
        from common.trust.app_bundle import (
            own_app_files,  # imported here: who only hands an AppTrust on need not load settings
        )

        return {name: _summary(content) for name, content in own_app_files().items()}


def allowed_procedures(text: str) -> frozenset[str] | None:
    """What the value of `ALLOWED_PROCEDURES` allows; None for all."""
    return None if text == ANY_PROCEDURE else frozenset(text.split())


def _summary(content: bytes) -> tuple[int, bytes]:
    return len(content), hashlib.sha256(content).digest()


def _is_beside(entry: zipfile.ZipInfo) -> bool:
    """Whether a file says something of the app and is not of it; neither is ever imported."""
    signature = entry.filename == SIGNATURE_FILE and entry.file_size <= LARGEST_BYTES
    return signature or entry.filename == MANIFEST


def _release() -> str:
    """What is installed here, as `common.protocol` finds it in a refusal."""
    from common.trust.app_bundle import DISTRIBUTION

    return f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"


def _too_large(bundle: bytes) -> str:
    """In words, what is too much of an app; empty for one that can be unpacked, and for what is no bundle.

    No file unpacks to more than its entry says: the rest of it would be left where it is.
    """
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            entries = archive.infolist()
    except DAMAGED:
        return ""
    if len(entries) > MOST_APP_FILES:
        return f"it has more than {MOST_APP_FILES} files"
    size = sum(entry.file_size for entry in entries)
    return f"it has more than {LARGEST_APP_BYTES >> 20} MB" if size > LARGEST_APP_BYTES else ""


def _difference(bundle: bytes, own: Mapping[str, tuple[int, bytes]]) -> str:
    """In words; empty if there is none. Compared file by file, because compression differs between machines."""
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            entries = [entry for entry in archive.infolist() if not _is_beside(entry)]
            names = [entry.filename for entry in entries]
            # Of two entries with one name, the second overwrites the first when it is unpacked.
            if len(set(archive.namelist())) != len(archive.namelist()):
                return "it holds a file twice"
            wrong = sorted(set(names) - set(own)) + sorted(set(own) - set(names))
            # By size first, so that nothing large is unpacked in memory.
            wrong += [e.filename for e in entries if e.filename in own and e.file_size != own[e.filename][0]]
            wrong += [n for n in names if n not in wrong and _summary(archive.read(n)) != own[n]]
    except DAMAGED as error:
        return f"it is no bundle of Flower's ({error})"
    shown = ", ".join(ascii(name)[1:-1][:80] for name in wrong[:NAMED_FILES])
    more = f" and {len(wrong) - NAMED_FILES} more" if len(wrong) > NAMED_FILES else ""
    return f"in {shown}{more}" if wrong else ""
