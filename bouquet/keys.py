"""A federation's own keys: a certificate authority, the server's certificate, and a key pair for each device.

One folder, which stays on the server (or off it: only ``ca.crt``, ``server.crt``, ``server.key`` and ``registered``
are needed to run one):

- ``ca.crt``, ``ca.key``: the authority, which nobody else knows; the second makes certificates and is never copied.
- ``server.crt``, ``server.key``: what the server shows, for the names and addresses that devices reach it by.
- ``registered/NAME.pub``: who may take part. The server watches this folder.
- ``removed/``: public keys that may not come back, because a SuperLink never admits a key again that it removed.
- ``devices/NAME/``: what is to be copied to that device: ``device.key``, ``device.pub``, ``ca.crt``.

Keys are ECDSA on P-384, which Flower's SuperNode authentication asks for; devices' are in OpenSSH's format.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import BouquetError
from common.public_keys import read_public_key
from server.superlink import Certificates

CA_CERTIFICATE = "ca.crt"
CA_KEY = "ca.key"
SERVER_CERTIFICATE = "server.crt"
SERVER_KEY = "server.key"
DEVICE_KEY = "device.key"
DEVICE_PUBLIC_KEY = "device.pub"
REGISTERED = "registered"
REMOVED = "removed"
DEVICES = "devices"
DEFAULT = Path("keys")
ALWAYS_NAMED = ("localhost", "127.0.0.1")  # SuperLink's own programs reach it here.
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HOST_NAME = re.compile(r"(?=.{1,253}\Z)(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)(\.[A-Za-z0-9_-]{1,63})*")
# Clocks of small devices lag after they are switched on.
BACKDATED = timedelta(days=2)


@dataclass(frozen=True)
class RegisteredDevice:
    """A device that may take part. ``fingerprint`` is OpenSSH's SHA-256 form; ``folder`` is what it was handed."""

    name: str
    fingerprint: str
    folder: Path | None


@dataclass(frozen=True)
class ServerKeys:
    """What a secure server needs: its certificates, and the folder of the public keys that it admits."""

    certificates: Certificates
    registered: Path


@dataclass(frozen=True)
class DeviceKeys:
    """What a device needs: its private key, and the certificate of the authority that it trusts."""

    private_key: Path
    authority: Path


def server_keys(directory: Path | None, insecure: bool) -> ServerKeys | None:
    """The keys of a server that was given ``--keys`` (or has a folder ``keys``), None for ``--insecure``.

    Raises `BouquetError`, with the command that makes them, when they are not there.
    """
    if _insecure(directory, insecure):
        return None
    directory = directory or DEFAULT
    missing = [n for n in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY) if not (directory / n).is_file()]
    if missing:
        raise BouquetError(
            f"There is no {directory / missing[0]}: a server needs a certificate, and the keys of its devices. Make "
            f"them with: bouquet keys init --dir {directory} --host NAME_OR_IP, then bouquet keys add DEVICE … --dir "
            f"{directory}. For a trial in a network where you trust everyone: --insecure."
        )
    certificates = Certificates(*(directory / name for name in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY)))
    return ServerKeys(certificates, directory / REGISTERED)


def device_keys(directory: Path | None, insecure: bool) -> DeviceKeys | None:
    """The keys of a device that was given ``--keys`` (or has a folder ``keys``), None for ``--insecure``.

    Raises `BouquetError`, saying where they come from, when they are not there.
    """
    if _insecure(directory, insecure):
        return None
    directory = directory or DEFAULT
    missing = [name for name in (DEVICE_KEY, CA_CERTIFICATE) if not (directory / name).is_file()]
    if missing:
        raise BouquetError(
            f"There is no {directory / missing[0]}: a device needs its private key and the server's {CA_CERTIFICATE}. "
            "Make them on the server with: bouquet keys add DEVICE, copy the folder keys/devices/DEVICE to this "
            "device, and give it as --keys. For a server that was started with --insecure: --insecure."
        )
    return DeviceKeys(directory / DEVICE_KEY, directory / CA_CERTIFICATE)


