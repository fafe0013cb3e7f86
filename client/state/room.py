"""The room that a device gives to what a server has it keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bouquet.common.errors import SAYS_MORE, BouquetError

# Of smaller files no more than a few dozen are ever kept.
_SMALL_BYTES = 1 << 20


def check_room(folder: Path, more: int) -> None:
    """Raise `BouquetError` where a file of ``more`` bytes would have a state folder take more than is left free.

    So a server, whatever models and however many it sends, fills half of the room that there is, never a disk.
    """
    if more <= _SMALL_BYTES:
        return
    taken, free = _bytes_below(folder), shutil.disk_usage(folder).free
    if taken + more > free - more:
        raise BouquetError(
            f"The server asks this device to keep {more >> 20} MB more. Its state folder {folder} has {taken >> 20} MB "
            f"and its disk {free >> 20} MB free: the folder may take no more than it leaves free.",
            public=f"The server asks this device to keep {more >> 20} MB more than its disk has room for. {SAYS_MORE}",
        )


def _bytes_below(folder: Path) -> int:
    taken = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                taken += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:  # another message's process has cleaned
                continue
    return taken
