"""The Flower app as Flower wants it: a folder with the packages and a pyproject.toml, built into a bundle (FAB).

A FAB is what SuperLink hands to every device, so the code that runs there is the server's, not the device's, unless
the device compares it with what it would build itself. It is laid out from the *installed* packages, so that it comes
out the same from a wheel and from a checkout, and on both ends.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from common.errors import BouquetError
from common.settings import Settings

DISTRIBUTION = "bouquet-fl"
PACKAGES = ("client", "common", "server", "strategies")
COMPONENTS = {"serverapp": "server.app:app", "clientapp": "client.app:app"}
MARKER = ".bouquet-app"
CONFIG_KEY = re.compile(r"[A-Za-z0-9_-]+")


def app_files(config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of the Flower app, path → content, which are those of its bundle, too.

    ``config`` becomes ``[tool.flwr.app.config]``: a mapping of text, numbers and truth values, or of such mappings,
    whose keys Flower joins with dots; a run can override these keys and no others. The same code and config give the
    same files and the same `fab_hash`. Raises `BouquetError` for a config that TOML and Flower cannot hold.
    """
    project = {
        "project": {
            "name": DISTRIBUTION,
            "version": _version(),
            "description": "Clustered, personalised federated learning on real devices, on Flower",
            "license": "Apache-2.0",
            # Devices bring what the app needs, torch above all: nothing is to be installed at run time.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {"publisher": "bouquet", "components": COMPONENTS, "config": _checked(config)},
            },
        },
    }
    files = {"pyproject.toml": tomli_w.dumps(project).encode()}
    for package in PACKAGES:
        source = package_folder(package)
        for file in sorted(source.rglob("*.py")):
            files[f"{package}/{file.relative_to(source).as_posix()}"] = file.read_bytes()
    return files


def own_app_files() -> dict[str, bytes]:
    """The files of the app of this installation: its code, and every setting with its default.

    They depend on the installed release alone, because a run's settings travel as overrides.
    """

    return app_files(nested(Settings().to_run_config()))


def signed_app_files(signature: Path | None) -> tuple[dict[str, bytes], str]:
    """`own_app_files` with the owner's signature in ``signature``, if given, and what that says.

    Raises `BouquetError` for a signature that is not of these files: devices would refuse it.
    """
    from common.trust.signature import SIGNATURE_FILE, SignatureError, files_digest, fingerprint, read_signature, verify

    files = own_app_files()
    if signature is None:
        return files, ""
    try:
        content = signature.read_bytes()
        _, signer, _ = read_signature(content)
        digest = files_digest({name: hashlib.sha256(data).digest() for name, data in files.items()})
        statement, _ = verify(content, digest, frozenset({signer}))  # whom devices trust, they decide
    except OSError as error:
        raise BouquetError(f"The signature {signature} cannot be read: {error.strerror}.") from None
    except SignatureError as error:
        raise BouquetError(
            f"The signature {signature} does not fit the app of this server ({DISTRIBUTION} {_version()}): {error}. "
            "Sign this release (bouquet keys sign, where it is installed), or take the file away."
        ) from None
    return {**files, SIGNATURE_FILE: content}, f"{statement}, by {fingerprint(signer)}"


def write_app(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Lay out the app in ``directory`` (new, empty, or an earlier app, which is replaced) and return it."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).exists():
            raise BouquetError(f"{directory} holds other files; the Flower app needs an empty folder, or its own.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()
    for name, content in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return directory


def nested(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``section.key`` → value as the sections of a TOML file."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in config.items():
        section, _, key = dotted.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def fab_hash(directory: Path) -> str:
    """SHA-256, in hexadecimal, of the bundle that Flower builds from the app in ``directory``."""
    from flwr.cli.build import build_fab_from_disk  # Flower takes most of a second to import.

    return hashlib.sha256(build_fab_from_disk(directory)).hexdigest()


def package_folder(package: str) -> Path:
    """The folder an installed package lies in."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BouquetError(f"The package {package!r} is not installed; install {DISTRIBUTION} (pip install .).")
    return Path(next(iter(spec.submodule_search_locations)))


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise BouquetError(f"{DISTRIBUTION} is not installed, only its code is here; run: pip install -e .") from None


def _checked(config: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key in sorted(config, key=str):
        name, value = f"{parent}{key}", config[key]
        if not isinstance(key, str) or not CONFIG_KEY.fullmatch(key):
            raise BouquetError(f"The run setting {name!r} has a name that is not made of letters, digits, '_' and '-'.")
        if isinstance(value, Mapping):
            checked[key] = _checked(value, f"{name}.")
        elif isinstance(value, bool | int | float | str):
            checked[key] = value
        else:
            raise BouquetError(
                f"The run setting {name!r} is {value!r} ({type(value).__name__}); Flower's run settings hold "
                "text, numbers and truth values, and tables of these."
            )
    return checked
