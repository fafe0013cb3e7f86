"""``bouquet keys``: who may take part, and by what certificate devices know the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bouquet.console import console

keys_app = typer.Typer(
    name="keys",
    help="Make certificates and keys; register devices and remove them.",
    no_args_is_help=True,
    suggest_commands=False,
)
Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder that holds the keys.")]
Hosts = Annotated[
    list[str], typer.Option("--host", metavar="NAME_OR_IP", help="How devices reach the server; can be repeated.")
]
Days = Annotated[int, typer.Option(min=1, max=36500, help="How long the certificate is valid.")]


@keys_app.command()
def init(host: Hosts, dir_: Directory = Path("keys"), days: Days = 3650) -> None:
    """Make a certificate authority and the server's certificate.

    Example: bouquet keys init --host server.local --host 192.168.1.10
    """
    from bouquet.keys.store import init_keys

    init_keys(dir_, host, days)
    console.print(f"made     {dir_}/ca.crt, ca.key, server.crt, server.key", soft_wrap=True)
    console.print("Keep ca.key secret and in your backup. Next: bouquet keys add DEVICE …", soft_wrap=True)


@keys_app.command()
def server(
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME_OR_IP", help="Also reached as this; can be repeated.")
    ] = None,
    remove_host: Annotated[
        list[str] | None, typer.Option("--remove-host", metavar="NAME_OR_IP", help="No longer reached as this.")
    ] = None,
    dir_: Directory = Path("keys"),
    days: Days = 3650,
) -> None:
    """Make a new certificate for the server, from the same authority: for one more address, or before it expires.

    The names that it holds stay. Devices need nothing new.
    """
    from bouquet.keys.store import renew_server

    names = renew_server(dir_, host or (), days, remove_host or ())
    console.print(f"made     {dir_}/server.crt, server.key; a server that runs shows it at once.", soft_wrap=True)
    console.print(f"holds    {', '.join(names)}", soft_wrap=True, highlight=False)


@keys_app.command()
def add(
    devices: Annotated[list[str], typer.Argument(metavar="DEVICE...")],
    dir_: Directory = Path("keys"),
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate request of a device that made its own key.")
    ] = None,
    days: Days = 3650,
) -> None:
    """Register devices, with a certificate for each; a server that runs admits them within seconds.

    For --request make on the device: openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes
    -keyout device.key -subj /CN=NAME -out device.csr
    """
    from bouquet.common.errors import BouquetError
    from bouquet.keys.store import add_device

    if request is not None and len(devices) > 1:
        raise BouquetError("--request is that of one device; give one name.")
    for name in devices:
        folder = add_device(dir_, name, request, days)
        what = f"{folder} to it" if request is None else f"what is in {folder} to it, beside its device.key"
        console.print(f"added    {name}: copy {what}", soft_wrap=True)


@keys_app.command()
def renew(
    devices: Annotated[list[str] | None, typer.Argument(metavar="[DEVICE...]", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every registered device.")] = False,
    dir_: Directory = Path("keys"),
    days: Days = 3650,
) -> None:
    """Make new certificates for devices, before the old ones expire; their keys stay.

    The one before stays good until it expires, older ones do not.
    """
    from bouquet.common.errors import BouquetError
    from bouquet.keys.store import list_devices, renew_device

    if bool(devices) == all_:
        raise BouquetError("Name the devices, or give --all for every one that is registered.")
    for name in devices or [device.name for device in list_devices(dir_)]:
        until = renew_device(dir_, name, days)
        console.print(f"renewed  {name}: until {until:%Y-%m-%d}", soft_wrap=True, highlight=False)
    console.print(
        "A device that connects before its old certificate expires is sent the new one by itself. For another: openssl "
        f"x509 -in {dir_}/registered/DEVICE.crt -out device.crt, and copy that to it.",
        soft_wrap=True,
    )


@keys_app.command()
def remove(
    devices: Annotated[list[str], typer.Argument(metavar="DEVICE...")],
    dir_: Directory = Path("keys"),
) -> None:
    """Take devices' registration away; a server that runs shuts them out within seconds.

    A device that is added again gets a new key.
    """
    from bouquet.keys.store import remove_device

    for name in devices:
        remove_device(dir_, name)
        console.print(f"removed  {name}", soft_wrap=True)


@keys_app.command("list")
def list_(dir_: Directory = Path("keys")) -> None:
    """List the registered devices: the beginning of their certificates' SHA-256, and until when they are valid."""
    from bouquet.keys.store import list_devices

    for device in list_devices(dir_):
        line = f"{device.name}  {device.fingerprint[:16]}  until {device.expires:%Y-%m-%d}"
        console.print(line, soft_wrap=True, highlight=False)


Signer = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the signing key; not on the server.")]


@keys_app.command()
def signer(dir_: Signer = Path("signer")) -> None:
    """Make a key that signs releases, so that they reach devices without touching each; keep it off the server.

    Devices that were started with --trust-signer signer.pub run what it signed.
    """
    from bouquet.common.trust.signature import fingerprint
    from bouquet.keys.signing import SIGNER_PUBLIC_KEY, make_signer

    text = make_signer(dir_)
    console.print(f"made     {dir_}/signer.key, signer.pub  {fingerprint(text)}", soft_wrap=True, highlight=False)
    public = dir_ / SIGNER_PUBLIC_KEY
    console.print(f"Keep signer.key secret, off the server. Copy {public} to each device.", soft_wrap=True)


@keys_app.command()
def sign(
    dir_: Signer = Path("signer"),
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the signature goes; the server looks for keys/release.sig.")
    ] = Path("release.sig"),
    serial: Annotated[
        int | None, typer.Option(min=1, help="Devices refuse what is below the highest they ran; the time by default.")
    ] = None,
) -> None:
    """Sign the release that is installed on this machine: what the server sends devices, file for file."""
    from bouquet.keys.signing import sign_release

    statement = sign_release(dir_, out, serial)
    console.print(f"signed   {out}: {statement}", soft_wrap=True, highlight=False)
    console.print("Copy it to the server's keys/release.sig; the next run there takes it.", soft_wrap=True)
