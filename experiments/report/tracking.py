"""A run's record for trackers of experiments: TensorBoard's event files, written as the rounds are recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.server.record.reader import is_number
from bouquet.server.record.writer import RunRecord
from bouquet.server.run_folder import SUMMARY

FOLDER = "tensorboard"


class TensorBoard:
    """Every number of a round's line at its round, and of the summary after the last one, in ``RUN/tensorboard``.

    What was written before is replaced by what the record holds, so that a run that goes on has each round once.
    Raises `BouquetError` without TensorBoard.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BouquetError("--track tensorboard needs TensorBoard: pip install 'bouquet-fl[research]'.") from None
        self._writer = SummaryWriter
        self.folder = folder
        self.events: Any = None

    def __enter__(self) -> TensorBoard:
        return self

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Write a round's line; with the first one also those before it."""
        if self.events is None:
            self._begin()
            for earlier in RunRecord(self.folder).rounds():
                if earlier["round"] < line["round"]:
                    self._write(earlier, earlier["round"])
        self._write(line, line["round"])
        self.events.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the summary, where the run came to one."""
        if self.events is None:
            return
        if kind is None:
            summary = json.loads((self.folder / SUMMARY).read_text(encoding="utf-8"))
            self._write(summary, summary["rounds"], "summary/")
        self.events.close()

    def _begin(self) -> None:
        target = self.folder / FOLDER
        for old in target.glob("events.out.tfevents.*"):
            old.unlink()
        self.events = self._writer(str(target))

    def _write(self, numbers: Mapping[str, Any], round_: int, prefix: str = "") -> None:
        for key, value in numbers.items():
            if is_number(value) and key not in ("round", "rounds", "seed"):
                self.events.add_scalar(prefix + key, value, round_)