def init_keys(directory: Path, hosts: Sequence[str], days: int = 3650) -> None:
    """Make the authority and the server's certificate, for ``hosts`` (names or IP addresses), valid for ``days``.

    Raises `BouquetError` when there is an authority already: its devices would be locked out.
    """
    names = _alternative_names(hosts)
    for file in (CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY):
        if (directory / file).exists():
            raise BouquetError(
                f"{directory / file} is there already and is not overwritten. A new certificate from the same "
                f"authority: bouquet keys server --dir {directory} --host …; an authority of its own: another --dir."
            )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / REGISTERED).mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name("Bouquet authority")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write(directory / CA_KEY, _private_pem(key), secret=True)
    _write(directory / CA_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    _issue(directory, key, certificate, names, days)


def renew_server(directory: Path, hosts: Sequence[str], days: int = 3650) -> None:
    """Replace the server's certificate and key by new ones from the same authority; devices need nothing new."""
    names = _alternative_names(hosts)
    authority = _read(directory / CA_CERTIFICATE, f"bouquet keys init --dir {directory} --host … makes it")
    private = _read(directory / CA_KEY, "without it no certificate can be made: take it from the backup, or init anew")
    try:
        certificate = x509.load_pem_x509_certificate(authority)
        key = serialization.load_pem_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BouquetError(f"The authority in {directory} cannot be read ({error}).") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise BouquetError(f"{directory / CA_KEY} is not the key of {directory / CA_CERTIFICATE}.")
    _issue(directory, key, certificate, names, days)


def add_device(directory: Path, name: str, public_key: Path | None = None) -> Path | None:
    """Register a device and make the folder to copy to it; None for one that made its own key, ``public_key``.

    The name is that of files only. Raises `BouquetError` when the name or the key is taken, or the key was removed.
    """
    if not DEVICE_NAME.fullmatch(name):
        raise BouquetError(
            f"The device name {name!r} cannot be used; a name has up to 63 letters, digits, '-', '_' and '.', "
            "and starts with a letter or digit."
        )
    registered = directory / REGISTERED / f"{name}.pub"
    if registered.exists():
        raise BouquetError(
            f"There is a device {name} already ({registered}). Take another name, or replace its key: "
            f"bouquet keys remove {name} --dir {directory}, then add it again."
        )
    authority = _read(directory / CA_CERTIFICATE, f"bouquet keys init --dir {directory} --host … makes it")
    if public_key is not None:
        given = read_public_key(public_key)
        for kind in (REGISTERED, REMOVED):
            for other in sorted((directory / kind).glob("*.pub")):
                if read_public_key(other).pem == given.pem:
                    raise BouquetError(
                        f"The key {public_key} is that of {other.stem} already; each device needs a key of its own."
                        if kind == REGISTERED
                        else f"The key {public_key} was removed ({other}) and cannot come back; make a new one on "
                        "the device: ssh-keygen -t ecdsa -b 384 -N '' -f device.key"
                    )
        _write(registered, given.openssh + b"\n")
        return None
    folder = directory / DEVICES / name
    if folder.exists():
        raise BouquetError(f"{folder} is there already and is not overwritten; remove it, or take another name.")
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    openssh += f" {name}\n".encode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    folder.mkdir(parents=True, mode=0o700)
    _write(folder / DEVICE_KEY, private, secret=True)
    _write(folder / DEVICE_PUBLIC_KEY, openssh)
    _write(folder / CA_CERTIFICATE, authority)
    _write(registered, openssh)
    return folder


def remove_device(directory: Path, name: str) -> None:
    """Take a device's registration away, for good: its folder goes, and its public key moves to ``removed``."""
    registered = directory / REGISTERED / f"{name}.pub"
    if not DEVICE_NAME.fullmatch(name) or not registered.is_file():
        known = ", ".join(device.name for device in list_devices(directory)) or "none"
        raise BouquetError(f"No device {name!r} is registered in {directory}; registered: {known}.")
    (directory / REMOVED).mkdir(exist_ok=True)
    number = len(list((directory / REMOVED).glob(f"{name}*.pub"))) + 1
    registered.replace(directory / REMOVED / f"{name}.{number}.pub")
    shutil.rmtree(directory / DEVICES / name, ignore_errors=True)


def list_devices(directory: Path) -> list[RegisteredDevice]:
    """The registered devices, by name; `BouquetError` when the folder holds no keys at all."""
    if not (directory / REGISTERED).is_dir():
        raise BouquetError(f"{directory} holds no keys; make them with: bouquet keys init --dir {directory} --host …")
    devices = []
    for file in sorted((directory / REGISTERED).glob("*.pub")):
        folder = directory / DEVICES / file.stem
        devices.append(
            RegisteredDevice(file.stem, read_public_key(file).fingerprint, folder if folder.is_dir() else None)
        )
    return devices


def _insecure(directory: Path | None, insecure: bool) -> bool:
    if insecure and directory is not None:
        raise BouquetError("Give either --keys, for encryption and authentication, or --insecure, for neither.")
    return insecure


def _alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
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


def _issue(
    directory: Path,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    names: x509.SubjectAlternativeName,
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(_name("Bouquet server"), authority.subject, key.public_key(), days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    _write(directory / SERVER_KEY, _private_pem(key), secret=True)
    _write(directory / SERVER_CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


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


def _read(file: Path, hint: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BouquetError(f"{file} cannot be read ({error.strerror}); {hint}.") from None


def _write(file: Path, content: bytes, *, secret: bool = False) -> None:
    """Written beside and renamed: the server may look at any moment. A secret is never readable by others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    draft.replace(file)
