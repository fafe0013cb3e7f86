"""SuperLink's state: durable where it must be, in memory where it may.

Nodes with their keys, runs, their tasks and their FABs are in SQLite (`server.superlink.durable_state`). Messages and
their objects are not: a server that was stopped repeats the round in hand. In SQLite a message is twenty statements,
which wait for one another; here it is Flower's own in-memory code, with an inbox for each node.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from logging import WARNING
from typing import Any

from fastapi import HTTPException
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore import log
from flwr.supercore.corestate.in_memory_corestate import InMemoryCoreState, ObjectPushSession
from flwr.supercore.date import now
from flwr.supercore.object_store import NoObjectInStoreError, object_store_factory
from flwr.superlink.federation import FederationManager

from common.protocol.error_replies import NO_ROOM
from common.system.resources import available_bytes
from server.gate.waiting import LOOKS
from server.superlink.durable_state import IN_MEMORY, DurableState
from server.superlink.object_store import ENTRY_BYTES, Claims, ObjectStore, claims_of

SWEEP_SECONDS = 60.0
TIMES_GIVEN = 3  # a message, to a node that does not say that it has it
TELL_SECONDS = 0.05  # until what was not heard is told once more
IDS_AT_ONCE = 4096
LEAST_BYTES = 256 * 2**20  # that messages may take on any machine
REPLIES = 2  # of a device that are on their way: of this round, and of the last where it took too long
CORE_IN_MEMORY: Any = InMemoryCoreState


class NoRoom(HTTPException):
    """Messages take as much memory as they may: a device is to try again, and the server is told so."""

    def __init__(self, code: int = 503) -> None:
        super().__init__(code, NO_ROOM)


class LinkState(DurableState):
    """Of a SuperLink with a database, whose messages take no more than ``most_bytes``.

    ``tell`` is told of each node for which a message is there, all of it. ``say`` is told when there is no room.
    """

    store_message_res = IN_MEMORY.store_message_res
    get_message_res = IN_MEMORY.get_message_res
    get_message_ids_from_run_id = IN_MEMORY.get_message_ids_from_run_id
    num_message_ins = IN_MEMORY.num_message_ins
    num_message_res = IN_MEMORY.num_message_res
    _on_push_session_expired = IN_MEMORY._on_push_session_expired
    _check_stored_messages = IN_MEMORY._check_stored_messages
    start_session = CORE_IN_MEMORY.start_session
    delete_sessions_in_run = CORE_IN_MEMORY.delete_sessions_in_run
    get_object = CORE_IN_MEMORY.get_object

    def __init__(
        self,
        database_path: str,
        federation_manager: FederationManager,
        object_store: ObjectStore,
        most_bytes: int,
        tell: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(database_path, federation_manager, object_store)
        self.objects, self.most_bytes, self.tell, self.say = object_store, most_bytes, tell, say
        self._lock_object_push_sessions = self.lock  # Flower takes its two in either order
        self.message_ins_store: dict[str, Message] = {}
        self.message_res_store: dict[str, Message] = {}
        self.message_ins_id_to_message_res_id: dict[str, str] = {}
        self._object_push_sessions: dict[str, ObjectPushSession] = {}
        self._object_push_session_by_root: dict[str, str] = {}
        self._inboxes: dict[int, dict[str, None]] = {}  # by node, in the order in which they came
        self._lacking: dict[str, set[str]] = {}  # instruction → its objects that are not there
        self._lacked: dict[str, set[str]] = {}  # object → instructions
        self._devices: dict[str, int] = {}  # by session, those who upload
        self._reply_bytes: dict[int, int] = {}  # by run
        self._greedy: set[int] = set()  # devices of which it was said that they send too much
        # By node and type, the message that it was given last, and how often.
        self._given: dict[int, dict[str, tuple[str, int]]] = {}
        self._next_sweep = 0.0
        self._full = False

    def expect(self, run_id: int, reply_bytes: int) -> None:
        """Note how much a device's reply in a run takes at most, as the run's server says."""
        self._reply_bytes[run_id] = reply_bytes

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        """Announce a message: whether it is taken, and which of its objects are to come.

        A device's is refused for now, with HTTP's 503, as soon as half of the room is taken: a quarter is for replies
        that are on their way, and one for the server.
        """
        if time.monotonic() >= self._next_sweep:
            self._sweep()
        claims = claims_of(object_tree)
        if claims is None:
            return False, []
        self.get_run_status({message.metadata.run_id})  # so that under the lock it is known: to ask can be to write
        with self.lock:
            if message.metadata.src_node_id != SUPERLINK_NODE_ID:
                try:
                    return self._store_of_device(message, object_tree, claims, session_id)
                finally:
                    if session_id not in self._devices:
                        self._cleanup_push_session(session_id, cleanup_messages=False)
            self.objects.forget_what_differs(claims)
            answer: tuple[bool, list[str]] = IN_MEMORY.store_message_and_object_tree(
                self, message, object_tree, session_id
            )
            self.objects.believe(claims)
            return answer

    def _store_of_device(
        self, message: Message, object_tree: ObjectTree, claims: Claims, session_id: str
    ) -> tuple[bool, list[str]]:
        if self._is_full(self.most_bytes // 2):
            raise NoRoom
        self._full = False
        identifier, device = message.metadata.message_id, message.metadata.src_node_id
        own = self.message_res_store.get(identifier)  # announced once more
        # So is one that the server has begun to take: Flower then forgets the message, and its objects still come.
        taken = own is None and self._devices.get(self._object_push_session_by_root.get(identifier, "")) == device
        again = taken or (own is not None and own.metadata.src_node_id == device)
        if identifier != object_tree.object_id or self.objects.roots(claims) - ({identifier} if again else set()):
            return False, []
        if not self.message_ins_store.keys().isdisjoint(claims):
            return False, []
        new = [name for name in claims if name not in self.objects]
        self._check_part(device, message.metadata.run_id, ENTRY_BYTES * len(new), identifier)
        if not taken and self.store_message_res(message) is None:
            return False, []
        self.objects.forget_parts(claims)
        missing = self.preregister_object_tree(object_tree, session_id)
        self._devices[session_id] = device
        self.objects.count_for(device, missing)
        try:
            self.objects.get_object_tree(identifier)
        except NoObjectInStoreError as problem:
            self.say(f"[state] Node {message.metadata.src_node_id} announced what is no message. {problem}")
            self._cleanup_push_session(session_id, cleanup_messages=True)
            return False, []
        return True, missing

    def _cleanup_push_session(self, session_id: str, *, cleanup_messages: bool) -> None:
        self._devices.pop(session_id, None)
        CORE_IN_MEMORY._cleanup_push_session(self, session_id, cleanup_messages=cleanup_messages)

    def _check_part(self, device: int, run_id: int, more: int, reply: str) -> None:
        """Raise HTTP's 413 where a device would have more on its way than its part.

        Before that its other replies are given up for this one, those first that it has not finished: it works on one
        at a time, and the server no longer asks for what came too late.
        """
        most = REPLIES * self._reply_bytes.get(run_id, self.most_bytes)
        if self.objects.brought_by(device) + more <= most:
            return
        for session_id in [session_id for session_id, whose in self._devices.items() if whose == device]:
            if reply not in self._object_push_sessions[session_id].root_object_ids:
                self._cleanup_push_session(session_id, cleanup_messages=True)
        theirs = [known for known, one in self.message_res_store.items() if one.metadata.src_node_id == device]
        for known in [known for known in theirs if known != reply]:  # the oldest first
            if self.objects.brought_by(device) + more <= most:
                return
            self.objects.delete(known)
            self._on_push_session_expired({known})
        if (held := self.objects.brought_by(device)) + more > most:
            if device not in self._greedy:
                self._greedy.add(device)
                self.say(f"[state] Node {device} has {held} bytes on their way; {most} are enough for its replies.")
            raise HTTPException(413, f"This device has {held} bytes on their way to the server, which takes {most}")

    def _is_full(self, most_bytes: int, more: int = 0) -> bool:
        """Whether more than so many bytes would be held; said when that begins."""
        full = self.objects.held_bytes + more > most_bytes
        if full and not self._full:
            held = self.objects.held_bytes
            self.say(f"[state] Messages take {held} bytes of {self.most_bytes} at most; devices are told to try again.")
            self._full = True
        return full

    def store_message_ins(self, message: Message) -> str | None:
        """Take a message for a node."""
        with self.lock:
            known = message.metadata.message_id in self.message_ins_store
            stored = IN_MEMORY.store_message_ins(self, message)
            if stored and not known:
                self._inboxes.setdefault(message.metadata.dst_node_id, {})[stored] = None
            return stored

    def preregister_object_tree(self, object_tree: ObjectTree, session_id: str) -> list[str]:
        """Note what is to come of a message."""
        with self.lock:
            missing = CORE_IN_MEMORY.preregister_object_tree(self, object_tree, session_id)
            message = self.message_ins_store.get(object_tree.object_id)
            if message is not None:
                self._lacking[object_tree.object_id] = set(missing)
                for identifier in missing:
                    self._lacked.setdefault(identifier, set()).add(object_tree.object_id)
                self._tell_if_whole(object_tree.object_id)
            return missing

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Take an object that is to come; False where it is not, or has no room."""
        with self.lock:
            session = self._object_push_sessions.get(session_id)
            if session is None or object_id not in session.pending_object_ids:
                return object_content != b"" and self.objects.get(object_id) == object_content  # its answer was lost
            if (device := self._devices.get(session_id)) is not None:
                (reply,) = session.root_object_ids
                self._check_part(device, run_id, len(object_content), reply)
            # So that no reply takes the server's.
            room = self.most_bytes if device is None else self.most_bytes * 3 // 4
            if self._is_full(room, len(object_content)):
                raise NoRoom(507 if device is None else 503)
            if device is not None:
                self.objects.count_for(device, [object_id])
            stored = CORE_IN_MEMORY.store_object(self, run_id, session_id, object_id, object_content)
            for identifier in self._lacked.pop(object_id, set()) if stored else ():
                self._lacking[identifier].discard(object_id)
                self._tell_if_whole(identifier)
            return stored

    def _tell_if_whole(self, identifier: str) -> None:
        if not self._lacking[identifier]:
            del self._lacking[identifier]
            self.tell(self.message_ins_store[identifier].metadata.dst_node_id)

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """Messages for a node of which all is there, each once, and some times more while the node has not got it.

        A device that looks for a message has dealt with the last, or never got it: the answer was lost on its way.
        """
        if limit is not None and limit < 1:
            raise AssertionError("`limit` must be >= 1")
        with self.lock:
            waiting = [identifier for identifier in self._inboxes.get(node_id, ()) if identifier not in self._lacking]
            self._check_stored_messages(set(waiting))
            found = [self.message_ins_store[each] for each in waiting if each in self.message_ins_store]
            found = [message for message in found if run_id is None or message.metadata.run_id == run_id][:limit]
            for message in found:
                message.metadata.delivered_at = now().isoformat()
                self._forget_in_inbox(message)
                given = self._given.setdefault(node_id, {})
                given[message.metadata.message_type] = message.metadata.message_id, 1
            return found or self._given_again(node_id)

    def _given_again(self, node_id: int) -> list[Message]:
        """One that it was given and does not have; of each type the last: a new round takes the place of the old."""
        given = self._given.get(node_id, {})
        self._check_stored_messages({identifier for identifier, _ in given.values()})
        for kind, (identifier, times) in list(given.items()):
            message = self.message_ins_store.get(identifier)
            answered = identifier in self.message_ins_id_to_message_res_id
            if message is not None and identifier in self.objects and not answered and times < TIMES_GIVEN:
                given[kind] = identifier, times + 1
                return [message]
            del given[kind]
        self._given.pop(node_id, None)
        return []

    def _forget_in_inbox(self, message: Message) -> None:
        inbox = self._inboxes.get(message.metadata.dst_node_id, {})
        inbox.pop(message.metadata.message_id, None)
        if not inbox:
            self._inboxes.pop(message.metadata.dst_node_id, None)

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Forget messages, with their objects, and their replies, with theirs unless the server is just taking them."""
        with self.lock:
            for identifier in message_ins_ids:
                if (message := self.message_ins_store.get(identifier)) is None:
                    continue
                self._forget_in_inbox(message)
                for part in self._lacking.pop(identifier, ()):
                    self._lacked[part].discard(identifier)
                    if not self._lacked[part]:
                        del self._lacked[part]
                self.objects.delete(identifier)
                reply = self.message_res_store.get(self.message_ins_id_to_message_res_id.get(identifier, ""))
                if reply is not None and not reply.metadata.delivered_at:
                    self.objects.delete(reply.metadata.message_id)
            IN_MEMORY.delete_messages(self, message_ins_ids)

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        """Flower's; with a run its messages go."""
        done = super().finish_task(task_id, sub_status, details)
        self._sweep()
        return done

    def _sweep(self) -> None:
        """Forget what has expired, uploads that were given up, and what is left of runs that are over.

        Nothing that goes wrong in it is the caller's, who came with a message or a run's end.
        """
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        try:
            self._forget_what_is_over()
        except Exception as problem:
            self.say(f"[state] What is over could not be forgotten: {problem!r}")

    def _forget_what_is_over(self) -> None:
        over = [run_id for run_id in list(self.objects.run_objects_mapping) if self._is_finished_run(run_id)]
        with self.lock:
            for run_id in over:
                self.cleanup_run(run_id)
                self._reply_bytes.pop(run_id, None)
            self._check_stored_messages(set(self.message_ins_store))
            for session_id, session in list(self._object_push_sessions.items()):
                if session.expires_at <= now():
                    self._cleanup_push_session(session_id, cleanup_messages=bool(session.pending_object_ids))


