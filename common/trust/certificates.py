"""X.509 certificates in PEM: which are in a file, whose they are, and whether one may replace another.

A certificate is known by its fingerprint, the SHA-256 of its DER. Cryptography is imported where it is used, because
most processes of a device do without; `split` and `fingerprint` need the standard library only.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bouquet.common.errors import BouquetError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

BEGIN = b"-----BEGIN CERTIFICATE-----"
BLOCK = re.compile(BEGIN + rb".*?-----END CERTIFICATE-----", re.DOTALL)


def split(content: bytes) -> list[bytes]:
    """The PEM certificates in a file's content, in order; what is around them is passed over."""
    return [block + b"\n" for block in BLOCK.findall(content)]


def fingerprint(pem: bytes) -> str:
    """SHA-256 of a certificate's DER, in lower-case hex, as ``openssl x509 -fingerprint -sha256`` has it.

    Raises `BouquetError` for what is no PEM.
    """
    try:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))).hexdigest()
    except ValueError as error:
        raise BouquetError(f"This is no certificate in PEM ({error}).") from None


def read(file: Path) -> tuple[bytes, ...]:
    """The PEM certificates of a file, in order. Raises `BouquetError` unless there is one and each is whole."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BouquetError(f"The certificate {file} cannot be read ({error.strerror}).") from None
    parts = split(content)
    if not parts or content.count(BEGIN) != len(parts):
        raise BouquetError(f"{file} is no certificate in PEM, or not the whole of it.")
    try:
        for pem in parts:
            _load(pem)
    except BouquetError as error:
        raise BouquetError(f"{file} cannot be read: {error}") from None
    return tuple(parts)


def registered(folder: Path) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Name and certificates, newest first, of each device in a folder of ``NAME.crt``, by name.

    A file that cannot be read is passed over: `read` says what is wrong with it.
    """
    for file in sorted(folder.glob("*.crt")):
        try:
            yield file.stem, read(file)
        except BouquetError:
            continue


def common_name(pem: bytes) -> str:
    """The common name of a certificate's subject, empty where it has none. Raises `BouquetError`."""
    return _common_name(_load(pem))


def expires(pem: bytes) -> datetime:
    """When a certificate's time is over, in UTC. Raises `BouquetError`."""
    return _load(pem).not_valid_after_utc


def check_renewal(new: bytes, old: bytes, authority: bytes) -> None:
    """Raise `BouquetError` unless ``new`` may take the place of ``old``, a device's certificate.

    It has the same public key and common name, is signed by ``authority``, is for a client, valid now, and expires no
    earlier. Each is one certificate in PEM.
    """
    issued, held, issuer = _load(new), _load(old), _load(authority)
    now = datetime.now(UTC)
    for fits, reason in (
        (issued.public_key() == held.public_key(), "it is for another key"),
        (_common_name(issued) == _common_name(held), f"it is for another name, {_common_name(issued)!r}"),
        (_signed_by(issued, issuer), "it is not signed by this federation's authority"),
        (_for_client(issued), "it is not for a client"),
        (
            issued.not_valid_before_utc <= now,
            f"it is not valid before {issued.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
        ),
        (now <= issued.not_valid_after_utc, f"it expired on {issued.not_valid_after_utc:%Y-%m-%d}"),
        (
            held.not_valid_after_utc <= issued.not_valid_after_utc,
            f"it expires on {issued.not_valid_after_utc:%Y-%m-%d}, earlier than the one that it is to replace, on "
            f"{held.not_valid_after_utc:%Y-%m-%d}",
        ),
    ):
        if not fits:
            raise BouquetError(f"The new certificate is refused: {reason}.")


def _load(pem: bytes) -> Certificate:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    if len(split(pem)) != 1:  # of several a reader would see the first alone
        raise BouquetError("This is not one certificate in PEM.")
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _ = certificate.public_key(), certificate.subject, certificate.extensions  # else parsed when asked for
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, UnsupportedAlgorithm) as error:
        raise BouquetError(f"This is no certificate ({error}).") from None
    return certificate


def _common_name(certificate: Certificate) -> str:
    from cryptography.x509.oid import NameOID

    return next((str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), "")


def _signed_by(certificate: Certificate, authority: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _for_client(certificate: Certificate) -> bool:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage
