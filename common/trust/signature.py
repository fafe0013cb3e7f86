"""An owner's signature on code: which files it has, which release that is, and which of two is newer.

Ed25519 (RFC 8032). What is signed names every file of the code by its SHA-256, not the archive that it travels in,
because compression differs between machines. Cryptography is imported where it is used, because most processes
of a device do without.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bouquet.common.errors import BouquetError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LARGEST_BYTES = 4096
FORMAT = "bouquet-app-1"  # what is signed begins with it, so that it can be taken for nothing else
PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")  # as OpenSSH writes it, without a comment
LARGEST_SERIAL = 2**53  # JSON's exact integers
NOT_SIGNED = "it is not signed"


class SignatureError(BouquetError):
    """A signature that does not hold, with the reason."""


@dataclass(frozen=True)
class Statement:
    """What an owner signs.

    ``serial`` grows from one signature to the next, ``signed`` is the time (ISO 8601), ``files`` is `files_digest`.
    """

    release: str
    serial: int
    signed: str
    files: str

    def content(self) -> bytes:
        """The bytes that are signed: one text for one statement."""
        return f"{FORMAT}\n{json.dumps([self.release, self.serial, self.signed, self.files])}\n".encode()

    def __str__(self) -> str:
        return f"release {self.release}, signed {self.signed} (serial {self.serial})"


def files_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256, in hexadecimal, over files (path → SHA-256 of the content).

    Each file is a line, in order of path, as ``sha256sum`` writes it.
    """
    lines = (f"{files[name].hex()}  {name}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sign(statement: Statement, key: Ed25519PrivateKey) -> bytes:
    """The content of a signature file."""
    said = {"format": FORMAT, **vars(statement), "signer": public_text(key.public_key())}
    said["signature"] = base64.b64encode(key.sign(statement.content())).decode()
    return (json.dumps(said, indent=2) + "\n").encode()


def read_signature(content: bytes) -> tuple[Statement, str, bytes]:
    """Statement, signer's public key and signature of a signature file, none of it verified.

    Raises `SignatureError` for anything of another form.
    """
    if len(content) > LARGEST_BYTES:
        raise SignatureError(f"its signature has {len(content)} bytes, {LARGEST_BYTES} at most")
    try:
        said = json.loads(content)
        statement = Statement(said["release"], said["serial"], said["signed"], said["files"])
        signer, signature = said["signer"], base64.b64decode(said["signature"], validate=True)
        if said["format"] != FORMAT:
            raise SignatureError(f"its signature has the format {said['format']!r}, not {FORMAT!r}")
        texts = (statement.release, statement.signed, statement.files, signer)
        datetime.fromisoformat(statement.signed)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise SignatureError("its signature cannot be read") from None
    # True is an integer, too, to Python.
    if type(statement.serial) is not int or not 0 < statement.serial < LARGEST_SERIAL:
        raise SignatureError("the serial of its signature is no positive integer")
    if not all(isinstance(text, str) and text.isascii() and text.isprintable() for text in texts):
        raise SignatureError("its signature cannot be read")
    return statement, signer, signature


def verify(content: bytes, digest: str, signers: frozenset[str]) -> tuple[Statement, str]:
    """What a signature file says of an app with this `files_digest`, and which of ``signers`` said it.

    Raises `SignatureError` with the reason if not.
    """
    from cryptography.exceptions import InvalidSignature

    statement, signer, signature = read_signature(content)
    if signer not in signers:
        raise SignatureError(f"it is signed by {fingerprint(signer)}, whom nobody here trusts")
    try:
        load_public(signer).verify(signature, statement.content())
    except InvalidSignature:
        raise SignatureError("its signature is false") from None
    if statement.files != digest:
        raise SignatureError(f"its signature is that of other files ({statement})")
    return statement, signer


def now() -> str:
    """The time as a statement has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def public_text(key: Ed25519PublicKey) -> str:
    """A public key as OpenSSH writes it, without a comment: `PUBLIC_KEY`."""
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def load_public(text: str) -> Ed25519PublicKey:
    """The inverse of `public_text`. Raises `SignatureError` for another kind of key, or none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise SignatureError(f"{text[:40]!r} is no public key in OpenSSH's format") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureError(f"{text[:40]!r} is no Ed25519 key")
    return key


def read_signer(file: Path) -> str:
    """The public key in a file that ``bouquet keys signer`` made. Raises `BouquetError`."""
    try:
        return public_text(load_public(file.read_text(encoding="utf-8").strip()))
    except (OSError, UnicodeDecodeError) as error:
        raise BouquetError(f"The signer's public key {file} cannot be read ({error}).") from None
    except SignatureError:
        raise BouquetError(f"{file} is no public key of a signer; bouquet keys signer makes signer.pub.") from None


def fingerprint(text: str) -> str:
    """OpenSSH's SHA-256 form, as ``ssh-keygen -lf`` prints it; of what is no key, its beginning."""
    try:
        blob = base64.b64decode(text.split()[1], validate=True)
    except (IndexError, ValueError):
        return repr(text[:40])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
