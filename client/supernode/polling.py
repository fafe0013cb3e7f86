"""How long a SuperNode waits: for the next message, and for the answer to the one in hand.

Flower looks for a message every 3 s and for the answer every 0.5 s, whatever goes on: in a short round that is
most of it, and for weeks of nothing too often. Here the server may hold a look until there is a message; where it does
not, the wait for a message grows with the time since the last one. An answer is looked for in a small part of the time
that it has taken so far. It counts once it is whole: Flower sends one as soon as its first part is there, and would
wait for ever for the rest of one whose sender died.

Both are put around the two functions of ``flwr.supernode.start_client_internal`` between which its loop alternates.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from common.errors import BouquetError
from common.system.flower_release import REQUIREMENT

PULL = {"state", "object_store", "receive"}
PUSH = {"state", "object_store", "send", "push_object"}

SHORTEST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0  # as often as a SuperNode says that it is there
SHARE = 0.05  # of the time since the last message: what a device adds to the time between two messages
JITTER = 0.2
FIRST_LOOK_SECONDS = 0.01
LAST_LOOK_SECONDS = 0.5
LOOK_SHARE = 0.02  # of the time that the answer has taken so far


class Executor(Protocol):
    """What SuperNode tells and asks the program that runs its messages."""

    def announce(self, state: Any, run_id: int) -> None:
        """There is a message of this run to be worked on."""

    def failure(self, seconds: float) -> Failure | None:
        """Wait so long for news; what has failed, if something has."""

    def drop(self, task: int) -> None:
        """Nobody wants the answer to this task any more: what works on it is to end."""


@dataclass(frozen=True)
class Failure:
    """A message's process ended without an answer, or, where ``task`` is None, the whole executor did."""

    reason: str
    task: int | None = None


@dataclass
class Patience:
    """How long to wait before the next look for a message: a share of the time since the last, with jitter."""

    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[float, float], float] = random.uniform
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.clock()

    def rest(self, looked: float | None = None) -> float:
        """Seconds until the next look; ``looked`` is when the last one began, which the server may have held."""
        now = self.clock()
        wait = min(max(SHORTEST_WAIT_SECONDS, SHARE * (now - self.last)), LONGEST_WAIT_SECONDS)
        held = 0.0 if looked is None else now - looked
        return max(0.0, wait * self.jitter(1 - JITTER, 1 + JITTER) - held)

    def note_message(self) -> None:
        """A message was worked on: the next one may come soon."""
        self.last = self.clock()


