"""The agent with a server that means ill, or sends too much, or nothing whole."""

import asyncio
import contextlib
import os
from unittest import mock

import pytest

from bouquet.client.trust.policy import CodeTrust
from bouquet.common.wire.content_size import Room
from bouquet.common.wire.fleet_pb2 import Content
from tests.helpers.agent_and_server import LARGE, count, device, scripted, until
from tests.helpers.wire_server import SECONDS, WireServer, a_run, a_task

HOSTILE = {
    "garbage": [b"\xff" * 50],
    "no UTF-8": [b"\x4a\x03\x0a\x01\xff"],  # a notice
    "a frame that is none": [b""] * 100 + [b"\xff"],
    "a run without settings": [{"run": a_run(settings="")}],
    "settings that are a list": [{"run": a_run(settings="[]")}],
    "settings without a bottom": [{"run": a_run(settings="[" * 100_000)}],
    "a code that climbs": [{"run": a_run(code="../../etc/cron.d/x" + "0" * 46)}],
    "a task of no run": [{"task": a_task()}],
    "an id that climbs": [{"run": a_run()}, {"task": a_task(id="../../../../tmp/climbed")}],
    "a task of another content": [{"run": a_run()}, {"task": a_task(Content(size=5, sha256=bytes(32), data=b"other"))}],
    "a content without a digest": [{"run": a_run()}, {"task": a_task(Content(size=10**6))}],
    "a credit for nothing": [
        {"run": a_run()},
        {"task": (waiting := a_task(LARGE))},
        {"chunk": {"id": waiting.id, "offset": 0, "data": bytes(1000)}},
        {"chunk": {"id": waiting.id, "offset": 10**12, "data": b"x"}},
    ],
    "chunks without credit": [{"run": a_run()}, {"task": waiting}]
    + [{"chunk": {"id": waiting.id, "offset": at, "data": bytes(100_000)}} for at in range(0, 2_000_000, 100_000)],
    "too many tasks": [{"run": a_run()}] + [{"task": a_task(LARGE)} for _ in range(200)],
    "a frame that is too large": [{"notice": {"text": "x" * 10**6}}],
}


