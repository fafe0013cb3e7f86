"""Whatever a server sends, and whatever fails on the device: the agent stays, and works on."""

import asyncio
import zipfile
from io import BytesIO
from unittest import mock

import pytest

from bouquet.client.agent import agent as agent_module
from bouquet.client.agent.store import TASKS, TaskStore
from bouquet.client.trust.policy import CodeRefused, unpack
from bouquet.common.errors import BouquetError
from bouquet.common.wire.fleet_pb2 import Task
from tests.client.agent.test_agent import LARGE, count, device, scripted, until
from tests.helpers.wire_server import WireServer, a_run, a_task


@scripted
async def test_a_reply_that_vanished_from_the_disk_costs_the_connection_alone(tmp_path):
    """As on a card that fails, or where the owner empties the folder."""
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        await link.give(task := a_task(LARGE), LARGE)
        await link.hear("reply")
        agent.tasks.store.reply_file(task.id).unlink()
        await link.say(credit={"id": task.id, "offset": 0, "end": 100_000})
        link = await server.link()
        await link.give(after := a_task())
        assert (await link.reply())[0].id == after.id
        assert count(agent, "is lost; trying again until it is back (") == 1


@scripted
async def test_a_reply_that_the_disk_damaged_is_not_sent_but_made_again(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        for content in (b"small", LARGE):
            await link.give(task := a_task(content), content if content is LARGE else b"")
            await link.hear("reply")
            file = agent.tasks.store.reply_file(task.id)
            file.write_bytes(b"?" + file.read_bytes()[1:])
            link.cut()
            link = await server.link()
            await link.give(task)
            assert (await link.reply())[1] == content


@scripted
async def test_what_is_left_of_another_run_goes_when_the_next_one_begins(tmp_path):
    store = TaskStore(tmp_path / TASKS)
    store.keep(old := a_task(), 3, 0)
    store.succeed(old.id, b"as the agent was killed before the server could say that it has this")
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        assert link.hello.holds == [old.id]
        await link.give(task := a_task(run=8), run=a_run(id=8))
        assert (await link.reply())[0].id == task.id
        assert not list(agent.tasks.store.folder.glob(f"{old.id}*"))


@scripted
async def test_a_task_that_is_cancelled_and_sent_again_is_done_once(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.may.clear()
        link = await server.link()
        await link.give(first := a_task())
        await agent.tasks.worker.begun.get()
        waiting = a_task()
        for _ in range(100):
            await link.give(waiting)
            await link.say(cancel={"id": waiting.id})
        await link.give(waiting)
        await link.say(ping={})
        await link.hear("pong")
        agent.tasks.worker.may.set()
        assert {(await link.reply())[0].id for _ in range(2)} == {first.id, waiting.id}
        await link.give(after := a_task())
        assert (await link.reply())[0].id == after.id
        assert [agent.tasks.worker.begun.get_nowait() for _ in range(2)] == [waiting.id, after.id]


@scripted
async def test_one_that_is_sent_again_in_the_moment_of_its_end_is_begun_again(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.may.clear()
        link = await server.link()
        await link.give(task := a_task())
        await agent.tasks.worker.begun.get()
        agent.tasks._cancel(task.id)
        agent.tasks.on_task(Task.FromString(task.SerializeToString()))  # before the work had a chance to end
        agent.tasks.worker.may.set()
        assert (await link.reply())[0].id == task.id
        await link.give(after := a_task())
        assert (await link.reply())[0].id == after.id


@scripted
async def test_what_nobody_foresaw_in_a_task_is_its_error_and_the_next_one_is_done(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        do = agent.tasks.worker.do

        async def breaks(*_):
            raise RuntimeError("no such \x1b[31m luck")

        agent.tasks.worker.do = breaks
        link = await server.link()
        await link.give(a_task())
        reply, _ = await link.reply()
        assert "RuntimeError" in reply.error.reason
        agent.tasks.worker.do = do
        await link.give(after := a_task())
        assert (await link.reply())[0].id == after.id


@scripted
async def test_a_server_that_gives_more_time_after_a_restart_is_believed(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.may.clear()
        link = await server.link()
        await link.give(task := a_task(seconds=60.0))
        await agent.tasks.worker.begun.get()
        link.cut()
        link = await server.link()
        await link.give(a_task(id=task.id, seconds=6000.0))
        await link.give(waits := a_task(seconds=0.1))  # one that waits its turn has its own time
        await link.say(ping={})
        await link.hear("pong")  # all that was said before is read
        await until(lambda: not list(agent.tasks.store.folder.glob(f"{waits.id}*")), "nobody waits for it")
        assert agent.tasks._timers[task.id].when() > asyncio.get_running_loop().time() + 3000
        agent.tasks.worker.may.set()
        assert (await link.reply())[0].id == task.id


def test_an_archive_of_a_million_empty_files_is_refused_before_its_list_is_read(tmp_path):
    """Whose list alone would take a device's memory."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a", b"")
    whole = content.getvalue()
    at = whole.index(b"PK\x01\x02")
    entry, end = whole[at : whole.index(b"PK\x05\x06")], whole[whole.index(b"PK\x05\x06") :]
    many = 200_000
    size = (many * len(entry)).to_bytes(4, "little")
    bomb = whole[:at] + many * entry + end[:12] + size + end[16:]
    with mock.patch("zipfile.ZipFile") as read, pytest.raises(CodeRefused, match="refused before it is unpacked"):
        unpack(bomb, "0" * 64, tmp_path)
    assert not read.called


def test_a_full_disk_at_the_start_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bouquet.common.system.files.os.replace", full)
    with pytest.raises(BouquetError, match="cannot be written: No space left on device"):
        agent_module.Agent(agent_module.DeviceSettings("a:1", tmp_path, insecure=True), print)
