"""Damaged files, and what comes of them: samples, our own error with the file's name, or anything else, a fault.

Whole photos with odd EXIF, arrays and tables, in which bytes are flipped, cut out, put in or zeroed, half of the time
in the first 300, where headers and EXIF lie. The exit status is 1 where anything else than our own error left a
reader::

    python benchmarks/damaged_files.py --inputs 10000
"""

from __future__ import annotations

import argparse
import gzip
import io
import lzma
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from bouquet.client.data.arrays import read_npz
from bouquet.client.data.own import load_table
from bouquet.client.data.table_text import table_files
from bouquet.common.data.images import read_photo
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import TableSettings
from bouquet.common.system.resources import peak_bytes

SHAPE, CLASSES = (3, 32, 32), ("healthy", "rust")
TABLE = TableSettings(inputs=("level",), targets=("temp",), time=("time",))
SETTINGS = Settings(data={"dataset": "own"}, task={"kind": "regression"}, table=TABLE.model_dump())
HEAD = 300
Damage = Callable[[np.random.Generator], bytes]


Entry = tuple[int, int, int, bytes]  # tag, type, count, and a value of at most 4 bytes or more


def exif(*entries: Entry) -> bytes:
    """A TIFF header with one directory of these entries."""
    head, extra, start = b"II*\0" + struct.pack("<IH", 8, len(entries)), b"", 14 + 12 * len(entries)
    for tag, kind, count, value in entries:
        head += struct.pack("<HHI", tag, kind, count)
        head += struct.pack("<I", start + len(extra)) if len(value) > 4 else value.ljust(4, b"\0")
        extra += value if len(value) > 4 else b""
    return b"Exif\0\0" + head + struct.pack("<I", 0) + extra


ODD_EXIF = exif(
    (0x0112, 3, 1, struct.pack("<I", 6)),  # orientation
    (0x011A, 10, 1, struct.pack("<ii", -1, 0)),  # a resolution of −1/0
    (0x0111, 2, 2, b"a\0"),  # text where numbers are due
    (0x0132, 2, 20, b"2026:10:14 08:00:00\0"),
    (0x8769, 4, 1, struct.pack("<I", 8)),  # a directory of the camera's own
)


def photo(kind: str, mode: str = "RGB", **how: object) -> bytes:
    """A photo of 48 × 64 pixels."""
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **how)  # type: ignore[arg-type]
    return buffer.getvalue()


def arrays(compressed: bool) -> bytes:
    """An .npz of twenty images with labels."""
    rng, buffer = np.random.default_rng(0), io.BytesIO()
    content = {"x": rng.integers(0, 255, (20, *SHAPE)).astype(np.uint8), "y": np.arange(20) % 2}
    (np.savez_compressed if compressed else np.savez)(buffer, **content)  # type: ignore[arg-type]
    return buffer.getvalue()


def exif_in(kind: str) -> Damage:
    """A photo whose EXIF data are damaged before they are put in: a PNG's checksums fit."""
    return lambda rng: photo(kind, exif=b"Exif\0\0" + damaged(ODD_EXIF[6:], rng))


