"""What code a device runs: what is installed there, and, where its owner says so, what the server has.

Whoever runs the server, or breaks into it, would otherwise run code on every device. `CodeTrust` decides by a digest
and a signature, before anything of the server's code is fetched; by default only the same code as is installed here is
accepted, and it is the installed one that runs. Beside it, where the owner says so, one that a key of the owner's has
signed (`bouquet.common.trust.signature`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from bouquet.client.trust.rollback import Memory
from bouquet.common.errors import BouquetError
from bouquet.common.texts import setting_of
from bouquet.common.torchvision_compat import TORCHVISION
from bouquet.common.trust.code import digest_of, own_code, release
from bouquet.common.trust.signature import NOT_SIGNED, PUBLIC_KEY, SignatureError, fingerprint, verify

SHA256 = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"(?!\.+(/|$))[\w.-]+(/(?!\.+(/|$))[\w.-]+)*", re.ASCII)  # of a file in an archive
LARGEST_CODE_BYTES = 64 * 2**20  # unpacked: Bouquet has less than two
MOST_CODE_FILES = 5_000
ENTRY = b"PK\x01\x02"  # begins each in the list of files that ends an archive
KEPT_CODES = 2
DAMAGED = (zipfile.BadZipFile, OSError, ValueError, RuntimeError, EOFError, zlib.error, struct.error)
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take as much memory as the archive says
# Settings that can name code of the user's own, what it is called, and the option that allows it.
OWN_CODE = {
    "model.name": ("model", "--allow-model"),
    "task.kind": ("task", "--allow-model"),
    "data.dataset": ("data set", "--allow-data"),
}
# Procedures are named in messages, which only the ClientApp reads: it is told by this key of its node config which ones
# are allowed, names with spaces between them.
ALLOWED_PROCEDURES = "allowed-procedures"
ANY_PROCEDURE = "*"


class CodeRefused(BouquetError):
    """The device's owner does not trust what the server wants to run."""


@dataclass(frozen=True)
class CodeTrust:
    """What a device's owner allows.

    ``hashes`` are digests of other code, in hexadecimal; ``anything`` accepts all, with every model, data set
    and procedure. Of code that is the owner's own, the server may ask for ``models`` and tasks, for
    ``data`` sets, names ``package.module:function``, and for ``procedures``, by name or as
    ``package.module``. ``signers`` are public keys (`bouquet.common.trust.signature.PUBLIC_KEY`) whose code is run,
    none older than the newest, which the file ``memory`` holds. Raises `BouquetError` for a hash, name or key of
    another form.
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
        own = re.compile(r".*:.*")
        forms = (
            (self.signers, PUBLIC_KEY, "no signer's public key: ssh-ed25519 AAAA…, as in signer.pub"),
            (self.hashes, SHA256, "no digest of code: 64 hexadecimal digits, as a refusal names them"),
            (self.models, own, "no model of your own, of the form package.module:factory"),
            (self.data, own, "no data set of your own, of the form package.module:function"),
            (self.procedures, re.compile(r"[^\s:]+"), "no procedure: its name, or package.module, without a colon"),
        )
        for texts, form, what in forms:
            for text in texts:
                if not form.fullmatch(text):
                    raise BouquetError(f"{text!r} is {what}.")

    def check_code(self, code: str, signature: bytes, server: str) -> str:
        """Raise `CodeRefused`, with the reason, unless the server's ``code``, a digest, is trusted.

        ``server`` is the release that it says it has. Returns what the device's log should say of it; nothing of the
        code that is installed here, which then runs. Other code is to be fetched and given to `unpack`.
        """
        if code in self.hashes or self.anything:
            return ""
        if self.signers:
            return self._check_signed(code, signature)
        if code != own_code():
            raise CodeRefused(
                f"This device runs only the code of its own installation ({release()}, {own_code()[:16]}), and the "
                f"server's differs ({server}, {code[:16]}). Install the same release on both or, to trust that code, "
                f"give --trust-app {code}."
            )
        return ""

    def _check_signed(self, code: str, signature: bytes) -> str:
        assert self.memory is not None
        memory = Memory(self.memory)
        try:
            if not signature:
                raise SignatureError(NOT_SIGNED)
            statement, signer = verify(signature, code, self.signers)
            memory.check_signed(statement)
            memory.remember(statement, own_code())
        except BouquetError as error:
            reason = str(error)
        else:
            if code == own_code():
                return ""
            return (
                f"The server's code is {statement}, signed by {fingerprint(signer)}, and trusted. It is not the one "
                f"installed here ({release()}): each task starts a fresh Python."
            )
        if code != own_code():
            raise CodeRefused(
                f"This device runs only the code of its own installation ({release()}), and what its owner signed. "
                f"The server's differs, and {reason.rstrip('.')}. Sign the server's release with bouquet keys sign, "
                "or install it here, too."
            )
        try:
            memory.check_own(own_code())
        except BouquetError as error:
            raise CodeRefused(
                f"The server's code is not taken, because {str(error).rstrip('.')}. The newest release runs on signed "
                "code only (bouquet keys sign), until another is installed here."
            ) from None
        return ""

    def check_config(self, config: Mapping[str, object]) -> None:
        """Raise `CodeRefused` when the run's settings name code whose import the owner has not allowed."""
        for key, (what, option) in OWN_CODE.items():
            name = str(setting_of(config, key))
            own = ":" in name and not (what == "model" and name.startswith(TORCHVISION))
            if not own or self.anything or name in (self.models if option == "--allow-model" else self.data):
                continue
            raise CodeRefused(
                f"The server asks for the {what} {name!r}, code that is not Bouquet's; if the device's owner trusts "
                f"it, start bouquet client with {option} {name}."
            )

    @property
    def node_config(self) -> dict[str, str]:
        """What the ClientApp is told."""
        allowed = ANY_PROCEDURE if self.anything else " ".join(sorted(self.procedures))
        return {ALLOWED_PROCEDURES: allowed} if allowed else {}


