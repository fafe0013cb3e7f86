"""What SuperLink's database says of each node: which key it has, and when it was last heard of."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from common.errors import BouquetError

HEARTBEATS_MISSED = 2  # Flower's HEARTBEAT_PATIENCE: a node counts as connected for so many intervals
UNREGISTERED, ONLINE = "unregistered", "online"


@dataclass(frozen=True)
class Connection:
    """What SuperLink knows of a node. Times are seconds since 1970; ``seen`` is when it was last heard of."""

    node_id: int
    key: bytes
    status: str
    since: float | None
    seen: float | None
    patience: float = 60.0  # seconds without a word after which it no longer counts as connected

    @property
    def registered(self) -> bool:
        """Whether its key may take part."""
        return self.status != UNREGISTERED

    def online(self, now: float) -> bool:
        """Whether it counts as connected: not gone, and heard of within two heartbeats."""
        return self.status == ONLINE and self.seen is not None and now - self.seen <= self.patience


def connections(database: Path) -> dict[int, Connection]:
    """Every node that SuperLink has ever known, by id. Raises `BouquetError` where its database cannot be read."""
    if not database.exists():
        raise BouquetError(f"SuperLink's database {database} is not there.")
    columns = "node_id, public_key, status, last_activated_at, last_deactivated_at, online_until, heartbeat_interval"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30.0)) as opened:
            rows = opened.execute(f"SELECT {columns} FROM node").fetchall()
    except sqlite3.Error as error:
        raise BouquetError(f"SuperLink's database {database} cannot be read ({error}).") from None
    found = {}
    for node_id, key, status, activated, deactivated, until, interval in rows:
        patience = HEARTBEATS_MISSED * (interval or 30.0)
        seen = None if until is None else until - patience
        if status != ONLINE and deactivated:
            seen = _seconds(deactivated)
        since = _seconds(activated)
        if since is not None:
            seen = since if seen is None else max(seen, since)
        # SQLite's integers are signed, Flower's node ids are not.
        node = node_id % 2**64
        found[node] = Connection(node, bytes(key or b""), status, since, seen, patience)
    return found


def _seconds(iso: str | None) -> float | None:
    if not iso:
        return None
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return None
