"""X.509 certificates of a federation of its own: an authority, and the server's certificate signed by it.

Everything goes in and out as PEM. Keys are ECDSA on P-384, as devices' keys are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import BouquetError

ALWAYS_NAMED = ("localhost", "127.0.0.1")  # SuperLink's own programs reach it here.
HOST_NAME = re.compile(r"(?=.{1,253}\Z)(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)(\.[A-Za-z0-9_-]{1,63})*")
# Clocks of small devices lag after they are switched on.
BACKDATED = timedelta(days=2)


def make_authority(days: int) -> tuple[bytes, bytes]:
    """Certificate and private key of a new authority, valid for ``days``."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name("Bouquet authority")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key)


def make_server_certificate(
    authority: bytes, authority_key: bytes, names: x509.SubjectAlternativeName, days: int
) -> tuple[bytes, bytes]:
    """Certificate and private key of a server, for `alternative_names`, valid for ``days``.

    Raises `BouquetError` when the authority cannot be read, or its key is another's.
    """
    try:
        issuer = x509.load_pem_x509_certificate(authority)
        issuer_key = serialization.load_pem_private_key(authority_key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BouquetError(f"The authority's certificate and key cannot be read ({error}).") from None
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey) or issuer_key.public_key() != issuer.public_key():
        raise BouquetError("The authority's private key (ca.key) is not that of its certificate (ca.crt).")
    key = ec.generate_private_key(ec.SECP384R1())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    certificate = (
        _builder(_name("Bouquet server"), issuer.subject, key.public_key(), days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(issuer_key, hashes.SHA384())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key)


def alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    """The names and IP addresses that a certificate is for; `BouquetError` for one that is neither, or none at all."""
    hosts = list(hosts)
    if not hosts:
        raise BouquetError("Name the server: --host NAME_OR_IP, as devices reach it; can be given many times.")
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, *ALWAYS_NAMED]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            if not HOST_NAME.fullmatch(host):
                raise BouquetError(
                    f"{host!r} is neither a host name nor an IP address; give it without port, such as "
                    "server.local or 192.168.1.10."
                ) from None
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def certificate_names(file: Path) -> tuple[str, ...]:
    """The names and addresses that a certificate holds; none where there is no file.

    Raises `BouquetError` where it cannot be read.
    """
    if not file.exists():
        return ()
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise BouquetError(f"The certificate {file} cannot be read ({error}).") from None
    return tuple(str(name.value) for name in names)


def shown_name(names: x509.SubjectAlternativeName) -> str:
    """The first of some names, as `certificate_names` shows it."""
    return str(next(iter(names)).value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - BACKDATED, now + timedelta(days=days)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
