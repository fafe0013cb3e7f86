"""A device's public key, as a file in OpenSSH's format holds it and as SuperLink knows it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.errors import BouquetError


@dataclass(frozen=True)
class PublicKey:
    """``openssh`` is the line without its comment, ``pem`` what SuperLink stores, ``fingerprint`` OpenSSH's SHA-256."""

    openssh: bytes
    pem: bytes
    fingerprint: str


def read_public_key(file: Path) -> PublicKey:
    """Read an OpenSSH public key; `BouquetError` unless it is ECDSA on a NIST curve, as Flower asks for."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise BouquetError(f"The public key {file} cannot be read ({error.strerror}).") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BouquetError(
            f"{file} is no OpenSSH public key ({error}). A device makes its pair with: "
            "ssh-keygen -t ecdsa -b 384 -N '' -f device.key"
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BouquetError(
            f"{file} is not an ECDSA key, the only kind that Flower takes: "
            "ssh-keygen -t ecdsa -b 384 -N '' -f device.key"
        )
    openssh = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(openssh, pem, _fingerprint(openssh))


def fingerprint_of(pem: bytes) -> str:
    """OpenSSH's SHA-256 of a public key in PEM, as `bouquet keys list` has it; of anything else, that it is no key."""
    try:
        key = serialization.load_pem_public_key(pem)
        return _fingerprint(key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    except (ValueError, UnsupportedAlgorithm):
        return "(no key)"


def _fingerprint(openssh: bytes) -> str:
    digest = hashlib.sha256(base64.b64decode(openssh.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
