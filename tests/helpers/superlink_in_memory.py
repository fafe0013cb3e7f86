"""Flower's own state of a SuperLink and its Runtime API functions, in memory, and devices that upload in parts.

With a ``database``, a file, it is the state that a server has which people reach.
"""

from types import SimpleNamespace

import httpx
from fastapi import HTTPException
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.runtime import runtime_handlers

from common.parameters.layout import ParameterLayout
from server.superlink.grid import REPLY_BYTES, as_they_arrive
from server.superlink.link_state import LinkState
from tests.helpers.wire_device import Reply


class Link:
    """SuperLink's state, what a ServerApp calls of it, and devices that upload their replies in parts."""

    def __init__(self, layout: ParameterLayout, database: str = FLWR_IN_MEMORY_DB_NAME):
        self.states = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database))
        self.state = self.states.state()
        self.run_id = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        self.task = SimpleNamespace(run_id=self.run_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, self.run_id, SUPERLINK_NODE_ID
        grid = HttpGrid(token="any")
        grid.set_run(self.state.get_run_info(run_ids=[self.run_id])[0])
        grid._client, self._client = self, SimpleNamespace(headers={})
        self.grid = as_they_arrive(grid, layout)
        self.pulled = []

    def __getattr__(self, name):
        handlers = {
            "GetNodes": "get_nodes",
            "PushMessages": "push_messages",
            "PushObject": "push_object",
            "PullMessages": "pull_messages",
            "PullObject": "pull_object",
            "ConfirmMessageReceived": "confirm_message_received",
        }

        def call(request):
            if isinstance(self.state, LinkState):  # as the short way has it
                self.state.expect(self.run_id, int(self._client.headers[REPLY_BYTES]))
            try:
                answer = getattr(runtime_handlers, handlers[name])(request, self.state, self.task)
            except HTTPException as refused:
                told = httpx.Response(refused.status_code, text=refused.detail)
                raise httpx.HTTPStatusError(
                    "", request=httpx.Request("POST", "http://superlink"), response=told
                ) from None
            if name == "PullObject" and answer.object_available:
                self.pulled.append(request.object_id)
            return answer

        return call

    def node(self):
        node = self.state.create_node("", "", str(len(self.state.nodes)).encode(), 0)
        self.state.acknowledge_node_heartbeat(node, 1000)
        return node

    def announce(self, node):
        """The node's reply to its message is announced; what uploads a number of its parts."""
        (message,) = self.state.get_message_ins(node, 1)
        TaskIdentity.node_id = node
        reply = Message(RecordDict({"config": ConfigRecord({"node": node})}), reply_to=message)
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return self.announce_bytes(Reply.of(reply))

    def announce_bytes(self, reply):
        """The same for whatever a device says."""
        parts: dict[str, bytes] = {}
        tree = reply.top.seal(parts)
        reply.announced.metadata.message_id = reply.announced.metadata.message_id or tree.object_id
        session = self.state.start_session(self.run_id)
        stored, missing = self.state.store_message_and_object_tree(message_from_proto(reply.announced), tree, session)
        assert stored

        def upload(number=None):
            for identifier in missing[:number]:
                assert self.state.store_object(self.run_id, session, identifier, parts[identifier])
            del missing[:number]

        return upload


def push(link, *nodes, ttl=3600.0, kind="train", **config):
    """The server's messages to these nodes, all with the same content; their ids."""
    content = RecordDict({"config": ConfigRecord(config or {"round": 1})})
    messages = [Message(content, dst_node_id=node, message_type=kind, ttl=ttl) for node in nodes]
    link.grid.push_messages(messages)
    return [message.metadata.message_id for message in messages]


def reply_of(message, node, **said):
    reply = Message(RecordDict({"config": ConfigRecord(said or {"round": 1})}), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = node
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def answer(link, message, node, **said):
    reply = reply_of(message, node, source=node, **said)
    session = link.state.start_session(link.run_id)
    stored, missing = link.state.store_message_and_object_tree(reply, get_object_tree(reply), session)
    assert stored
    for identifier, part in get_all_nested_objects(reply).items():
        if identifier in missing:
            assert link.state.store_object(link.run_id, session, identifier, part.deflate())