@pytest.mark.parametrize("frames", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_server_loses_its_connection_and_nothing_else_happens(tmp_path, frames):
    async def run():
        async with WireServer() as server, device(server, tmp_path / "state") as agent:
            agent.tasks.worker.may.clear()
            for _ in range(2):  # the second time finds what the first one left
                link = await server.link()
                with contextlib.suppress(Exception):  # it may be cut off before the last
                    for frame in frames:
                        await (link.say(frame) if isinstance(frame, bytes) else link.say(**frame))
                await asyncio.wait_for(link.over.wait(), SECONDS)
            agent.tasks.worker.may.set()
            link = await server.link()
            await link.give(task := a_task(b"honest"))
            while (reply := (await link.reply())[0]).id != task.id:
                pass
            assert reply.content.data == b"honest"
            assert count(agent, "is lost; trying again until it is back (") in (1, 2)
            assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 30 * 10**6

    asyncio.run(run())


@scripted
async def test_what_is_too_large_for_disk_or_memory_is_refused_before_it_comes(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        for size in (10**15, 2**63):
            await link.give(a_task(Content(size=size, sha256=bytes(32))))
            reply, _ = await link.reply()
            assert reply.error.reason.startswith(f"The task takes {size} bytes, and ")
        with mock.patch("bouquet.client.agent.store.available_bytes", return_value=100 * 2**20):
            await link.give(a_task(Content(size=60 * 2**20, sha256=bytes(32))))
            reply, _ = await link.reply()
        assert f"2 times {60 * 2**20} bytes of memory, and {100 * 2**20} are free" in reply.error.reason
        assert not list(agent.tasks.store.folder.glob("*.part"))


@scripted
async def test_what_is_larger_than_the_devices_own_model_can_be_is_refused_before_it_comes(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.room = Room(10**6, 10**5, 4)
        link = await server.link()
        for _ in range(2):  # the second time it is known
            await link.give(a_task(Content(size=2**31, sha256=bytes(32))))
            reply, _ = await link.reply()
            assert reply.error.reason == f"It takes {2**31} bytes; here it may take 1100000."
        await link.give(task := a_task(LARGE[:1_100_000]), LARGE[:1_100_000])
        assert (await link.reply())[0].id == task.id
        agent.tasks.worker.room = None  # the run has another model, and it cannot be built
        agent.tasks.worker.why = "ended"
        await link.give(a_task(LARGE), run=a_run(settings='{"model": {}}'))
        reply, _ = await link.reply()
        assert reply.error.reason.startswith("The content is not asked for: what the model takes is not known. ")
        assert not list(agent.tasks.store.folder.glob("*.part"))


@scripted
async def test_a_content_that_is_damaged_again_and_again_is_refused(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        await link.say(run=a_run())
        await link.say(task=(task := a_task(LARGE)))
        for _ in range(2):
            await link.send(task.id, bytes(len(LARGE)))
        reply, _ = await link.reply()
        assert "is twice a content that is not what its SHA-256 says" in reply.error.reason
        assert not list(agent.tasks.store.folder.glob(f"{task.id}*"))


@scripted
async def test_no_task_takes_longer_than_the_owner_lets_it(tmp_path):
    async with WireServer() as server, device(server, tmp_path, most_hours=1e-5) as agent:
        agent.tasks.worker.may.clear()
        link = await server.link()
        await link.give(task := a_task(b"local-epochs = 10**9", seconds=1e300))
        reply, _ = await link.reply()
        assert (reply.id, agent.tasks.worker.ended) == (task.id, [task.id])
        assert reply.error.reason.endswith("(--most-hours).")
        agent.tasks.worker.may.set()
        agent.tasks._most_seconds = SECONDS
        await link.give(task := a_task(b"next"))
        assert (await link.reply())[1] == b"next"


@scripted
async def test_what_is_sent_again_and_again_costs_no_descriptors_and_no_log(tmp_path):
    async with WireServer() as server, device(server, tmp_path, trust=CodeTrust(anything=True)) as agent:
        link = await server.link()
        open_before = len(os.listdir("/proc/self/fd"))
        task = a_task(LARGE)
        bundle = Content(size=10**6, sha256=bytes(32))
        for number in range(300):
            await link.say(run=a_run(code=f"{number:064x}", bundle=bundle))
            await link.say(task=task)
            await link.say(notice={"text": f"\x1b[2J{number}\n\x9b31m" + "x" * 5000})
        await link.say(ping={})
        await link.hear("pong")
        assert len(os.listdir("/proc/self/fd")) < open_before + 20
        assert len(agent.said) <= 40
        assert not any(char in line for line in agent.said for char in "\x1b\x9b\n")
        assert all(len(line) < 600 for line in agent.said)
        assert len(list((tmp_path / "code").iterdir())) <= 3
        await link.say(run=a_run(code="1" * 64, bundle=Content(size=10**12, sha256=bytes(32))))
        await link.say(task=(refused := a_task()))
        replies = {(reply := await link.hear("reply")).id: reply.error.reason}
        if refused.id not in replies:  # the task before it, which waited for code too, may be answered first
            replies |= {(reply := await link.hear("reply")).id: reply.error.reason}
        assert replies[refused.id] == "Its archive cannot have 1000000000000 bytes."


@pytest.fixture
def pauses():
    """Those between connections, which take no time."""
    noted, sleep = [], asyncio.sleep

    async def note(seconds, *rest):
        if seconds > 0.06:
            noted.append(seconds)
        await sleep(0 if seconds > 0.06 else seconds, *rest)

    with mock.patch("asyncio.sleep", note):
        yield noted


def test_a_server_that_welcomes_and_breaks_is_not_called_in_a_loop(tmp_path, pauses):
    async def run():
        async with WireServer() as server, device(server, tmp_path) as agent:
            for _ in range(40):
                (await server.link()).cut()
            assert len(pauses) >= 39
            assert max(pauses) > 30
            assert len(agent.said) <= 32  # lost and found, but not for ever

    asyncio.run(run())


def test_connections_on_which_content_came_further_lengthen_no_pause(tmp_path, pauses):
    async def run():
        async with WireServer() as server, device(server, tmp_path) as agent:
            task = a_task(LARGE)
            for upto in range(200_000, 1_400_000, 200_000):
                link = await server.link()
                await link.give(task, LARGE, upto=upto)
                await until(lambda at=upto: agent.tasks._coming[task.id].at == at, "it has what was sent")
                link.cut()
            link = await server.link()
            await link.give(task, LARGE)
            has = b""
            for upto in range(600_000, 1_400_000, 200_000):
                _, has = await link.reply(has=has, upto=upto)
                link.cut()
                link = await server.link()
                await link.give(task)
            assert len(pauses) == 10
            assert max(pauses) <= 0.5

    asyncio.run(run())