def arrays_in_npz(rng: np.random.Generator) -> bytes:
    """An .npz whose arrays are damaged before they are put in: its checksums fit."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(arrays(compressed=False))) as whole, zipfile.ZipFile(buffer, "w") as made:
        for name in whole.namelist():
            made.writestr(name, damaged(whole.read(name), rng))
    return buffer.getvalue()


def table(stamp: str = "2026-10-{}T{:02}:00:00", separator: str = ",", point: str = ".", above: str = "") -> bytes:
    """Two days, an hour a row."""
    hours = [(stamp.format(14 + h // 24, h % 24), f"{60 + h % 7}{point}5", f"{15 + h % 5}{point}1") for h in range(48)]
    rows = [separator.join(cells) for cells in [("time", "level", "temp"), *hours]]
    return "\n".join([above, *rows, ""]).lstrip().encode()


def parquet(**how: object) -> bytes:
    """The same by pyarrow."""
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet as arrow_parquet

    buffer = io.BytesIO()
    found = arrow_csv.read_csv(pyarrow.py_buffer(table()))
    arrow_parquet.write_table(found, buffer, row_group_size=20, **how)
    return buffer.getvalue()


KINDS: dict[str, tuple[str, bytes | Damage]] = {
    "JPEG": (".jpg", photo("JPEG", exif=ODD_EXIF)),
    "progressive JPEG": (".jpg", photo("JPEG", exif=ODD_EXIF, progressive=True)),
    "PNG": (".png", photo("PNG", "RGBA", exif=ODD_EXIF)),
    "WebP": (".webp", photo("WEBP", exif=ODD_EXIF)),
    "GIF": (".gif", photo("GIF", "P")),
    "TIFF": (".tif", photo("TIFF")),
    "BMP": (".bmp", photo("BMP")),
    "EXIF of a JPEG": (".jpg", exif_in("JPEG")),
    "EXIF of a PNG": (".png", exif_in("PNG")),
    "EXIF of a WebP": (".webp", exif_in("WEBP")),
    "npz": (".npz", arrays(compressed=False)),
    "compressed npz": (".npz", arrays(compressed=True)),
    "arrays of an npz": (".npz", arrays_in_npz),
    "CSV": (".csv", table()),
    "CSV of a spreadsheet": (
        ".csv",
        table("{}.10.2026 {:02}:00", ";", ",", 'Gerät 1;"A"\nsep=;').decode().encode("utf-16"),
    ),
    "packed CSV": (".csv.gz", gzip.compress(table("10/{}/2026 {:02}:00"))),
    "CSV before it is packed": (
        ".csv.xz",
        lambda rng: lzma.compress(damaged(table("{}-Oct-2026 {:02}:00", "\t"), rng)),
    ),
}
if find_spec("pyarrow"):
    KINDS |= {
        "Parquet": (".parquet", parquet(compression="snappy")),
        "plain Parquet": (".parquet", parquet(compression="none", use_dictionary=False)),
    }


def read(file: Path) -> object:
    """What a device makes of a file."""
    if file.suffix == ".npz":
        return read_npz(file, SHAPE, CLASSES, TABLE, by_time=False)
    return load_table(file, SETTINGS) if table_files(file) else read_photo(file, SHAPE)


def damaged(whole: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with one to six faults."""
    content = bytearray(whole)
    for _ in range(rng.integers(1, 7)):
        place = int(rng.integers(min(HEAD, len(content)) if rng.random() < 0.5 else len(content)))
        length = int(rng.integers(1, 9))
        match rng.integers(5):
            case 0 | 1:
                content[place] = int(rng.integers(256))
            case 2:
                content[place : place + length] = bytes(length)
            case 3:
                content[place:place] = rng.bytes(length)
            case _:
                del content[place : place + (length if rng.random() < 0.8 else len(content))]
        if not content:
            break
    return bytes(content)


def main() -> None:
    """Print a line for each kind of file, and each fault once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="only those whose name has this, e.g. CSV")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    faults: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, (suffix, whole)) in enumerate(KINDS.items()):
            if arguments.kinds not in kind:
                continue
            rng, file = np.random.default_rng((arguments.seed, number)), Path(folder, f"damaged{suffix}")
            ends: Counter[str] = Counter()
            slowest, began = 0.0, time.monotonic()
            for _ in range(arguments.inputs):
                file.write_bytes(damaged(whole, rng) if isinstance(whole, bytes) else whole(rng))
                clock = time.monotonic()
                try:
                    read(file)
                    ends["read"] += 1
                except BouquetError as error:
                    ends["named" if str(file) in str(error) else "without a name"] += 1
                    if str(file) not in str(error):
                        faults.setdefault(f"{kind}, without its name", str(error))
                except BaseException as error:
                    ends["FAULTS"] += 1
                    faults.setdefault(f"{kind}, {type(error).__name__}", str(error))
                slowest = max(slowest, time.monotonic() - clock)
            print(
                f"{kind}: {', '.join(f'{what} {count}' for what, count in sorted(ends.items()))}; slowest "
                f"{slowest:.2f} s, all {time.monotonic() - began:.0f} s, {peak_bytes() >> 20} MiB at most",
                flush=True,
            )
    for kind, text in faults.items():
        print(f"{kind}: {text}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
