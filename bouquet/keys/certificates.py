"""X.509 certificates of a federation of its own: an authority, and what it signs for the server and for devices.

Everything goes in and out as PEM. Keys are ECDSA: the authority's on P-384, the others on P-256, with which a small
device is through a handshake sooner. A certificate is for a server or for a client, never both, so that a device cannot
pass itself off as the server.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bouquet.common.errors import BouquetError

ALWAYS_NAMED = ("localhost", "127.0.0.1")  # Programs on the server's own machine reach it here.
HOST_NAME = re.compile(r"(?=.{1,253}\Z)(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)(\.[A-Za-z0-9_-]{1,63})*")
# Clocks of small devices lag after they are switched on.
BACKDATED = timedelta(days=2)
HOW_TO_ASK = (
    "A device makes its key and the request with: openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
    "-keyout device.key -subj /CN=NAME -out device.csr"
)


def make_authority(days: int) -> tuple[bytes, bytes]:
    """Certificate and private key of a new authority, valid for ``days``."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name("Bouquet authority")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key)


class Authority:
    """What signs certificates. Raises `BouquetError` when they cannot be read, or the key is another's."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        try:
            issuer = x509.load_pem_x509_certificate(certificate)
            issuer_key = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BouquetError(f"The authority's certificate and key cannot be read ({error}).") from None
        if not isinstance(issuer_key, ec.EllipticCurvePrivateKey) or issuer_key.public_key() != issuer.public_key():
            raise BouquetError("The authority's private key (ca.key) is not that of its certificate (ca.crt).")
        self.pem, self._certificate, self._key = certificate, issuer, issuer_key

    def server_certificate(self, names: x509.SubjectAlternativeName, days: int) -> tuple[bytes, bytes]:
        """Certificate and private key of a server, for `alternative_names`, valid for ``days``."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("Bouquet server"), self._certificate.subject, key.public_key(), days)
        certificate = self._signed(builder.add_extension(names, critical=False), ExtendedKeyUsageOID.SERVER_AUTH)
        return certificate, _private_pem(key)

    def device_certificate(self, name: str, key: CertificatePublicKeyTypes, days: int) -> bytes:
        """Certificate of the device ``name`` for its public key, valid for ``days``."""
        return self._signed(
            _builder(_name(name), self._certificate.subject, key, days), ExtendedKeyUsageOID.CLIENT_AUTH
        )

    def renewed(self, old: bytes, days: int) -> bytes:
        """A new certificate for a device's name and public key, which ``old`` has; `BouquetError` for another's."""
        held = x509.load_pem_x509_certificate(old)
        try:
            held.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            raise BouquetError("Its certificate is not of this authority.") from None
        builder = _builder(held.subject, self._certificate.subject, held.public_key(), days)
        return self._signed(builder, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _signed(self, builder: x509.CertificateBuilder, purpose: x509.ObjectIdentifier) -> bytes:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA384())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def make_device_key() -> tuple[ec.EllipticCurvePublicKey, bytes]:
    """Public key of a new pair for a device, and the private one."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.public_key(), _private_pem(key)


def requested_key(request: Path) -> ec.EllipticCurvePublicKey:
    """The public key that a certificate request (PKCS#10, PEM) is for, whose private half has signed it.

    The name in it is not looked at. Raises `BouquetError`.
    """
    try:
        signing_request = x509.load_pem_x509_csr(request.read_bytes())
        key, is_whole = signing_request.public_key(), signing_request.is_signature_valid
    except OSError as error:
        raise BouquetError(f"The request {request} cannot be read ({error.strerror}).") from None
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise BouquetError(f"{request} is no certificate request ({error}). {HOW_TO_ASK}") from None
    if not is_whole:
        raise BouquetError(f"The signature of the request {request} is false: it was altered on its way. {HOW_TO_ASK}")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BouquetError(f"The key of the request {request} is not ECDSA on P-256. {HOW_TO_ASK}")
    return key


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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - BACKDATED, now + timedelta(days=days)
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = dict.fromkeys((*others, "decipher_only"), False)
    signs = dict.fromkeys(("key_cert_sign", "crl_sign"), signs_certificates)
    return x509.KeyUsage(digital_signature=not signs_certificates, **usage, **signs)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
