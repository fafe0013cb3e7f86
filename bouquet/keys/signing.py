"""An owner's signing key, and what it signs: the code of the release that is installed where it lies.

The key belongs on a machine of the owner's, not on the server: devices take what it signed, whoever runs the server.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import make_folder, write_atomically, write_secret
from bouquet.common.trust.code import DISTRIBUTION, own_code
from bouquet.common.trust.signature import LARGEST_SERIAL, Statement, now, public_text, sign

SIGNER_KEY = "signer.key"
SIGNER_PUBLIC_KEY = "signer.pub"


def make_signer(directory: Path) -> str:
    """Make a signing key in ``directory``; its public key. `BouquetError` where there is one: devices trust that."""
    private, public = directory / SIGNER_KEY, directory / SIGNER_PUBLIC_KEY
    for file in (private, public):
        if file.exists():
            raise BouquetError(f"{file} is there already and is not overwritten: devices may trust it.")
    make_folder(directory, "the folder of the signing key")
    key = Ed25519PrivateKey.generate()
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_secret(private, content)
    text = public_text(key.public_key())
    write_atomically(public, f"{text} bouquet-signer\n".encode())
    return text


def sign_release(directory: Path, file: Path, serial: int | None = None) -> Statement:
    """Sign the code of this installation with the key in ``directory``, into ``file``.

    Without ``serial`` it is the time in seconds since 1970, which grows by itself. Raises `BouquetError`.
    """
    key = read_signing_key(directory / SIGNER_KEY)
    serial = int(time.time()) if serial is None else serial
    if not 0 < serial < LARGEST_SERIAL:
        raise BouquetError(f"The serial {serial} is out of range; it is from 1 to 2**53 - 1.")
    statement = Statement(version(DISTRIBUTION), serial, now(), own_code())
    write_atomically(file, sign(statement, key))
    return statement


def read_signing_key(file: Path) -> Ed25519PrivateKey:
    """The private key in ``file``. Raises `BouquetError`, also when others may read it."""
    try:
        mode = file.stat().st_mode & 0o777
        content = file.read_bytes()
    except OSError as error:
        hint = "bouquet keys signer makes one"
        raise BouquetError(f"The signing key {file} cannot be read ({error.strerror}); {hint}.") from None
    if mode & 0o077:
        raise BouquetError(f"The signing key {file} can be read by others (mode {mode:o}): chmod 600 {file}")
    try:
        key = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BouquetError(f"{file} is no signing key ({error}); bouquet keys signer makes one.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BouquetError(f"{file} is no Ed25519 key; bouquet keys signer makes one.")
    return key
