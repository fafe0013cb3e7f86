"""The agent as a program: ``bouquet client`` becomes it, and ``bouquet check`` asks the server through it.

The command line brings settings, terminal colours and cryptography, some 50 MB that a device would hold on to for
nothing. So that process replaces itself, under its own process id, with what it found out as one JSON argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import NoReturn

from bouquet.client.agent.proxy import grpc_environment
from bouquet.client.agent.settings import DeviceSettings
from bouquet.common.errors import BouquetError
from bouquet.common.system.files import keep_private
from bouquet.common.system.locks import locked
from bouquet.common.system.log_file import stamp
from bouquet.common.system.processes import end_with_parent

INTERRUPTED = 130
HINT = "It is another client's; give each client on this machine a --state-dir of its own."


def become_agent(settings: DeviceSettings) -> NoReturn:
    """Replace this process by the agent of a device."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command(settings))


def command(settings: DeviceSettings) -> list[str]:
    """The command line of an agent."""
    # -P: a folder named client where the user happens to be must not be taken for ours.
    return [sys.executable, "-P", "-m", "bouquet.client.agent.main", settings.to_json()]


async def serve(settings: DeviceSettings) -> int:
    """Run a device until SIGTERM or SIGINT; the exit status."""
    from bouquet.client.agent.agent import Agent  # gRPC, whose environment is set by now

    agent = Agent(settings, lambda line: print(stamp(line), flush=True))
    ended_by: list[int] = []
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(agent.run())

    def end(number: int) -> None:
        if not ended_by:
            agent.goodbye()
            loop.call_later(0.2, running.cancel)
        ended_by.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    health = None
    if settings.health is not None:
        from bouquet.common.wire.health import Health

        health = Health(lambda: not running.done())
        try:
            await health.start(settings.health)
        except RuntimeError:  # gRPC's: the port is taken
            running.cancel()
            raise BouquetError(f"The address {settings.health} (--health) cannot be listened at.") from None
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    finally:
        if health is not None:
            await health.stop()
    if ended_by[:1] == [signal.SIGINT]:
        print("bouquet: stopped.", file=sys.stderr)
    return 128 + ended_by[0] if ended_by else 0  # as shells count, and Docker, which starts such a one after a reboot


def main(text: str) -> int:
    """Run the agent to its end; the exit status is that of ``bouquet``."""
    os.environ |= {"GRPC_ENABLE_FORK_SUPPORT": "0", **grpc_environment(os.environ)}
    settings = DeviceSettings.from_json(text)
    if settings.with_parent:
        end_with_parent()
    os.umask(0o077)  # also of the processes that it starts
    try:
        with locked(settings.state_dir, "the state folder", HINT):
            keep_private(settings.state_dir)
            return asyncio.run(serve(settings))
    except BouquetError as error:
        print(f"bouquet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
