"""The service in this process, and devices that speak its bytes: `Fleet`."""

import contextlib
import hashlib

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.system.ports import free_port
from bouquet.common.wire.fleet_pb2 import Content, Run
from bouquet.common.wire.flower import content_bytes
from bouquet.keys.store import add_device, init_keys
from bouquet.server.service.certificates import Certificates
from bouquet.server.service.running import serving
from tests.helpers.waiting_for import eventually
from tests.helpers.wire_device import SECONDS, WireDevice

LAYOUT = ParameterLayout.of({"w": np.zeros(1_500_000, np.float32)})  # replies of 6 MB and somewhat more
CODE = hashlib.sha256(b"code").hexdigest()


def content(size, kind=b"x"):
    """Records of which exactly so many bytes travel."""
    length = size - 100
    for _ in range(4):
        made = RecordDict({"c": ConfigRecord({"data": kind * length})})
        length += (missing := size - len(content_bytes(made)))
    assert missing == 0
    return made


class Fleet:
    """``grid`` of the service at ``address``; ``said`` is what it reported."""

    def __init__(self, folder, names):
        self.folder, self.said, self.devices = folder, [], []
        self.service_folder = folder / "service"
        self.keys = folder / "keys" if names is not None else None
        if names is not None:
            init_keys(self.keys, ["127.0.0.1"])
            for name in names:
                add_device(self.keys, name)
        self.address = f"127.0.0.1:{free_port()}"
        self.stack = contextlib.ExitStack()
        self.start()

    def start(self, run=7):
        """Again, on the same folder and at the same address, as after a restart."""
        secure = {}
        if self.keys is not None:
            files = Certificates(*(self.keys / name for name in ("ca.crt", "server.crt", "server.key")))
            secure = {"certificates": files, "registered": self.keys / "registered"}
        self.grid = self.stack.enter_context(
            serving(self.address, self.service_folder, report=self.said.append, **secure)
        )
        self.service = self.grid.service
        self.begin(run)

    def begin(self, run=7, bundle=b""):
        if bundle:
            (self.service_folder / "code.zip").write_bytes(bundle)
        about = Content(size=len(bundle), sha256=hashlib.sha256(bundle).digest())
        self.grid.begin(Run(id=run, settings="{}", code=CODE, release="test", bundle=about), LAYOUT)

    def stop(self):
        self.stack.close()

    def keys_of(self, name):
        return self.keys / "devices" / name

    def device(self, name="device", **given):
        """Connected, and not yet known to be welcome."""
        keys = self.keys_of(name) if self.keys is not None else None
        self.devices.append(made := WireDevice(self.address, keys, name=name, **given))
        return made

    def welcome(self, name="device", **given):
        made = self.device(name, **given)
        made.wait_for("welcome")
        return made

    def push(self, device, records=None, kind="train", ttl=3600.0):
        """Send a device a task; its id."""
        message = Message(records or RecordDict(), dst_node_id=device.node, message_type=kind, ttl=ttl)
        (identifier,) = self.grid.push_messages([message])
        return identifier

    def pull(self, *identifiers):
        """The replies, when all of them are there."""
        found = []
        eventually(
            lambda: found.extend(self.grid.pull_messages(identifiers)) or len(found) == len(identifiers), "replies"
        )
        return found

    def in_loop(self, work):
        """What a function without arguments gives in the service's own thread, after all asked of it before."""
        done = []
        self.grid.loop.call_soon_threadsafe(lambda: done.append(work()))
        eventually(lambda: done, "the service answers", SECONDS)
        return done[0]

    def known(self, device):
        """A device as the service knows it."""
        return self.service.devices[device.node]

    def is_clean(self):
        """Nothing is reserved, open or on the disk for replies that nobody waits for."""
        replies = self.service.replies
        return (
            (replies.disk, replies.memory, replies.waiting) == (0, 0, {})
            and not [one for device in self.service.devices.values() for one in device.tasks.values() if one.incoming]
            and not [*self.service_folder.glob("*.reply*")]
        )

    def end(self):
        for device in self.devices:
            device.close(goodbye=False)
        self.stop()
