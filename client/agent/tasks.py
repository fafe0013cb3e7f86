"""What the server gives a device to do: tasks as they come, their work, and their replies until the server has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bouquet.client.agent.run_code import RunCode
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.store import CODE_REFUSED, CRASHED, NODE_CONFIG, TASKS, NoRoom, TaskStore
from bouquet.client.agent.worker import Worker
from bouquet.client.node_config import WHEN
from bouquet.common.system.files import write_atomically
from bouquet.common.texts import plain
from bouquet.common.torchvision_compat import wants_torchvision
from bouquet.common.wire.content_size import UnreadableContent
from bouquet.common.wire.fleet_pb2 import Reply, Run, Task
from bouquet.common.wire.transfer import INLINE_BYTES, Incoming, Outbox, Outgoing, WireError, is_whole

WORK = ("train", "evaluate")  # types of tasks, and what their names begin with
MOST_TASKS = 16  # that a server has this device keep
IDENTIFIER = re.compile(r"[0-9a-f]{32}")
LONGEST_REASON = 1000
LONGEST_SECONDS = 365 * 24 * 3600.0


class Tasks:
    """All tasks of one device. ``say`` is given each line for its owner, ``tell`` those that are the server's doing.

    ``outbox`` is that of the connection, None without one; ``came_further`` whether it has brought anything forward.
    """

    def __init__(self, settings: DeviceSettings, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self.say, self.tell = say, tell
        self.store = TaskStore(settings.state_dir / TASKS)
        self.store.sweep()
        told = json.dumps({**settings.node_config, **settings.trust.node_config})
        write_atomically(self.store.folder / NODE_CONFIG, told.encode(), 0o600)
        self._most_seconds = 3600 * settings.most_hours
        self.worker = Worker(self.store.folder, say, settings.cold, settings.trainer)
        self.code = RunCode(settings, tell)
        self.outbox: Outbox | None = None
        self.node = 0
        self.came_further = False
        self._credited = ("", 0)  # the last reply that the server has asked for, and up to which byte
        self._watch: Any = None
        if when := settings.node_config.get(WHEN):
            from bouquet.client.owner.watch import Watch  # pydantic, which is for nothing else here

            self._watch = Watch(Path(str(when)), settings.state_dir)
        self._said_rest = ""
        self._run: Run | None = None
        self._config: dict[str, object] = {}  # its settings
        self._tasks: dict[str, Task] = {}  # to be done, in order, those in hand and answered too
        self._ready: dict[str, None] = {}  # those of them whose turn comes
        self._news = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # until nobody waits for a task any more
        self._in_hand: tuple[str, asyncio.Future[str]] | None = None
        self._coming: dict[str, Incoming] = {}
        self._unmeasured: set[str] = set()  # tasks whose contents are not asked for yet

    def connected(self, node: int) -> None:
        """There is a connection: what is answered the server asks for again, or has no use for any more."""
        self.node, self._run = node, None
        for identifier in [one for one in self._tasks if self.store.reply_is_there(one)]:
            del self._tasks[identifier]
        self.store.sweep(self._tasks)

    def disconnected(self) -> None:
        """There is none: transfers end, and what has come of them stays."""
        self.outbox = None
        for incoming in self._coming.values():
            incoming.close()
        for identifier in (*self._coming, *self._unmeasured):
            self._tasks.pop(identifier, None)  # the server sends its head again
        self._coming.clear()
        self._unmeasured.clear()

    def give_up(self) -> None:
        """Whoever gave the tasks is lost for too long."""
        if self._in_hand is not None:
            self.say("The work in hand ends: the server is lost for too long.")
        for identifier in [*self._tasks]:
            self._cancel(identifier)

    def put(self, **what: Any) -> None:
        """Send a frame, where there is a connection."""
        if self.outbox is not None:
            self.outbox.put(**what)

    # --- what the server says ----------------------------------------------------------------------------------

    def on_run(self, run: Run) -> None:
        """The tasks that follow are this run's; others are over."""
        try:
            config = json.loads(run.settings)
            if not isinstance(config, dict) or not re.fullmatch(r"[0-9a-f]{64}", run.code):
                raise ValueError
        except (ValueError, RecursionError):
            raise WireError("a run that cannot be read") from None
        for task in [one for one in self._tasks.values() if one.run != run.id]:
            self._cancel(task.id)
        for code in [one for one in self._coming if one not in self._tasks]:
            self._coming.pop(code).close()
        self._run, self._config = run, config
        self.store.keep_run(run)
        if (incoming := self.code.decide(run, config)) is not None:
            self._receive(incoming)

    def on_task(self, task: Task) -> None:
        """Answer it at once, where that can be, or take it."""
        if self._run is None or task.run != self._run.id or not IDENTIFIER.fullmatch(task.id):
            raise WireError("a task that belongs to no run")
        if (reply := self.store.reply(task.id)) is not None:
            self._tasks[task.id] = task
            self._expire(task)
            self._deliver(task.id, reply)
        elif task.id in self._tasks:
            self._expire(task)  # it comes, waits its turn, or is being done
        elif self.code.refusal:
            self._fail(task.id, CODE_REFUSED, self.code.refusal)
        elif len(self._tasks) >= MOST_TASKS:
            raise WireError("more tasks than one device can have")
        elif (later := self._not_now(task)) is not None:
            self.put(not_now={"id": task.id, "reason": str(later), "seconds": max(0.0, later.seconds)})
        else:
            self._take(task)

    def on_chunk(self, chunk: Any) -> None:
        """A part of a task's content, or of the run's code."""
        if chunk.id in self._unmeasured:
            raise WireError("a chunk that nobody gave credit for")
        if (incoming := self._coming.get(chunk.id)) is None:
            return
        try:
            more = incoming.add(chunk)
        except OSError as error:
            self.tell(f"What the server sends cannot be kept: {error.strerror}.")
            self._cancel(chunk.id)
            if self._run is not None and chunk.id == self._run.code:
                self.code.refuse("This device's disk is full.")
            else:
                self._fail(chunk.id, CRASHED, "The device's disk is full.")
            return
        self.came_further = True
        if more is not None:
            self.put(credit=more)
        if incoming.is_complete:
            self._finish(incoming)

    def on_credit(self, credit: Any) -> None:
        """The server asks for a part of a reply."""
        if self.outbox is not None:
            self.outbox.credit(credit)
        if credit.id != self._credited[0] or credit.end > self._credited[1]:
            self.came_further, self._credited = True, (credit.id, credit.end)

    def on_received(self, received: Any) -> None:
        """The server has the reply."""
        if received.id in self._tasks:
            self._cancel(received.id)

    on_cancel = on_received  # it wants none

    # --- a task comes ------------------------------------------------------------------------------------------

    def _not_now(self, task: Task) -> Any:
        """Whether the owner lets no work begin; said where it is another reason than the last."""
        if self._watch is None or task.type.partition(".")[0] not in WORK:
            return None
        later = self._watch.refusal()
        if later is not None and str(later) != self._said_rest:
            self.say(f"The owner's conditions: {later}. Rounds go on without this device until then.")
        self._said_rest = "" if later is None else str(later)
        return later

    def _take(self, task: Task) -> None:
        is_here = self.store.has_content(task) or is_whole(task.content)
        is_measured = task.content.size <= INLINE_BYTES or self.store.room(task.run) is not None
        try:
            self.store.keep(task, self.node, sum(one.size - one.at for one in self._coming.values()))
        except NoRoom as error:
            self._refuse(task, str(error))
            return
        task.content.ClearField("data")
        self._tasks[task.id] = task
        self._expire(task)
        if is_here and is_measured:
            self._begin(task.id)
        elif is_measured:
            self._ask_for(task)
        else:  # a process that can build the model says first how much it may be
            self._unmeasured.add(task.id)
            self._begin(task.id)

    def _ask_for(self, task: Task, why: str = "") -> None:
        """Have a task's content sent, where it is no larger than one can be; ``why`` that is not known."""
        room = self.store.room(task.run)
        try:
            if room is None:
                raise NoRoom(f"The content is not asked for: what the model takes is not known. {why}")
            room.check_bytes(task.content.size)
            self._receive(self.store.incoming(task))
        except (NoRoom, UnreadableContent) as error:
            self._refuse(task, plain(str(error)))

    def _refuse(self, task: Task, why: str) -> None:
        self._cancel(task.id)
        self._fail(task.id, CRASHED, why)
        self.tell(why)

    def _receive(self, incoming: Incoming) -> None:
        """Have a content sent, from where it was broken off."""
        self._coming[incoming.id] = incoming
        self.put(credit=incoming.begin())
        if incoming.is_complete:
            self._finish(incoming)

    def _finish(self, incoming: Incoming) -> None:
        is_code = self._run is not None and incoming.id == self._run.code
        try:
            file = incoming.finish()
        except WireError as error:
            if not incoming.is_damaged:
                incoming.is_damaged = True
                self.put(credit=incoming.begin())
                return
            self._coming.pop(incoming.id).drop()
            why = f"What the server sends is twice {error}."
            if is_code:
                self.code.refuse(why)
            else:
                self._refuse(self._tasks[incoming.id], why)
            return
        del self._coming[incoming.id]
        if is_code:
            self.code.take(file, incoming.id)
        else:
            self._begin(incoming.id)

    def _begin(self, identifier: str) -> None:
        """All of a task is here: it is done when its turn comes."""
        self._ready[identifier] = None
        self._news.set()

    def _expire(self, task: Task) -> None:
        """Forget a task when nobody waits for it any more, as the server said last."""
        if (timer := self._timers.pop(task.id, None)) is not None:
            timer.cancel()
        loop, seconds = asyncio.get_running_loop(), min(task.seconds, LONGEST_SECONDS)
        self._timers[task.id] = loop.call_later(max(1.0, seconds), self._cancel, task.id)

    def _cancel(self, identifier: str) -> None:
        """Forget a task, and end the work on it."""
        self._tasks.pop(identifier, None)
        self._ready.pop(identifier, None)
        self._unmeasured.discard(identifier)
        if (timer := self._timers.pop(identifier, None)) is not None:
            timer.cancel()
        if (incoming := self._coming.pop(identifier, None)) is not None:
            incoming.drop()
        if self.outbox is not None:
            self.outbox.withdraw(identifier)
        if self._in_hand is not None and self._in_hand[0] == identifier:
            self._in_hand[1].cancel()
        self.store.drop(identifier)

    # --- work --------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """One task after another, whatever becomes of the connection, and of each of them."""
        while True:
            while not self._ready:
                self._news.clear()
                await self._news.wait()
            await self.code.is_known.wait()
            if (identifier := next(iter(self._ready), None)) is None:
                continue  # cancelled
            del self._ready[identifier]
            if (task := self._tasks.get(identifier)) is None:
                continue  # it was answered, and the server is to ask again
            refusal = self.code.refusal
            why = refusal or await self._do(task)
            if identifier in self._unmeasured and not refusal:
                self._unmeasured.discard(identifier)
                self._ask_for(task, why)
                continue
            reply = await asyncio.to_thread(self.store.reply, identifier)
            if self._tasks.get(identifier) is not task:
                continue  # cancelled meanwhile, or the server has asked again
            if reply is None:
                reason = (why or "The process that worked on it left no answer.")[:LONGEST_REASON]
                reply = self.store.fail(identifier, CODE_REFUSED if refusal else CRASHED, reason)
                if not refusal:
                    self.say(f"A task was not answered: {reason}")
            self._deliver(identifier, reply)

    async def _do(self, task: Task) -> str:
        """Why a task was not done; empty where it was, or was cancelled."""
        doing = asyncio.ensure_future(self.worker.do(task.id, self.code.folder, wants_torchvision(self._config)))
        self._in_hand = task.id, doing
        try:
            _, late = await asyncio.wait({doing}, timeout=self._most_seconds)
        finally:
            doing.cancel()  # where it takes too long, or the agent itself ends
            self._in_hand = None
        if late:
            return "It took longer than this device's owner lets one task take (--most-hours)."
        if doing.cancelled():
            return ""
        if (error := doing.exception()) is None:
            why = doing.result()
        elif isinstance(error, OSError):
            why = f"could not be started ({error.strerror})"
        else:
            why = f"was lost ({type(error).__name__}: {plain(str(error))})"
        return f"The process that worked on it {why}." if why else ""

    def _fail(self, identifier: str, code: int, reason: str) -> None:
        self.put(reply={"id": identifier, "error": {"code": code, "reason": reason}})

    def _deliver(self, identifier: str, reply: Reply) -> None:
        """Send a reply; large ones as the server gives credit."""
        if self.outbox is None:
            return  # the server asks again when it is back
        if reply.HasField("content") and reply.content.size and not reply.content.data:
            file = self.store.reply_file(identifier)
            self.outbox.offer(Outgoing(identifier, file, reply.content.size))
        with contextlib.suppress(WireError):  # it does not read, and will lose this connection
            self.put(reply=reply)
