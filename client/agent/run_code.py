"""The code of the run that is on: installed here, fetched from the server where the owner trusts it, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.trust.policy import LARGEST_CODE_BYTES, CodeRefused, unpack, unpacked
from bouquet.common.texts import plain
from bouquet.common.trust.code import own_code
from bouquet.common.wire.fleet_pb2 import Run
from bouquet.common.wire.transfer import Incoming

UNPACKED = "unpacked"  # in its folder of code: that of other releases


class RunCode:
    """What is known of it; ``tell`` is given each line for the owner.

    Once ``is_known`` is set, it is run from ``folder`` (None: as installed here), unless there is a ``refusal``.
    """

    def __init__(self, settings: DeviceSettings, tell: Callable[[str], None]) -> None:
        self.settings, self.tell = settings, tell
        self.apps = settings.state_dir / "code"
        self.folder: Path | None = None
        self.refusal = ""
        self.is_known = asyncio.Event()
        self._refused_before = ""

    def decide(self, run: Run, config: Mapping[str, object]) -> Incoming | None:
        """Decide on the code of a run and of its settings; what is to come of it, where it has to be fetched."""
        self._refused_before, self.refusal, self.folder = self.refusal, "", None
        self.is_known.clear()
        try:
            news = self.settings.trust.check_code(run.code, run.signature, plain(run.release, 60))
            self.settings.trust.check_config(config)
        except CodeRefused as error:
            self.refuse(str(error))
            return None
        if news:
            self.tell(news)
        if run.code == own_code() or (found := unpacked(run.code, self.apps / UNPACKED)) is not None:
            self.folder = None if run.code == own_code() else found
            self.is_known.set()
            return None
        if not 0 < run.bundle.size <= LARGEST_CODE_BYTES or len(run.bundle.sha256) != 32:
            self.refuse(f"Its archive cannot have {run.bundle.size} bytes.")
            return None
        self.apps.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.apps / f"{run.code[:16]}.zip"
        for rest in self.apps.glob("*.zip*"):
            if not rest.name.startswith(file.name):
                rest.unlink(missing_ok=True)
        return Incoming(run.code, run.bundle, file)

    def take(self, archive: Path, code: str) -> None:
        """Unpack what has come."""
        try:
            self.folder = unpack(archive.read_bytes(), code, self.apps / UNPACKED)
        except (CodeRefused, OSError) as error:
            self.refuse(str(error))
        finally:
            archive.unlink(missing_ok=True)
        self.is_known.set()

    def refuse(self, reason: str) -> None:
        """Run nothing of it; said where it is another reason than the last."""
        if reason != self._refused_before:
            self.tell(f"Refused to run the server's code. {reason}")
        self.refusal = reason
        self.is_known.set()
