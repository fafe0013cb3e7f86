"""An agent whose work is scripted, and what to wait for."""

import asyncio
import contextlib
import json
import os
from dataclasses import asdict

from bouquet.client.agent.agent import Agent
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.store import TaskStore
from bouquet.common.wire.content_size import Room
from tests.helpers.wire_server import SECONDS

LARGE = os.urandom(1_500_000)


class Doing:
    """Stands for the trainer: answers with ``answer(content)`` once it ``may``; None leaves no answer."""

    def __init__(self, folder):
        self.store, self.begun, self.codes = TaskStore(folder), asyncio.Queue(), []
        self.may, self.ended, self.why = asyncio.Event(), [], ""
        self.room = Room(2**22, 2**20, 100)
        self.may.set()
        self.answer = bytes

    async def start(self):
        pass

    async def do(self, identifier, code, torchvision):
        if not (content := self.store.content(identifier)).exists():  # it is to be measured
            if self.room is not None:
                self.store.file(7, "room.run").write_text(json.dumps(asdict(self.room)))
            return self.why
        self.begun.put_nowait(identifier)
        self.codes.append(code)
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.ended.append(identifier)
            raise
        if (answer := self.answer(content.read_bytes())) is not None:
            self.store.succeed(identifier, answer)
        return self.why

    async def close(self):
        pass


@contextlib.asynccontextmanager
async def device(server, folder, **changes):
    """An agent in this process, whose lines are in ``said``."""
    settings = DeviceSettings(server.address, folder, insecure=server.certificates is None, **changes)
    said = []
    agent = Agent(settings, said.append)
    agent.said = said
    agent.tasks.worker = Doing(agent.tasks.store.folder)
    running = asyncio.ensure_future(agent.run())
    try:
        yield agent
        assert not running.done(), running.exception()
    finally:
        agent.goodbye()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def scripted(test):
    """Run an async test."""

    def runs(tmp_path):
        asyncio.run(asyncio.wait_for(test(tmp_path), 3 * SECONDS))

    runs.__name__ = test.__name__
    return runs


async def until(true, what):
    for _ in range(int(20 * SECONDS)):
        if true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not yet: {what}")


def count(agent, text):
    return sum(text in line for line in agent.said)
