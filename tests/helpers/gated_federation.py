"""A gate, SuperLink's state with its database, a server's grid and two devices, all in this process."""

import os
import time
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.task_identity import TaskIdentity

from server.gate.waiting import LOOKS
from server.superlink import grid
from tests.helpers.gated import GatedSuperLink
from tests.helpers.superlink_in_memory import Link
from tests.helpers.wire_device import Reply, WireDevice

MOST_OBJECTS = 100
TTL = 3600.0


class Device(WireDevice):
    """A scripted device of a federation without TLS, and what it was given last."""

    def __init__(self, federation, pair):
        self.keys, self.public_key, _ = pair
        self.stub = federation.server.stub(self.keys)
        self.heartbeat_interval = 600.0
        self.node = Node(node_id=self.activate())
        self.close = federation.server.channels[-1].close

    def reply(self, instruction, content=None):
        TaskIdentity.node_id = self.node.node_id
        made = Message(content or RecordDict(), reply_to=instruction)
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return Reply.of(made)

    def given(self):
        """What SuperLink announces to it, of which nothing is pulled."""
        return self.stub.PullMessages(PullMessagesRequest(node=self.node))

    def pulls(self, run, identifier):
        """Whether it gets an object."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=identifier)
        return self.stub.PullObject(request).object_available

    def confirms(self, run, identifier):
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=identifier)
        self.stub.ConfirmMessageReceived(request)

    def announces(self, reply, tree):
        """A reply with any tree."""
        reply.announced.metadata.message_id = reply.announced.metadata.message_id or tree.object_id
        request = PushMessagesRequest(node=self.node, messages_list=[reply.announced], message_object_trees=[tree])
        return self.stub.PushMessages(request)


class Federation:
    """A server and two devices, of which one, mallory, is not honest."""

    def __init__(self, layout, folder):
        self.link = Link(layout, str(folder / "state.db"))
        self.run = self.link.run_id
        options = {"message_bytes": 10_000_000, "most_objects": MOST_OBJECTS, "told": os.environ[LOOKS]}
        self.server = GatedSuperLink(folder / "gate", self.link.states, **options)
        # Of both the gate hears at once: it asks SuperLink but once a second who is registered.
        pairs = [self.server.pair(register=True) for _ in range(2)]
        self.honest, self.mallory = (Device(self, pair) for pair in pairs)

    def push(self, *devices, content=None):
        """The server's messages to these; their ids."""
        messages = [
            Message(content or RecordDict(), dst_node_id=device.node.node_id, message_type="train", ttl=TTL)
            for device in devices
        ]
        self.link.grid.push_messages(messages)
        return [message.metadata.message_id for message in messages]

    def forget_replies(self):
        """Have the server wait no more for replies that are announced and not there."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grid, "time", SimpleNamespace(time=lambda: time.time() + TTL + 1))
            self.link.grid._take([])

    def end(self):
        self.honest.close()
        self.mallory.close()
        self.server.end()
