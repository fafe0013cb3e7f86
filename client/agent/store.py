"""What an agent keeps of its tasks on the disk: contents that come, and replies until the server has them.

A folder below the state folder, for this user alone. What is there when the agent starts is taken up again: the server
sends each task once more that nobody has answered.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import BouquetError
from common.system.files import make_folder
from common.wire.fleet_pb2 import Error, Reply, Run, Task
from common.wire.transfer import Incoming, content_in

TASKS = "tasks"  # in the state folder
NODE_CONFIG = "node-config.json"  # there: what the ClientApp is told
MOST_REPLIES = 4  # that no server has asked for again
LEAST_FREE = 20 * 2**20  # bytes that a task leaves of the disk


class NoRoom(BouquetError):
    """A task is too large for this device's disk."""


@dataclass
class TaskStore:
    """The files of the tasks in ``folder``: ``ID.json`` says what a task is, beside its content and its reply."""

    folder: Path

    def __post_init__(self) -> None:
        make_folder(self.folder, "the folder of this device's tasks")
        self.folder.chmod(0o700)

    def content(self, identifier: str) -> Path:
        """Where the content of a task lies once it is whole."""
        return self.folder / f"{identifier}.content"

    def reply_file(self, identifier: str) -> Path:
        """Where the content of its reply lies."""
        return self.folder / f"{identifier}.reply"

    def error_file(self, identifier: str) -> Path:
        """Where the error lies that is its reply."""
        return self.folder / f"{identifier}.error"

    def run_file(self, run: int) -> Path:
        """Where the settings of a run lie."""
        return self.folder / f"{run}.run"

    def holds(self) -> list[str]:
        """The tasks that are there whole, answered or not."""
        return [file.stem for file in self.folder.glob("*.json") if self.content(file.stem).exists()]

    def keep_run(self, run: Run) -> None:
        """Keep the settings of a run; those of others go."""
        for file in self.folder.glob("*.run"):
            file.unlink(missing_ok=True)
        self.run_file(run.id).write_text(run.settings, encoding="utf-8")

    def keep(self, task: Task, node: int) -> None:
        """Keep what a task is, and its content where that came inside. Raises `NoRoom`."""
        self._check_room(task.content.size)
        about = {"run": task.run, "type": task.type, "group": task.group, "node": node, "seconds": task.seconds}
        with _on_full_disk(task.content.size):
            if task.content.data or not task.content.size:
                self.content(task.id).write_bytes(task.content.data)
            (self.folder / f"{task.id}.json").write_text(json.dumps(about), encoding="utf-8")

    def incoming(self, task: Task) -> Incoming:
        """The content of a task that comes in chunks, with what is there of it already. Raises `NoRoom`."""
        self._check_room(task.content.size)
        with _on_full_disk(task.content.size):
            return Incoming(task.id, task.content, self.content(task.id))

    def fail(self, identifier: str, code: int, reason: str) -> None:
        """Have an error be the reply to a task."""
        with contextlib.suppress(OSError):  # on a full disk the task stays unanswered
            self.error_file(identifier).write_text(json.dumps([code, reason]), encoding="utf-8")

    def reply(self, identifier: str) -> Reply | None:
        """The reply to a task, where there is one."""
        with contextlib.suppress(OSError, ValueError):
            code, reason = json.loads(self.error_file(identifier).read_text(encoding="utf-8"))
            return Reply(id=identifier, error=Error(code=code, reason=reason))
        with contextlib.suppress(OSError):
            return Reply(id=identifier, content=content_in(self.reply_file(identifier)))
        return None

    def drop(self, identifier: str) -> None:
        """Forget a task and its reply."""
        for file in self.folder.glob(f"{identifier}.*"):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Forget tasks that nobody waits for any more, and all replies but the last few."""
        tasks = sorted(self.folder.glob("*.json"), key=lambda file: -file.stat().st_mtime)
        for number, file in enumerate(tasks):
            try:
                seconds = float(json.loads(file.read_text(encoding="utf-8"))["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                seconds = 0.0
            if time.time() > file.stat().st_mtime + seconds or number >= MOST_REPLIES:
                self.drop(file.stem)

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if size > free - LEAST_FREE:
            raise NoRoom(f"The task takes {size} bytes, and {free} are free on this device.")


@contextlib.contextmanager
def _on_full_disk(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoRoom(f"The task of {size} bytes cannot be kept on this device: {error.strerror}.") from None
