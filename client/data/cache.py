"""A device's data as its model takes them, kept between messages: decoded, scaled and divided once.

Each message is a process of its own, which would decode all photos again. What `bouquet.client.data.loading` made of
them lies in one file of the state folder, under a key of all that it depends on: the files' names, sizes and times, the
settings, and the code that prepares. The arrays are mapped into memory. The file is written beside, synced and renamed;
one that is damaged, or of another key, is made again.

The layout is that of safetensors (a length, a JSON header, the tensors), each array on a multiple of 64 bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.client.data.loading import ClientData
from bouquet.client.state.room import check_room
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.system.files import replacing, sweep

FOLDER = "prepared"
ALIGNMENT = 64
KEPT = 2  # files: a device may serve two runs in turns
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "naive")
# What decides how samples come out, beside the libraries that it calls.
CODE = ("client/data/*.py", "common/data/*.py", "common/model/card.py")


def prepared(
    folder: Path, sources: Iterable[Path], settings: Mapping[str, Any], make: Callable[[], ClientData]
) -> ClientData:
    """What ``make`` returns, or what it returned before for the same files and settings.

    ``folder`` is the device's state folder. Where it cannot be written, the data are made for each message.
    """
    key = _key(sources, settings)
    file = folder / FOLDER / f"data-{key}.bin"
    if (known := kept_data(file)) is not None:
        with contextlib.suppress(OSError):
            os.utime(file)
        return replace(known, kept_as=file.name)
    data = make()
    try:
        _write(file, data)
    except (OSError, BouquetError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        print(f"The prepared data cannot be kept in {file.parent}: {reason}", flush=True)
        return data
    return replace(data, kept_as=file.name)


def _key(sources: Iterable[Path], settings: Mapping[str, Any]) -> str:
    root = Path(__file__).parents[2]
    code = [file for pattern in CODE for file in root.glob(pattern)]
    libraries = [np.__version__]
    with contextlib.suppress(ImportError):
        from PIL import __version__ as pillow

        libraries.append(pillow)
    listed = sorted((str(file), *_about(file)) for file in (*code, *sources))
    text = json.dumps([libraries, listed, dict(settings)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _about(file: Path) -> tuple[int, int]:
    try:
        about = file.stat()
    except OSError:  # a link to nowhere, or gone since: who reads it says so
        return -1, 0
    return about.st_size, about.st_mtime_ns


def _write(file: Path, data: ClientData) -> None:
    arrays = {n: np.ascontiguousarray(array) for n in ARRAYS if (array := getattr(data, n)) is not None}
    about = {f.name: getattr(data, f.name) for f in fields(data) if f.name not in (*ARRAYS, "kept_as")}
    header: dict[str, Any] = {**about, "scaling": data.scaling and asdict(data.scaling), "arrays": {}}
    end, checksum = 0, 0
    for name, array in arrays.items():
        start = math.ceil(end / ALIGNMENT) * ALIGNMENT
        checksum = zlib.crc32(array.data, zlib.crc32(bytes(start - end), checksum))
        header["arrays"][name] = {"dtype": array.dtype.str, "shape": array.shape, "start": start}
        end = start + array.nbytes
    text = json.dumps(header | {"bytes": end, "checksum": checksum}).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    check_room(file.parent.parent, end)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(file.parent)
    with replacing(file, 0o600) as output:
        output.write(len(text).to_bytes(8, "little") + text)
        written = 0
        for name, array in arrays.items():
            output.write(bytes(header["arrays"][name]["start"] - written))
            output.write(array.data)
            written = header["arrays"][name]["start"] + array.nbytes
    kept = sorted(file.parent.glob("data-*.bin"), key=lambda other: other.stat().st_mtime, reverse=True)
    for old in kept[KEPT:]:
        old.unlink(missing_ok=True)


def kept_data(file: Path) -> ClientData | None:
    """What `prepared` keeps in a file of `FOLDER`; None where that is gone, or damaged."""
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
            if not 0 < length < 1 << 20:
                return None
            header = json.loads(content.read(length))
        start = 8 + length
        # Copy-on-write: what a message changes stays in it.
        body = np.memmap(file, np.uint8, "c", offset=start)
        if len(body) != header["bytes"] or zlib.crc32(body.data) != header["checksum"]:
            print(f"{file} is damaged; the data are prepared again.", flush=True)
            return None
        arrays: dict[str, Any] = {
            name: np.ndarray(about["shape"], about["dtype"], body, about["start"])
            for name, about in header["arrays"].items()
        }
        rest: dict[str, Any] = {name: tuple(held) if isinstance(held, list) else held for name, held in header.items()}
        for name in ("arrays", "bytes", "checksum"):
            del rest[name]
        return ClientData(**arrays, **{**rest, "scaling": rest["scaling"] and Scaling(**rest["scaling"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        print(f"{file} is damaged; the data are prepared again.", flush=True)
        return None