def wait_well(
    supernode: Any, executor: Executor, patience: Patience | None = None, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Put the waits into ``flwr.supernode.start_client_internal``.

    Raises `BouquetError` where that is not as in the Flower that Bouquet is tested with.
    """
    pull, push = getattr(supernode, "_pull_and_store_message", None), getattr(supernode, "_push_messages", None)
    if not (_takes(pull, PULL) and _takes(push, PUSH)):
        raise BouquetError(
            f"This release of Flower waits for messages in a way that was not tested; install {REQUIREMENT}."
        )
    patience = patience or Patience()
    in_hand: list[Any] = []  # a message and, once it is pulled, its task

    def pull_and_store_message(**given: Any) -> int | None:
        def receive() -> Any:
            pulled = given["receive"]()
            if pulled:
                in_hand[:] = pulled[:1]
            return pulled

        while True:
            in_hand.clear()
            looked = patience.clock()
            state = _WithTask(given["state"])
            run_id: int | None = pull(**given | {"receive": receive, "state": state})  # type: ignore[misc]
            if run_id is not None:
                in_hand.append(state.task)
                executor.announce(given["state"], run_id)
                return run_id
            if in_hand:
                _forget(supernode, state, given["object_store"], in_hand[0], executor)
            sleep(patience.rest(looked))

    def push_messages(**given: Any) -> None:
        message, task = in_hand
        replies = _await_replies(supernode, given["state"], given["object_store"], message, task, executor)
        push(**given | {"state": _WithReplies(given["state"], replies)})  # type: ignore[misc]
        patience.note_message()

    supernode._pull_and_store_message, supernode._push_messages = pull_and_store_message, push_messages


class _WithTask:
    """A NodeState that remembers which task Flower made for the message it pulls."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.task: int | None = None

    def create_task(self, **given: Any) -> int | None:
        """As the state does."""
        self.task = self._state.create_task(**given)
        return self.task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def _forget(supernode: Any, state: _WithTask, store: Any, message: Any, executor: Executor) -> None:
    """Clear away a message that was lost while it was pulled, as when the server ends just then.

    Flower leaves it half there when its run has ended: whoever has taken it would wait for its parts for hours, and a
    message that shares parts with it would never get them.
    """
    state.delete_messages(message_ids=[message.metadata.message_id])
    store.delete(message.metadata.message_id)
    if state.task is not None:
        state.finish_task(state.task, supernode.SubStatus.FAILED, "The message was lost on its way.")
        executor.drop(state.task)


class _WithReplies:
    """A NodeState whose replies were taken out already; Flower's push takes these."""

    def __init__(self, state: Any, replies: Sequence[Any]) -> None:
        self._state = state
        self._replies = replies

    def get_messages_legacy(self, **_: Any) -> Sequence[Any]:
        """The replies."""
        return self._replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def _await_replies(
    supernode: Any, state: Any, store: Any, message: Any, task: int | None, executor: Executor
) -> list[Any]:
    """The whole reply to ``message``, or an error in its place once nothing works on it any more."""
    started = time.monotonic()
    replies: list[Any] = []
    while True:
        replies += _taken_out(state, store, message)
        if replies and all(_whole(store, reply) for reply in replies):
            return replies
        spent = time.monotonic() - started
        failure = executor.failure(min(max(FIRST_LOOK_SECONDS, LOOK_SHARE * spent), LAST_LOOK_SECONDS))
        if failure is None:
            continue
        # What it sent before it died may have come in the meantime.
        replies += _taken_out(state, store, message)
        if replies and all(_whole(store, reply) for reply in replies):
            return replies
        if _given_up(supernode, state, task, failure):
            _answer_with_error(supernode, state, store, message, replies, failure.reason)
            replies = []
        elif failure.task in (None, task):
            executor.announce(state, message.metadata.run_id)


def _taken_out(state: Any, store: Any, message: Any) -> list[Any]:
    """The replies to ``message`` that have come; others are cleared away.

    A message that was lost on its way may have been answered before its process was ended. Sent in the place of the
    next reply, that answer would leave the device one reply behind for ever.
    """
    own = []
    for reply in state.get_messages_legacy(is_reply=True):
        if reply.metadata.reply_to_message_id == message.metadata.message_id:
            own.append(reply)
        else:
            state.delete_messages(message_ids=[reply.metadata.message_id])
            store.delete(reply.metadata.message_id)
    return own


def _given_up(supernode: Any, state: Any, own: int | None, failure: Failure) -> bool:
    """Whether the failure is the message in hand's, which is task ``own``; it is then finished.

    A task that nobody had taken yet is left to the next executor, and so is one that Flower has taken back because its
    process was too late to begin. One that is over, with no whole answer, is answered for: Flower gives a task up whose
    process was not heard of for a while, and counts one as done whose answer is still on its way.
    """
    from flwr.common.constant import Status

    if failure.task not in (None, own) or state.get_tasks(task_ids=[own], statuses=[Status.PENDING]):
        return False
    state.finish_task(own, supernode.SubStatus.FAILED, failure.reason)
    return True


def _answer_with_error(supernode: Any, state: Any, store: Any, message: Any, partial: list[Any], reason: str) -> None:
    state.delete_messages(message_ids=[reply.metadata.message_id for reply in partial])
    for identifier in [*(reply.metadata.message_id for reply in partial), message.metadata.message_id]:
        store.delete(identifier)
    print(f"A message was not answered: {reason}", flush=True)
    error = supernode.Error(supernode.ErrorCode.CLIENT_APP_CRASHED, reason)
    supernode._insert_message(supernode.Message(error, reply_to=message), state, store)


def _whole(store: Any, reply: Any) -> bool:
    """Whether every part of a reply has arrived."""
    parts = [store.get_object_tree(reply.metadata.message_id)]
    while parts:
        part = parts.pop()
        if not store.get(part.object_id):
            return False
        parts += part.children
    return True


def _takes(function: Any, parameters: set[str]) -> bool:
    return callable(function) and (
        set(inspect.signature(function).parameters) >= parameters
        or any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    )
