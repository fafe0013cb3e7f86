"""Whose files a device keeps: those of the run that it works for, and of one run more.

A server names runs as it likes, a new one in each message if it wants to. The one that stays beside the present one is
therefore not the last one, but the one that the device has taken part in for the longest time, by the device's clock:
to push out a model that was trained for a month, a server has to go on with another run for a month.
"""

from __future__ import annotations

import hashlib
import json
import re
import time

from bouquet.client.state.store import Store

_INDEX = "runs.json"  # folder → when the device began with the run, and when it last kept something; the latest last
_FOLDER = re.compile(r"run-[0-9a-f]{16}")
_OTHERS = 1  # runs that stay beside the present one
_NOTED_SECONDS = 60.0  # a run that goes on is not written down at each message


def folder_of(run: str) -> str:
    """The name of a run's folder: that of the run itself is the server's, of any length and characters."""
    return f"run-{hashlib.sha256(run.encode()).hexdigest()[:16]}"


class KeptRuns:
    """The runs in a state folder, each a `Store` below it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def of(self, run: str) -> Store:
        """What is kept of a run, to be read."""
        return self.store.below(folder_of(run))

    def latest_first(self) -> list[Store]:
        """All that are kept, the one that was last written to first."""
        return [self.store.below(name) for name in reversed(self._known())]

    def begin(self, run: str) -> Store:
        """What is kept of a run, to be written to; what a new one takes the place of goes."""
        name, now, index = folder_of(run), time.time(), self._known()
        is_latest = [*index][-1:] == [name]
        since, last = index.pop(name, (now, 0.0))
        if not is_latest or not 0 <= now - last < _NOTED_SECONDS:
            longest_first = sorted(index, key=lambda other: index[other][0] - index[other][1])  # of equals the older
            for other in longest_first[_OTHERS:]:
                del index[other]
                self.store.remove_below(other)
            self.store.write(_INDEX, json.dumps({**index, name: (min(since, now), now)}).encode())
        return self.store.below(name)

    def _known(self) -> dict[str, tuple[float, float]]:
        """When each run began and was last written to, the latest last; those of a lost index first, without a time."""
        folders = [name for name in self.store.names_below() if _FOLDER.fullmatch(name)]
        try:
            noted = {str(k): (float(since), float(last)) for k, (since, last) in json.loads(self._index()).items()}
        except (ValueError, TypeError, AttributeError):
            noted = {}
        there = {name: noted[name] for name in noted if name in folders}
        return {**{name: (0.0, 0.0) for name in folders if name not in there}, **there}

    def _index(self) -> bytes:
        return self.store.read(_INDEX) or b"{}"
