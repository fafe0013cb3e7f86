"""What an agent keeps of its tasks on the disk: contents that come, and replies until the server has them.

A folder below the state folder, for this user alone. What is there when the agent starts is taken up again: the server
sends each task once more that nobody has answered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import make_folder, write_atomically
from bouquet.common.system.resources import available_bytes
from bouquet.common.wire.content_size import Room
from bouquet.common.wire.fleet_pb2 import Error, Reply, Run, Task
from bouquet.common.wire.transfer import Incoming, content_in

TASKS = "tasks"  # in the state folder
NODE_CONFIG = "node-config.json"  # there: what the ClientApp is told
CODE_REFUSED, CRASHED = 7, 8  # Flower's INVALID_FAB and CLIENT_APP_CRASHED
MOST_REPLIES = 4  # that no server has asked for again
LEAST_FREE = 20 * 2**20  # bytes that a task leaves of the disk
COPIES = 2  # of a content that a task has in memory at least: what came, and its arrays


class NoRoom(BouquetError):
    """A task is too large for this device's disk, or its memory."""


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

    def file(self, name: str | int, kind: str) -> Path:
        """Of a task the SHA-256 of its reply (``sha256``), or the ``error`` that is its reply.

        Of a run its settings (``run``), and what its contents may take, the fields of a `Room` (``room.run``).
        """
        return self.folder / f"{name}.{kind}"

    def room(self, run: int) -> Room | None:
        """What a content may take at most in a run, by the device's own model; None before that is known."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Room(**json.loads(self.file(run, "room.run").read_text(encoding="utf-8")))
        return None

    def holds(self) -> list[str]:
        """The tasks that are there whole, answered or not."""
        return [file.stem for file in self.folder.glob("*.json") if self.content(file.stem).exists()]

    def keep_run(self, run: Run) -> None:
        """Keep the settings of a run; those of others go, and their tasks: nobody asks for these replies any more."""
        kept = self.file(run.id, "room.run") if self._has_settings(run) else None
        for file in self.folder.glob("*.run"):
            if file != kept:
                file.unlink(missing_ok=True)
        for file in self._tasks():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if json.loads(file.read_text(encoding="utf-8"))["run"] != run.id:
                    self.drop(file.stem)
        self.file(run.id, "run").write_text(run.settings, encoding="utf-8")

    def _has_settings(self, run: Run) -> bool:
        with contextlib.suppress(OSError):
            return self.file(run.id, "run").read_text(encoding="utf-8") == run.settings
        return False

    def has_content(self, task: Task) -> bool:
        """Whether the content of a task is there, whole; what is another, as after a power cut, goes."""
        file = self.content(task.id)
        with contextlib.suppress(OSError):
            if content_in(file).sha256 == task.content.sha256:
                return True
            file.unlink()
        return False

    def reply_is_there(self, identifier: str) -> bool:
        """Whether a task is answered."""
        return self.reply_file(identifier).exists() or self.file(identifier, "error").exists()

    def keep(self, task: Task, node: int, promised: int) -> None:
        """Keep what a task is, and its content where that came inside.

        Raises `NoRoom` where it takes too much of the disk, beside the bytes ``promised`` to others, or of memory.
        """
        size = task.content.size
        self._check_room(size, promised)
        about = {"run": task.run, "type": task.type, "group": task.group, "node": node, "seconds": task.seconds}
        with _on_full_disk(size):
            if len(task.content.data) == size:
                self.content(task.id).write_bytes(task.content.data)
            (self.folder / f"{task.id}.json").write_text(json.dumps(about), encoding="utf-8")

    def incoming(self, task: Task) -> Incoming:
        """The content of a task that comes in chunks, with what is there of it already. Raises `NoRoom`."""
        with _on_full_disk(task.content.size):
            return Incoming(task.id, task.content, self.content(task.id))

    def fail(self, identifier: str, code: int, reason: str) -> Reply:
        """Have an error be the reply to a task."""
        with contextlib.suppress(BouquetError):  # on a full disk it is said once
            write_atomically(self.file(identifier, "error"), json.dumps([code, reason]).encode(), 0o600)
        return Reply(id=identifier, error=Error(code=code, reason=reason))

    def succeed(self, identifier: str, content: bytes) -> None:
        """Have a content be the reply to a task. Raises `BouquetError` where it cannot be written."""
        with contextlib.suppress(OSError):  # without it the reply does not count
            self.file(identifier, "sha256").write_bytes(hashlib.sha256(content).digest())
        write_atomically(self.reply_file(identifier), content, 0o600)

    def reply(self, identifier: str) -> Reply | None:
        """The reply to a task, where there is one; what the disk has damaged goes, so that the task is done again."""
        with contextlib.suppress(OSError, ValueError):
            code, reason = json.loads(self.file(identifier, "error").read_text(encoding="utf-8"))
            return Reply(id=identifier, error=Error(code=code, reason=reason))
        with contextlib.suppress(OSError):
            content = content_in(self.reply_file(identifier))
            if content.sha256 == self.file(identifier, "sha256").read_bytes():
                return Reply(id=identifier, content=content)
            self.reply_file(identifier).unlink()
        return None

    def begin(self, identifier: str, round_: int) -> None:
        """Note that a task trains in this round: replies to later rounds go, for the device goes back to before them.

        Else a server that repeats several rounds had an old reply to the next one, and the device nothing of it.
        """
        with contextlib.suppress(OSError):  # on a full disk there will be no reply either
            (self.folder / f"{identifier}.round").write_text(str(round_), encoding="utf-8")
        for file in self.folder.glob("*.round"):
            with contextlib.suppress(OSError, ValueError):  # dropped meanwhile, or cut off
                if int(file.read_text(encoding="utf-8")) > round_:
                    self.reply_file(file.stem).unlink(missing_ok=True)
                    self.file(file.stem, "error").unlink(missing_ok=True)

    def drop(self, identifier: str) -> None:
        """Forget a task and its reply."""
        for file in self.folder.glob(f"{identifier}.*"):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def sweep(self, known: Collection[str] = ()) -> None:
        """Forget tasks that nobody waits for any more, and all but the last few; the ``known`` ones stay."""
        kept = set(known)
        tasks = [file for file in self._tasks() if file.stem not in known]
        for number, file in enumerate(sorted(tasks, key=lambda file: -file.stat().st_mtime)):
            try:
                seconds = float(json.loads(file.read_text(encoding="utf-8"))["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                seconds = 0.0
            if time.time() <= file.stat().st_mtime + seconds and number < MOST_REPLIES:
                kept.add(file.stem)
        for file in list(self.folder.iterdir()):
            of = file.name.lstrip(".").partition(".")[0]
            if of not in kept and file.name != NODE_CONFIG and file.suffix != ".run":
                file.unlink(missing_ok=True)

    def _tasks(self) -> list[Path]:
        """The files that say what each task is."""
        return [file for file in self.folder.glob("*.json") if file.name != NODE_CONFIG]

    def _check_room(self, size: int, promised: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if size > free - promised - LEAST_FREE:
            raise NoRoom(
                f"The task takes {size} bytes, and {free} are free on this device, of which {LEAST_FREE} stay so."
            )
        memory = available_bytes(swap=True) if size > LEAST_FREE else None
        if memory is not None and COPIES * size > memory:
            raise NoRoom(f"The task takes {COPIES} times {size} bytes of memory, and {memory} are free on this device.")


@contextlib.contextmanager
def _on_full_disk(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoRoom(f"The task of {size} bytes cannot be kept on this device: {error.strerror}.") from None
