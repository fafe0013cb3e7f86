"""A federation's own keys: a certificate authority, the server's certificate, and one for each device.

One folder, which stays on the server (or off it: only ``ca.crt``, ``server.crt``, ``server.key`` and ``registered``
are needed to run one):

- ``ca.crt``, ``ca.key``: the authority, which nobody else knows; the second makes certificates and is never copied.
- ``server.crt``, ``server.key``: what the server shows, for the names and addresses that devices reach it by.
- ``registered/NAME.crt``: who may take part, by one certificate or several, newest first, each of them good. The server
  watches this folder, and nothing else decides: a certificate that is not here is refused, whoever signed it.
- ``devices/NAME/``: what is to be copied to that device: ``device.key``, ``device.crt``, ``ca.crt``.
"""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest
from bouquet.common.system.files import write_atomically, write_secret
from bouquet.common.trust.certificates import check_renewal, common_name, expires, fingerprint, read, registered
from bouquet.keys.certificates import (
    ALWAYS_NAMED,
    Authority,
    alternative_names,
    certificate_names,
    make_authority,
    make_device_key,
    requested_key,
)
from bouquet.server.service.certificates import Certificates

CA_CERTIFICATE = "ca.crt"
CA_KEY = "ca.key"
SERVER_CERTIFICATE = "server.crt"
SERVER_KEY = "server.key"
DEVICE_KEY = "device.key"
DEVICE_CERTIFICATE = "device.crt"
REGISTERED = "registered"
DEVICES = "devices"
DEFAULT = Path("keys")
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class RegisteredDevice:
    """A device that may take part; fingerprint and end of its newest certificate."""

    name: str
    fingerprint: str
    expires: datetime


@dataclass(frozen=True)
class ServerKeys:
    """What a secure server needs: its certificates, and the folder of those of the devices that it admits."""

    certificates: Certificates
    registered: Path


@dataclass(frozen=True)
class DeviceKeys:
    """What a device needs: its private key and certificate, and that of the authority that it trusts.

    ``name`` is what its certificate calls it.
    """

    private_key: Path
    certificate: Path
    authority: Path
    name: str

    @property
    def files(self) -> dict[str, Path]:
        """The three files, absolute, as `bouquet.client.agent.settings.DeviceSettings` names them."""
        return {key: getattr(self, key).absolute() for key in ("authority", "certificate", "private_key")}


def server_keys(directory: Path | None, insecure: bool) -> ServerKeys | None:
    """The keys of a server that was given ``--keys`` (or has a folder ``keys``), None for ``--insecure``.

    Raises `BouquetError`, with the command that makes them, when they are not there or have expired.
    """
    if _insecure(directory, insecure):
        return None
    directory = directory or DEFAULT
    missing = [n for n in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY) if not (directory / n).is_file()]
    if missing:
        raise BouquetError(
            f"There is no {directory / missing[0]}: a server needs a certificate, and those of its devices. Make "
            f"them with: bouquet keys init --dir {directory} --host NAME_OR_IP, then bouquet keys add DEVICE … --dir "
            f"{directory}. For a trial in a network where you trust everyone: --insecure."
        )
    now = datetime.now(UTC)
    for ends in _own(directory):
        if ends.at <= now:
            raise BouquetError(ends.line(now))
    certificates = Certificates(*(directory / name for name in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY)))
    return ServerKeys(certificates, directory / REGISTERED)


