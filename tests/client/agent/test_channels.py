"""What the agent leaves of a connection that came to nothing."""

import asyncio
import gc
import socket
import threading
import weakref

import pytest

from bouquet.client.agent.agent import Agent
from bouquet.client.agent.channel import open_channel
from bouquet.client.agent.reachability import ServerUnreachable
from bouquet.client.agent.settings import DeviceSettings


def test_a_channel_that_came_to_nothing_is_gone_at_once(tmp_path, monkeypatch):
    """One that waits to be collected goes on connecting, as gRPC's channels do."""
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up():
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    threading.Thread(target=hang_up, daemon=True).start()
    settings = DeviceSettings(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path, insecure=True)
    agent, made = Agent(settings, print), []

    def watched(settings):
        made.append(weakref.ref(one := open_channel(settings)))
        return one

    monkeypatch.setattr("bouquet.client.agent.agent.open_channel", watched)

    async def attempt():
        with pytest.raises(ServerUnreachable):
            await agent._connect()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(attempt())
        assert [one() for one in made] == [None]
    finally:
        gc.enable()
        listener.close()
