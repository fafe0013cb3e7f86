"""What SuperLink tells the gate of, and the looks that wait for it."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
import uuid

import pytest

from server.gate import waiting
from server.gate.waiting import DATAGRAM_BYTES, Waiting, _of_own_user
from server.superlink.link_state import Teller


def test_a_gate_that_is_busy_hears_of_all_nodes_when_it_listens_again():
    name, heard = f"bouquet-test-{uuid.uuid4().hex}", set()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gate:
        gate.bind(f"\0{name}")
        gate.settimeout(60)
        tell = Teller(name)
        for node in range(20_000):
            tell(2**63 + node)
        while len(heard) < 20_000:
            data = gate.recv(DATAGRAM_BYTES)
            heard.update(struct.unpack(f">{len(data) // 8}Q", data))
    tell(1)  # nobody listens
    assert not tell._untold


def test_no_look_is_held_for_longer_than_a_while(monkeypatch):
    monkeypatch.setattr(waiting, "MOST_SECONDS", 0.01)

    async def look():
        return None

    async def first():
        return await asyncio.wait_for(Waiting(f"bouquet-test-{uuid.uuid4().hex}").first(7, 1e9, look), 60)

    assert asyncio.run(first()) is None


SAYS = """
import os, socket, struct, sys
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto(struct.pack(">Q", int(sys.argv[2])), "\\0" + sys.argv[1])
"""


async def listens(name, before=(), at_last=(), seconds=30.0):
    """Looks for a message of node 7 that is there from the second look on; how many looks it took."""
    waiting, looks = Waiting(name), []

    async def look():
        looks.append(len(looks))
        for arguments in before if len(looks) == 1 else ():
            await asyncio.to_thread(subprocess.run, [sys.executable, "-c", SAYS, name, *arguments], check=True)
        return b"found" if len(looks) > 1 else None

    async def held():
        while 7 not in waiting._held:
            await asyncio.sleep(0.01)
        for arguments in at_last:
            await asyncio.to_thread(subprocess.run, [sys.executable, "-c", SAYS, name, *arguments], check=True)

    speaks = asyncio.create_task(held())
    found = await waiting.first(7, seconds, look)
    speaks.cancel()
    assert not waiting._news
    assert not waiting._looks
    waiting.close()
    return found, len(looks)


def test_a_look_that_is_held_ends_when_superlink_tells():
    name = f"bouquet-test-{uuid.uuid4().hex}"
    assert asyncio.run(listens(name, at_last=[["8"], ["7"]])) == (b"found", 2)


def test_what_nobody_looks_for_is_not_remembered():
    async def told():
        name = f"bouquet-test-{uuid.uuid4().hex}"
        waiting = Waiting(name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for node in range(1000):
                sender.sendto(struct.pack(">Q", node), f"\0{name}")
                await asyncio.sleep(0)
        assert not waiting._news
        waiting.close()

    asyncio.run(told())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_wakes_nobody():
    name = f"bouquet-test-{uuid.uuid4().hex}"
    assert asyncio.run(listens(name, before=[["7", "65534"]], seconds=1.0)) == (None, 1)
    assert asyncio.run(listens(name, before=[["7"]])) == (b"found", 2)


def credentials(user, kind=socket.SCM_CREDENTIALS, more=b""):
    return [(socket.SOL_SOCKET, kind, struct.pack("3i", 1, user, 1) + more)]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (credentials(os.geteuid()), True),
        (credentials(0), True),
        (credentials(os.geteuid() + 1), False),
        (credentials(os.geteuid(), kind=socket.SCM_RIGHTS), False),
        (credentials(os.geteuid(), more=b"0"), False),
        ([], False),
    ],
)
def test_what_the_kernel_says_of_a_sender_decides(said, heard):
    assert _of_own_user(said) is heard
