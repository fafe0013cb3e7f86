"""What keeps a SuperNode, which waits for months, small."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

IN_HAND_SECONDS = 3600  # half of what a message may be without a word of its process
SQL_STORE = "flwr.supercore.object_store.sql_object_store"


class NoDatabase:
    """Stands for Flower's store in a database, which a SuperNode cannot be told to use."""

    def __init__(self, *_: Any) -> None:
        raise RuntimeError("This SuperNode keeps its objects in memory.")


def without_database() -> None:
    """Spare this process Flower's module for a database: with SQLAlchemy and Alembic, 25 MB and a second of start."""
    if SQL_STORE not in sys.modules:
        module = ModuleType(SQL_STORE, NoDatabase.__doc__)
        module.SqlObjectStore = NoDatabase  # type: ignore[attr-defined]
        sys.modules[SQL_STORE] = module


def keep_what_is_in_hand() -> None:
    """Have no message lapse because its process was not heard of for a minute, as on a device that stood still.

    The executor says when one ends.
    """
    from flwr.supercore.corestate import in_memory_corestate

    in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL = IN_HAND_SECONDS


def settle() -> None:
    """Call it before a fork, when what will be shared is imported.

    No collection looks at these objects again, so that their pages stay shared. What importing has touched of the
    libraries' code, some 60 MB for PyTorch, is left to the page cache: a page comes back when it is run.
    """
    gc.collect()
    gc.freeze()
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_, file = line.split(maxsplit=5)
        # Code alone: other private mappings may hold what the loader has written into them.
        if permissions == "r-xp" and file.startswith("/"):
            low, high = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)
