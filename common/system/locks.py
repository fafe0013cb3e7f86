"""One program a folder, and who is there: locks that end with the process that holds them, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import make_folder

LOCK = ".lock"
LOOKS, LOOK_SECONDS = 4, 0.05
_for_life: list[int] = []  # descriptors of what `hold` holds


@contextlib.contextmanager
def locked(folder: Path, what: str, hint: str) -> Iterator[None]:
    """Hold the folder, which is made where it is missing, inside the ``with`` block.

    Raises `BouquetError` that names the process which holds it, with ``hint``; ``what`` is what the folder is.
    """
    make_folder(folder, what)
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BouquetError(f"{_first_upper(what)} {folder} cannot be written to: {error.strerror}.") from None
    try:
        try:
            _lock(descriptor)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise BouquetError(f"{_first_upper(what)} {folder} is in use by process {holder}. {hint}") from None
        except OSError as error:
            raise BouquetError(f"{_first_upper(what)} {folder} cannot be locked: {error.strerror}.") from None
        with contextlib.suppress(OSError):  # on a full disk it is held without the holder's number
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a running program holds the folder."""
    return is_held(folder / LOCK)


def hold(file: Path, text: str) -> None:
    """Hold a file, with ``text`` in it, until this process ends; without a word where that cannot be done."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        _for_life.append(descriptor)
        _lock(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, text.encode())


def is_held(file: Path) -> bool:
    """Whether a running program holds the file."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        # A lock that is only looked at must not keep its owner out: shared, and gone at once.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    for _ in range(LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:  # it may be `is_locked`, which lets go at once
            time.sleep(LOOK_SECONDS)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