def device_keys(directory: Path | None, insecure: bool) -> DeviceKeys | None:
    """The keys of a device that was given ``--keys`` (or has a folder ``keys``), None for ``--insecure``.

    Raises `BouquetError`, saying where they come from, when they are not there or do not belong together.
    """
    if _insecure(directory, insecure):
        return None
    directory = directory or DEFAULT
    files = [directory / name for name in (DEVICE_KEY, DEVICE_CERTIFICATE, CA_CERTIFICATE)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise BouquetError(
            f"There is no {missing[0]}: a device needs its private key, its certificate and the server's "
            f"{CA_CERTIFICATE}. Make them on the server with: bouquet keys add DEVICE, copy the folder "
            "keys/devices/DEVICE to this device, and give it as --keys. For a server that was started with --insecure: "
            "--insecure."
        )
    private_key, certificate, authority = files
    name = common_name(read(certificate)[0])
    read(authority)
    if not DEVICE_NAME.fullmatch(name):
        raise BouquetError(f"{certificate} is not a device's certificate: it is for {name!r}.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, private_key, password="")
    except OSError as error:  # ssl's own errors are some, too
        raise BouquetError(
            f"{private_key} cannot be read, or is not the private key of {certificate} ({error.strerror}); "
            "bouquet keys add makes both."
        ) from None
    return DeviceKeys(private_key, certificate, authority, name)


@dataclass(frozen=True)
class _End:
    """When a certificate's time is over, whose it is, and what is to be done."""

    at: datetime
    whose: str
    remedy: str

    def line(self, now: datetime) -> str:
        verb = "expires" if self.at > now else "expired"
        return f"The certificate of {self.whose} {verb} on {self.at:%Y-%m-%d}; {self.remedy}"


def _own(directory: Path) -> list[_End]:
    anew = (
        "make another, add every device again and copy each its folder: bouquet keys init --dir NEW --host NAME_OR_IP"
    )
    renew = f"make a new one: bouquet keys server --dir {directory}"
    renewals = ((CA_CERTIFICATE, "the authority", anew), (SERVER_CERTIFICATE, "the server", renew))
    return [_End(expires(read(directory / file)[0]), whose, remedy) for file, whose, remedy in renewals]


def expiring(directory: Path, now: datetime, days: float = 30) -> list[str]:
    """A line, with the command to give, for each certificate that expires within ``days`` of ``now`` or has expired.

    The authority's, the server's, and the newest of each registered device; a device's file that cannot be read is
    passed over. Raises `BouquetError` where one of the first two cannot be read.
    """
    ends = _own(directory)
    for name, (newest, *_) in registered(directory / REGISTERED):
        ends.append(_End(expires(newest), name, f"make a new one: bouquet keys renew {name} --dir {directory}"))
    return [end.line(now) for end in ends if end.at <= now + timedelta(days=days)]


def init_keys(directory: Path, hosts: Sequence[str], days: int = 3650) -> None:
    """Make the authority and the server's certificate, for ``hosts`` (names or IP addresses), valid for ``days``.

    Raises `BouquetError` when there is an authority already: its devices would be locked out.
    """
    names = alternative_names(hosts)
    for file in (CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY):
        if (directory / file).exists():
            raise BouquetError(
                f"{directory / file} is there already and is not overwritten. A new certificate from the same "
                f"authority: bouquet keys server --dir {directory} --host …; an authority of its own: another --dir."
            )
    _private_folder(directory)
    (directory / REGISTERED).mkdir(exist_ok=True)
    authority, authority_key = make_authority(days)
    write_secret(directory / CA_KEY, authority_key)
    _write(directory / CA_CERTIFICATE, authority)
    _write_server(directory, Authority(authority, authority_key).server_certificate(names, days))


def renew_server(
    directory: Path, hosts: Sequence[str] = (), days: int = 3650, removed: Sequence[str] = ()
) -> tuple[str, ...]:
    """Replace the server's certificate and key by new ones from the same authority; devices need nothing new.

    The names that the certificate holds stay, ``hosts`` are added, ``removed`` taken away; returns what it then holds.
    Raises `BouquetError` for a name to remove that it does not hold, or that the server's own machine needs.
    """
    held = list(certificate_names(directory / SERVER_CERTIFICATE))
    for host in removed:
        name = str(next(iter(alternative_names([host]))).value)
        if name in ALWAYS_NAMED or name not in held:
            why = "the server's own machine reaches it by that" if name in ALWAYS_NAMED else "it is not in it"
            raise BouquetError(f"{host!r} cannot be taken from the certificate, {why}. It holds {', '.join(held)}.")
        held.remove(name)
    names = alternative_names([*held, *hosts])
    _write_server(directory, _authority(directory).server_certificate(names, days))
    return certificate_names(directory / SERVER_CERTIFICATE)


def _write_server(directory: Path, made: tuple[bytes, bytes]) -> None:
    write_secret(directory / SERVER_KEY, made[1])
    _write(directory / SERVER_CERTIFICATE, made[0])


def _authority(directory: Path) -> Authority:
    certificate = _read(directory / CA_CERTIFICATE, f"bouquet keys init --dir {directory} --host … makes it")
    hint = "it makes certificates: give the folder that has it as --dir, or take it from the backup"
    return Authority(certificate, _read(directory / CA_KEY, hint))


def add_device(directory: Path, name: str, request: Path | None = None, days: int = 3650) -> Path:
    """Register a device with a certificate that is valid for ``days``, and make the folder to copy to it.

    With ``request``, a certificate request that it made, its private key stays where it is, and is not in the folder.
    Raises `BouquetError` when the name or the key is taken.
    """
    if not DEVICE_NAME.fullmatch(name):
        raise BouquetError(
            f"The device name {name!r} cannot be used; a name has up to 63 letters, digits, '-', '_' and '.', "
            "and starts with a letter or digit."
        )
    file, folder = directory / REGISTERED / f"{name}.crt", directory / DEVICES / name
    if file.exists():
        raise BouquetError(
            f"There is a device {name} already ({file}). Take another name, or replace its key: "
            f"bouquet keys remove {name} --dir {directory}, then add it again."
        )
    authority = _authority(directory)
    if folder.exists():
        raise BouquetError(f"{folder} is there already and is not overwritten; remove it, or take another name.")
    private = None
    if request is None:
        key, private = make_device_key()
    else:
        key = requested_key(request)
        for other in sorted((directory / REGISTERED).glob("*.crt")):
            if any(x509.load_pem_x509_certificate(pem).public_key() == key for pem in read(other)):
                raise BouquetError(
                    f"The key of {request} is that of {other.stem} already; each device needs a key of its own."
                )
    certificate = authority.device_certificate(name, key, days)
    _private_folder(directory / DEVICES)
    _private_folder(folder)
    if private is not None:
        write_secret(folder / DEVICE_KEY, private)
    _write(folder / DEVICE_CERTIFICATE, certificate)
    _write(folder / CA_CERTIFICATE, authority.pem)
    (directory / REGISTERED).mkdir(exist_ok=True)
    _write(file, certificate)
    return folder


def renew_device(directory: Path, name: str, days: int = 3650) -> datetime:
    """Register a new certificate for a device's public key, beside the one that it has; until when it is valid.

    The one before stays good until it expires, because the device has yet to get the new one; older ones go. Raises
    `BouquetError`, also where the new one is one that the device would not take.
    """
    file = _registered_file(directory, name)
    authority = _authority(directory)
    old = read(file)[0]
    try:
        new = authority.renewed(old, days)
        check_renewal(new, old, authority.pem)
    except BouquetError as error:
        raise BouquetError(f"{name} cannot be given a new certificate. {error}") from None
    _write(file, new + (old if expires(old) > datetime.now(UTC) else b""))
    if (directory / DEVICES / name).is_dir():
        _write(directory / DEVICES / name / DEVICE_CERTIFICATE, new)
    return expires(new)


def remove_device(directory: Path, name: str) -> None:
    """Take a device's registration away, and its folder."""
    _registered_file(directory, name).unlink()
    shutil.rmtree(directory / DEVICES / name, ignore_errors=True)


def _registered_file(directory: Path, name: str) -> Path:
    file = directory / REGISTERED / f"{name}.crt"
    if not DEVICE_NAME.fullmatch(name) or not file.is_file():
        known = nearest(name, (device.name for device in list_devices(directory)), "registered:")
        raise BouquetError(f"No device {name!r} is registered in {directory}; {known}.")
    return file


def list_devices(directory: Path) -> list[RegisteredDevice]:
    """The registered devices, by name; `BouquetError` when the folder holds no keys at all."""
    if not (directory / REGISTERED).is_dir():
        raise BouquetError(f"{directory} holds no keys; make them with: bouquet keys init --dir {directory} --host …")
    newest = {file.stem: read(file)[0] for file in sorted((directory / REGISTERED).glob("*.crt"))}
    return [RegisteredDevice(name, fingerprint(pem), expires(pem)) for name, pem in newest.items()]


def _insecure(directory: Path | None, insecure: bool) -> bool:
    if insecure and directory is not None:
        raise BouquetError("Give either --keys, for encryption and authentication, or --insecure, for neither.")
    return insecure


def _read(file: Path, hint: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BouquetError(f"{file} cannot be read ({error.strerror}); {hint}.") from None


def _private_folder(folder: Path) -> None:
    """A folder that nobody else can look into; one that is there stays as it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # not made open, and closed afterwards
    except OSError as error:
        raise BouquetError(f"The folder {folder} cannot be made: {error.strerror}.") from None


def _write(file: Path, content: bytes) -> None:
    """A certificate, which anybody may read. Whole or not at all: the server may look at any moment."""
    write_atomically(file, content, 0o644)
