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

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bouquet.keys.certificates import (
    ALWAYS_NAMED,
    alternative_names,
    certificate_names,
    make_authority,
    make_server_certificate,
    shown_name,
)
from common.errors import BouquetError
from common.system.files import write_atomically
from common.trust.public_keys import read_public_key
from server.superlink.certificates import Certificates

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
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


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
    """What a device needs: its private key, and the certificate of the authority that it trusts.

    ``name`` is what the key is called on the server, where ``device.pub`` lies beside it and says so.
    """

    private_key: Path
    authority: Path
    name: str | None = None


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
    return DeviceKeys(directory / DEVICE_KEY, directory / CA_CERTIFICATE, _key_name(directory / DEVICE_PUBLIC_KEY))


def _key_name(public_key: Path) -> str | None:
    try:
        comment = public_key.read_text(encoding="utf-8").split(maxsplit=2)[2].strip()
    except (OSError, UnicodeDecodeError, IndexError):
        return None
    return comment if DEVICE_NAME.fullmatch(comment) else None


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
    (directory / REGISTERED).mkdir(parents=True, exist_ok=True)
    authority, authority_key = make_authority(days)
    _write(directory / CA_KEY, authority_key, secret=True)
    _write(directory / CA_CERTIFICATE, authority)
    _write_server(directory, make_server_certificate(authority, authority_key, names, days))


def renew_server(
    directory: Path, hosts: Sequence[str] = (), days: int = 3650, removed: Sequence[str] = ()
) -> tuple[str, ...]:
    """Replace the server's certificate and key by new ones from the same authority; devices need nothing new.

    The names that the certificate holds stay, ``hosts`` are added, ``removed`` taken away; returns what it then holds.
    Raises `BouquetError` for a name to remove that it does not hold, or that SuperLink itself needs.
    """
    held = list(certificate_names(directory / SERVER_CERTIFICATE))
    for host in removed:
        name = shown_name(alternative_names([host]))
        if name in ALWAYS_NAMED or name not in held:
            why = "SuperLink's own programs reach it by that" if name in ALWAYS_NAMED else "it is not in it"
            raise BouquetError(f"{host!r} cannot be taken from the certificate, {why}. It holds {', '.join(held)}.")
        held.remove(name)
    names = alternative_names([*held, *hosts])
    authority = _read(directory / CA_CERTIFICATE, f"bouquet keys init --dir {directory} --host … makes it")
    key = _read(directory / CA_KEY, "without it no certificate can be made: take it from the backup, or init anew")
    _write_server(directory, make_server_certificate(authority, key, names, days))
    return certificate_names(directory / SERVER_CERTIFICATE)


def _write_server(directory: Path, made: tuple[bytes, bytes]) -> None:
    _write(directory / SERVER_KEY, made[1], secret=True)
    _write(directory / SERVER_CERTIFICATE, made[0])


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


def _read(file: Path, hint: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BouquetError(f"{file} cannot be read ({error.strerror}); {hint}.") from None


def _write(file: Path, content: bytes, *, secret: bool = False) -> None:
    """Written beside, synced and renamed: the server may look at any moment. A secret is never readable by others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content, 0o600 if secret else 0o644)