def allowed_procedures(text: str) -> frozenset[str] | None:
    """What the value of `ALLOWED_PROCEDURES` allows; None for all."""
    return None if text == ANY_PROCEDURE else frozenset(text.split())


def unpacked(code: str, parent: Path) -> Path | None:
    """The folder, below ``parent``, where `unpack` put that code, if it is there and whole."""
    folder = parent / code
    files = [file for file in folder.rglob("*") if file.is_file() and file.parent.name != "__pycache__"]
    with contextlib.suppress(OSError):
        if files and digest_of({file.relative_to(folder).as_posix(): file.read_bytes() for file in files}) == code:
            return folder
    return None


def unpack(bundle: bytes, code: str, parent: Path) -> Path:
    """The folder, below ``parent``, of code that was judged, from its archive; of others few stay.

    Raises `CodeRefused` unless the archive holds just the files of this digest, each once, and not too much of them.
    """
    too_much = CodeRefused(
        f"The server's code is refused before it is unpacked: it has more than {MOST_CODE_FILES} files or "
        f"{LARGEST_CODE_BYTES >> 20} MB."
    )
    if bundle.count(ENTRY) > MOST_CODE_FILES:  # their list alone would take the memory of a small device
        raise too_much
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as opened:
            entries = opened.infolist()
            if sum(entry.file_size for entry in entries) > LARGEST_CODE_BYTES:
                raise too_much
            if any(entry.compress_type not in PACKED for entry in entries):
                raise CodeRefused("The server's code is refused: it is not packed as ZIP archives usually are.")
            if len({entry.filename for entry in entries}) != len(entries):
                raise CodeRefused("The server's code is refused: it holds a file twice.")
            files = {entry.filename: opened.read(entry) for entry in entries}
    except DAMAGED as error:
        raise CodeRefused(f"The server's code cannot be read: {error}.") from None
    if any(not NAME.fullmatch(name) for name in files) or digest_of(files) != code:
        raise CodeRefused("The server's code is refused: its files are others than its digest says.")
    others = [folder for folder in parent.glob("*") if folder.name != code]
    for folder in sorted(others, key=lambda folder: folder.stat().st_mtime, reverse=True)[KEPT_CODES - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)
    target = parent / code
    shutil.rmtree(target, ignore_errors=True)  # what was half copied when the power failed
    try:
        for name, content in files.items():
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise CodeRefused(f"The server's code cannot be kept: {error.strerror}.") from None
    return target
