"""Files that are there whole or not at all."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bouquet.common.errors import BouquetError

TEMPORARY = re.compile(r"\..+\.(\d+)")  # .NAME.PID, beside what it is to become


def temporary_beside(path: Path) -> Path:
    """Where this process writes what is to become ``path``; `sweep` knows such a name."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def sweep(folder: Path) -> None:
    """Remove from a folder what a process that was killed had not finished writing.

    For a process that has just begun: what bears its own number is of another that had it before.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if (match := TEMPORARY.fullmatch(entry.name)) is None:
                continue
            pid = int(match[1])
            if pid == os.getpid() or not _runs(pid):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A temporary file beside, synced and renamed over ``path`` at the end, gone where that fails.

    ``mode`` is its own, less the umask.
    """
    temporary = temporary_beside(path)
    temporary.unlink(missing_ok=True)  # what an earlier process of this number left may be of another mode
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write the file whole or not at all, as `replacing` does. Raises `BouquetError`."""
    try:
        with replacing(path, mode) as file:
            file.write(content)
    except OSError as error:
        raise BouquetError(f"{path} cannot be written: {error.strerror}.") from None


def write_secret(path: Path, content: bytes) -> None:
    """`write_atomically`, for a key or a token: nobody but this user can read it at any moment."""
    write_atomically(path, content, 0o600)


def keep_private(folder: Path) -> None:
    """Let nobody but this user into a folder, and read the files in it, as far as they are this user's to change."""
    for path in (folder, *(entry for entry in folder.iterdir() if not entry.is_symlink())):
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode & 0o700)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder outlive a power cut, as `os.fsync` does a file's content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, what: str) -> Path:
    """Make a folder and those above it; `BouquetError` that says ``what`` it is when that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BouquetError(f"{what[:1].upper()}{what[1:]}, {folder}, cannot be made: {error.strerror}.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BouquetError(f"{what[:1].upper()}{what[1:]}, {folder}, cannot be written to by this user.")
    return folder


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """A TOML file as editors save it: UTF-8, also with a byte order mark as Windows' do, or UTF-16, which has one.

    Raises `BouquetError` that says ``what`` it is, where it cannot be read or is none.
    """
    try:
        raw = file.read_bytes()
        wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = raw.decode("utf-16" if wide else "utf-8-sig")
        return tomllib.loads(text.replace("\r\n", "\n").replace("\r", "\n"))
    except OSError as error:
        raise BouquetError(f"{what} {file} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise BouquetError(f"{what} {file} is not valid TOML: too deep.") from None
    except ValueError as error:  # TOML's, or of a text or a number that Python does not read
        raise BouquetError(f"{what} {file} is not valid TOML: {error}.") from None


def write_json(path: Path, content: Any) -> None:
    """Write JSON, indented, atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
