"""The code of an installation: what runs on a server and on its devices, by its digest and as an archive.

A device runs what is installed there. Its digest says whether that is what the server has; a signed newer release can
come as an archive (`bouquet.client.trust`). Files are read from the *installed* packages, so that a wheel and a
checkout of the same code have the same digest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.trust.signature import SignatureError, files_digest, fingerprint, read_signature, verify

DISTRIBUTION = "bouquet-fl"
HOME = Path(__file__).parents[2]  # the package `bouquet`
PACKAGES = ("client", "common", "server", "strategies")  # of it: what runs on server and devices


def release() -> str:
    """The installed release, such as ``bouquet-fl 0.1.0``."""
    try:
        return f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"
    except importlib.metadata.PackageNotFoundError:
        raise BouquetError(f"{DISTRIBUTION} is not installed, only its code is here; run: pip install -e .") from None


def code_files() -> dict[str, bytes]:
    """The files of this installation's code, path → content, and its release."""
    files = {"RELEASE": f"{release()}\n".encode(), "bouquet/__init__.py": (HOME / "__init__.py").read_bytes()}
    for package in PACKAGES:
        for file in sorted((HOME / package).rglob("*.py")):
            files[f"bouquet/{file.relative_to(HOME).as_posix()}"] = file.read_bytes()
    return files


@cache
def own_code() -> str:
    """The digest of this installation's code, as it was when it was first asked for."""
    return digest_of(code_files())


def digest_of(files: dict[str, bytes]) -> str:
    """SHA-256, in hexadecimal, over files; `bouquet.common.trust.signature.files_digest` says of what."""
    return files_digest({name: hashlib.sha256(content).digest() for name, content in files.items()})


def archive(files: dict[str, bytes]) -> bytes:
    """A ZIP archive of files, the same for the same files."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as written:
        for name in sorted(files):
            written.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return content.getvalue()


def owners_signature(file: Path | None) -> tuple[bytes, str]:
    """The owner's signature on this installation's code, and what it says; nothing without a ``file``.

    Raises `BouquetError` for a signature that is not of this code: devices would refuse it.
    """
    if file is None:
        return b"", ""
    try:
        content = file.read_bytes()
        _, signer, _ = read_signature(content)
        statement, _ = verify(content, own_code(), frozenset({signer}))  # whom devices trust, they decide
    except OSError as error:
        raise BouquetError(f"The signature {file} cannot be read: {error.strerror}.") from None
    except SignatureError as error:
        raise BouquetError(
            f"The signature {file} does not fit the code of this server ({release()}): {error}. Sign this release "
            "(bouquet keys sign, where it is installed), or take the file away."
        ) from None
    return content, f"{statement}, by {fingerprint(signer)}"
