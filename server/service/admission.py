"""Who may take part: a folder of certificates, looked at throughout, so that no restart is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.trust.certificates import fingerprint, read

LOOK_SECONDS = 1.0
LISTING_SECONDS = 10.0  # of thousands of files a listing takes a while: so often where the folder is as it was


@dataclass
class Admission:
    """The devices whose certificates lie in ``registered``, as ``NAME.crt``.

    ``report`` is told, in a line each, of every device that comes or goes and of every file that cannot be read.
    """

    registered: Path
    report: Callable[[str], None]
    names: dict[str, str] = field(default_factory=dict)  # by fingerprint
    newest: dict[str, bytes] = field(default_factory=dict)  # certificate in PEM, by name
    _state: list[tuple[str, int, int]] | None = None
    _changed: float | None = None  # when the folder was, by its own time, at the last listing
    _listed_at: float = 0.0
    _said: set[str] = field(default_factory=set)

    def look(self) -> bool:
        """Read the folder where it has changed; whether anything has. What is overwritten is seen a little later.

        A file that cannot be read may be half copied: until it is mended or gone, nobody is shut out.
        """
        try:
            changed, now = self.registered.stat().st_mtime, time.time()
            if changed == self._changed and now - self._listed_at < LISTING_SECONDS:
                return False
            self._changed, self._listed_at = changed if now - changed > LOOK_SECONDS else None, now
            listed = self._listed()
        except OSError as error:
            self._once(f"The folder {self.registered} of the devices' certificates cannot be read: {error.strerror}.")
            return False
        if listed == self._state:
            return False
        names: dict[str, str] = {}
        newest: dict[str, bytes] = {}
        complete = True
        for name, *_ in listed:
            file = self.registered / name
            try:
                certificates = read(file)
            except BouquetError as error:
                complete, self._changed = False, None
                self._once(f"{error} Until it is mended or gone, no device is shut out.")
                continue
            newest[file.stem] = certificates[0]
            names |= dict.fromkeys(map(fingerprint, certificates), file.stem)
        before, self._state = {*self.names.values()}, listed
        self.names = names if complete else self.names | names
        self.newest = newest if complete else self.newest | newest
        for name in sorted({*self.names.values()} - before):
            self.report(f"registered {name}")
        for name in sorted(before - {*self.names.values()}):
            self.report(f"removed {name}: it is shut out")
        return True

    def _listed(self) -> list[tuple[str, int, int]]:
        found = []
        with os.scandir(self.registered) as listed:  # every second, of thousands of files
            for file in listed:
                if not file.name.endswith(".crt"):
                    continue
                try:
                    about = file.stat()
                    found.append((file.name, about.st_mtime_ns, about.st_size))
                except FileNotFoundError:
                    continue
                except OSError:  # of this one alone: whoever reads it says what is wrong
                    found.append((file.name, 0, 0))
        return sorted(found)

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.report(line)
