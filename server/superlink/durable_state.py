"""The part of SuperLink's state that outlives a restart: Flower's own SQLite tables, with a copy in memory.

Who a node is and whether it is connected is asked in every call. What changes a node goes to the database first and
then into the copy. Whether a run goes on, and whose token that is, is asked again each second.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flwr.common.constant import HEARTBEAT_PATIENCE, Status
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState, RunRecord
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NodeStatus
from flwr.supercore.date import now
from flwr.supercore.run import Run, RunStatus
from flwr.supercore.state.schema.corestate_models import Task as TaskModel
from flwr.supercore.state.schema.linkstate_models import Node as NodeModel
from flwr.superlink.federation import FederationManager
from sqlalchemy import func, select, update

from server.superlink.object_store import ObjectStore

FRESH_SECONDS = 1.0  # for which an answer of the database about a run or a token is believed
MOST_SECONDS = 1e9  # that a device can have computed
START_SECONDS, MOST_DOUBLINGS = 30.0, 5  # of the first start of a task, as Flower has it, and of those after it
CLOCK_SECONDS = 2.0  # between two looks at the clock
# Since the last look, and this process stood still in between, with its machine perhaps, or the clock was set.
GAP_SECONDS = 10.0
# The tables that Flower has for what is in memory here; a database from before has rows in them.
NO_LONGER = ("message_res", "message_ins", "object_push_sessions", "run_objects", "object_children", "objects")
IN_MEMORY: Any = InMemoryLinkState  # whose functions are used on a state that is not one


class DurableState(SqlLinkState):
    """Nodes with their keys, runs, their tasks and their FABs. ``lock`` is held for a moment only, never to write."""

    get_node_id_by_public_key = IN_MEMORY.get_node_id_by_public_key

    def __init__(self, database_path: str, federation_manager: FederationManager, object_store: ObjectStore) -> None:
        super().__init__(database_path, federation_manager, object_store)
        self.lock = threading.RLock()
        self._lock_nodes = threading.RLock()  # where both are needed it is the first
        self.nodes: dict[int, NodeInfo] = {}
        self.node_public_key_to_node_id: dict[bytes, int] = {}
        self.run_ids: dict[int, RunRecord] = {}
        self._running: dict[int, float] = {}  # run → until when that is believed
        self._tasks: dict[str, tuple[float, Task]] = {}  # by token
        self._traffic: dict[int, tuple[int, int]] = {}  # by run: bytes sent and received
        self._seconds: dict[int, float] = {}
        self._lock_traffic = threading.Lock()
        self._next_clean_up = 0.0
        self._starts: dict[int, int] = {}  # by task
        self._lock_clock = threading.Lock()
        self._clock = time.time()

    def initialize(self, log_queries: bool = False, **engine_kwargs: Any) -> list[str]:
        """Open the database and learn what is in it."""
        tables = super().initialize(log_queries, **engine_kwargs)
        for table in NO_LONGER:
            self.query(f"DELETE FROM {table}")
        self._learn_nodes(None)
        self._learn_runs(None)
        self._clock = time.time()
        threading.Thread(target=_watch_clock, args=(weakref.ref(self),), name="clock", daemon=True).start()
        return tables

    def _gap(self) -> float:
        """Seconds by which the clock went on while no heartbeat could come, until they are made up for.

        Negative: it was set back.
        """
        gap = time.time() - self._clock
        return gap if abs(gap) > GAP_SECONDS else 0.0

    def make_up_for_gap(self) -> None:
        """Have nodes and tasks lapse later by as long as nobody could say that they are there.

        A server that slept for a minute would otherwise take every device, and its own run, for gone.
        """
        with self._lock_clock:
            if gap := self._gap():
                missed = max(gap, 0.0)
                most = time.time() + HEARTBEAT_PATIENCE * NodeModel.heartbeat_interval
                until = func.min(NodeModel.online_until + missed, most)
                with self._lock_nodes:
                    with self.session() as session:
                        session.execute(
                            update(NodeModel).where(NodeModel.status == NodeStatus.ONLINE).values(online_until=until)
                        )
                        for task in session.scalars(select(TaskModel).where(TaskModel.active_until.is_not(None))).all():
                            task.active_until = (task.active_until or now()) + timedelta(seconds=missed)
                    self._learn_nodes(None)
                self._tasks = {}
            self._clock = time.time()

    def _learn_nodes(self, node_ids: Sequence[int] | None) -> None:
        for node in SqlLinkState.get_node_info(self, node_ids=node_ids):
            with self.lock:
                self.nodes[node.node_id] = node
                self.node_public_key_to_node_id[node.public_key] = node.node_id

    def create_node(self, *arguments: Any, **named: Any) -> int:
        """Flower's, noted."""
        with self._lock_nodes:
            node_id = super().create_node(*arguments, **named)
            self._learn_nodes([node_id])
        return node_id

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        """Flower's, noted."""
        with self._lock_nodes:
            super().delete_node(owner_aid, node_id)
            self._learn_nodes([node_id])

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """Flower's, noted."""
        with self._lock_nodes:
            done = super().activate_node(node_id, heartbeat_interval)
            self._learn_nodes([node_id])
        return done

    def deactivate_node(self, node_id: int) -> bool:
        """Flower's, noted."""
        with self._lock_nodes:
            done = super().deactivate_node(node_id)
            self._learn_nodes([node_id])
        return done

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Flower's, noted without another question to the database."""
        with self._lock_nodes:
            known = super().acknowledge_node_heartbeat(node_id, heartbeat_interval)
            return known and IN_MEMORY.acknowledge_node_heartbeat(self, node_id, heartbeat_interval)

    def _check_and_tag_offline_nodes(self, node_ids: list[int] | None = None) -> None:
        """Write down that nodes are gone, where one is."""
        if self._gap():
            return
        current = now().timestamp()
        with self.lock:
            known = [self.nodes[each] for each in node_ids or self.nodes if each in self.nodes]
            gone = [node.node_id for node in known if node.status == NodeStatus.ONLINE and node.online_until <= current]
        if gone:
            with self._lock_nodes:
                super()._check_and_tag_offline_nodes(gone)
                IN_MEMORY._check_and_tag_offline_nodes(self, gone)

    def get_node_info(
        self,
        *,
        node_ids: Sequence[int] | None = None,
        owner_aids: Sequence[str] | None = None,
        statuses: Sequence[str] | None = None,
    ) -> Sequence[NodeInfo]:
        """Those of the nodes that fit, as `InMemoryLinkState` has it, whose lock must not be held while one is gone."""
        self._check_and_tag_offline_nodes()
        with self.lock:
            known = (
                list(self.nodes.values()) if node_ids is None else [self.nodes[i] for i in node_ids if i in self.nodes]
            )
        return [
            node
            for node in known
            if (owner_aids is None or node.owner_aid in owner_aids) and (statuses is None or node.status in statuses)
        ]

    def get_nodes(self, run_id: int) -> set[int]:
        """Who is connected; nobody, for a run that is not known."""
        if run_id not in self.run_ids:
            return set()
        connected = {node.node_id for node in self.get_node_info(statuses=[NodeStatus.ONLINE])}
        return self.federation_manager.filter_nodes(connected, self.run_ids[run_id].run.federation_id)

    def _learn_runs(self, run_ids: Sequence[int] | None) -> None:
        for run in self.get_run_info(run_ids=run_ids):
            self.run_ids[run.run_id] = RunRecord(run)

    def create_run(self, *arguments: Any, **named: Any) -> int:
        """Flower's, noted."""
        run_id = super().create_run(*arguments, **named)
        self._learn_runs([run_id])
        return run_id

    def get_run_status(self, run_ids: set[int]) -> dict[int, RunStatus]:
        """How runs are doing; of one that runs, as of a second ago."""
        current = time.monotonic()
        if all(self._running.get(run_id, 0.0) > current for run_id in run_ids):
            return {run_id: RunStatus(Status.RUNNING, "", "") for run_id in run_ids}
        found = super().get_run_status(run_ids)
        running = {run_id for run_id, about in found.items() if about.status == Status.RUNNING}
        self._running.update(dict.fromkeys(running, current + FRESH_SECONDS))
        return found

    def _is_finished_run(self, run_id: int) -> bool:
        return self.get_run_status({run_id})[run_id].status == Status.FINISHED

    def get_task_by_token(self, token: str) -> Task | None:
        """Whose token that is, as of a second ago. Asked with each call of a ServerApp, before anything else."""
        if self._gap():
            self.make_up_for_gap()
        until, task = self._tasks.get(token, (0.0, None))
        if until > time.monotonic():
            return task
        task = super().get_task_by_token(token)
        self._tasks = {token: (time.monotonic() + FRESH_SECONDS, task)} if task else {}  # there is one at a time
        return task

    def claim_task(self, task_id: int) -> str | None:
        """Flower's, whose claim is worth nothing after 30 s: each start after the first has twice as long.

        A ServerApp on a busy machine would otherwise be started and turned away again, for ever.
        """
        token = super().claim_task(task_id)
        if token is not None:
            before = self._starts.get(task_id, 0)
            self._starts[task_id] = before + 1
            until = now() + timedelta(seconds=START_SECONDS * 2 ** min(before, MOST_DOUBLINGS))
            with self.session() as session:
                session.execute(update(TaskModel).where(TaskModel.token == token).values(active_until=until))
        return token

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        """Flower's; then nothing of the run is believed without the database."""
        self._write_traffic()
        done = super().finish_task(task_id, sub_status, details)
        self._running, self._tasks = {}, {}
        self._starts.pop(task_id, None)
        return done

    def _cleanup_expired_task_tokens(self) -> None:
        """Flower's, which writes, and which it asks for in each call: once a second."""
        if time.monotonic() >= self._next_clean_up and not self._gap():
            self._next_clean_up = time.monotonic() + FRESH_SECONDS
            super()._cleanup_expired_task_tokens()

    def get_run_info(self, *, run_ids: Sequence[int] | None = None, **which: Any) -> Sequence[Run]:
        """Flower's, with the traffic until now."""
        self._write_traffic()
        return super().get_run_info(run_ids=run_ids, **which)

    def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        """Count bytes, which are written down when somebody asks for them, or a task ends."""
        if run_id not in self.run_ids or min(bytes_sent, bytes_recv) < 0 or not bytes_sent + bytes_recv:
            raise ValueError(f"Run {run_id} cannot have sent {bytes_sent} bytes and received {bytes_recv}.")
        with self._lock_traffic:
            sent, received = self._traffic.get(run_id, (0, 0))
            self._traffic[run_id] = sent + bytes_sent, received + bytes_recv

    def add_clientapp_runtime(self, run_id: int, runtime: float) -> None:
        """Count seconds in the same way; what a device says that cannot be counts for nothing."""
        if not 0.0 <= runtime < MOST_SECONDS:
            return
        with self._lock_traffic:
            self._seconds[run_id] = self._seconds.get(run_id, 0.0) + runtime

    def _write_traffic(self) -> None:
        with self._lock_traffic:
            (traffic, self._traffic), (seconds, self._seconds) = (self._traffic, {}), (self._seconds, {})
        for run_id, (sent, received) in traffic.items():
            super().store_traffic(run_id, bytes_sent=sent, bytes_recv=received)
        for run_id, runtime in seconds.items():
            super().add_clientapp_runtime(run_id, runtime)


def _watch_clock(state: weakref.ref[DurableState]) -> None:
    while (known := state()) is not None:
        with contextlib.suppress(Exception):  # the database is locked: the gap is there until it is made up for
            known.make_up_for_gap()
        del known
        time.sleep(CLOCK_SECONDS)