class Teller:
    """Sends the ids of nodes, 8 bytes each, to the abstract socket ``name``; unheard, where nobody listens.

    What the listener has no room for is sent together, a little later: its queue is ten datagrams on most machines.
    """

    def __init__(self, name: str) -> None:
        self._name = f"\0{name}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._untold: dict[int, None] = {}
        self._lock = threading.Lock()
        self._later: threading.Timer | None = None

    def __call__(self, node_id: int) -> None:
        """There is something for this node."""
        with self._lock:
            self._untold[node_id] = None
            if self._later is None:
                self._send()

    def _send(self) -> None:
        self._later = None
        try:
            while some := list(islice(self._untold, IDS_AT_ONCE)):
                self._socket.sendto(struct.pack(f">{len(some)}Q", *some), self._name)
                for node_id in some:
                    del self._untold[node_id]
        except BlockingIOError:
            self._later = threading.Timer(TELL_SECONDS, self._send_later)
            self._later.daemon = True
            self._later.start()
        except OSError:  # nobody listens
            self._untold.clear()

    def _send_later(self) -> None:
        with self._lock:
            self._send()


def install() -> None:
    """Have the SuperLink that this process runs from now on, if with a database, keep its messages in memory."""
    most_bytes = max(LEAST_BYTES, (available_bytes() or 0) // 2)
    name = os.environ.get(LOOKS)
    tell = Teller(name) if name else lambda _: None
    made = partial(LinkState, most_bytes=most_bytes, tell=tell, say=partial(log, WARNING))
    linkstate_factory.SqlLinkState = made  # type: ignore[assignment, misc]
    object_store_factory.SqlObjectStore = ObjectStore  # type: ignore[assignment, misc]
