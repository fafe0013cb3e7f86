"""The agent beside a server that a test writes: tasks, transfers, cuts, hostile frames, the owner's word, keys."""

import asyncio
import contextlib
import json
import os
from dataclasses import asdict
from datetime import datetime
from unittest import mock

import pytest

from bouquet.client.agent.agent import Agent
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.store import TaskStore
from bouquet.client.agent.tasks import MOST_TASKS
from bouquet.client.node_config import WHEN
from bouquet.client.trust.policy import CodeTrust
from bouquet.common.trust.code import archive, digest_of, own_code
from bouquet.common.wire.content_size import Room
from bouquet.common.wire.fleet_pb2 import Content, Refused
from bouquet.common.wire.transfer import content_of
from bouquet.keys.store import add_device, init_keys, renew_device
from tests.helpers.wire_server import SECONDS, WireServer, a_run, a_task

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
                self.store.room_file(7).write_text(json.dumps(asdict(self.room)))
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


# --- tasks, and what becomes of them on a line that breaks -----------------------------------------------------------


@scripted
async def test_a_task_is_done_its_reply_delivered_and_both_forgotten(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        assert (link.hello.major, link.hello.code, len(link.hello.session)) == (1, own_code(), 16)
        for content in (b"small", b"", LARGE):
            task = a_task(content)
            await link.give(task, content if len(content) > 10 else b"")
            reply, back = await link.reply()
            assert (reply.id, back) == (task.id, content)
            await link.say(received={"id": task.id})
            await link.say(ping={})
            await link.hear("pong")
            assert not list(agent.tasks.store.folder.glob(f"{task.id}*"))
        assert agent.said == ["Connected."]


@scripted
async def test_both_ways_go_on_where_a_cut_left_them(tmp_path):
    task = a_task(LARGE)
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        await link.give(task, LARGE, upto=1_000_000)
        (part,) = [*agent.tasks.store.folder.glob("*.part")] or [None]
        await until(lambda: part.stat().st_size >= 1_000_000, "what was sent is kept")
        link.cut()
        link = await server.link()
        assert link.hello.holds == []
        assert await link.give(task, LARGE) == 1_000_000
        _, some = await link.reply(upto=400_000)
        link.cut()
        for _ in range(2):  # the server forgot it in between, and has a part of it still
            link = await server.link()
            assert link.hello.holds == [task.id]
            await link.give(task)
            reply, back = await link.reply(has=some)
            assert (reply.id, back) == (task.id, LARGE)
            link.cut()
        assert agent.tasks.worker.begun.qsize() == 1  # done once


@scripted
async def test_a_task_goes_on_while_the_connection_is_lost_which_is_said_once(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.may.clear()
        link = await server.link()
        task = a_task()
        await link.give(task)
        await agent.tasks.worker.begun.get()
        server.welcome = False
        link.cut()
        for _ in range(2):  # not welcome is not back
            (link := await asyncio.wait_for(server.links.get(), SECONDS)).cut()
        server.welcome = True
        link = await server.link()
        agent.tasks.worker.may.set()
        await until(lambda: agent.tasks.store.reply_is_there(task.id), "it is done")
        await link.give(task)
        assert (await link.reply())[1] == b"content"
        assert count(agent, "is lost") == count(agent, "The server is back") == 1
        assert not any("Trying again" in line for line in agent.said)


@scripted
async def test_what_the_server_wants_no_more_or_nobody_waits_for_ends_and_is_forgotten(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.may.clear()
        link = await server.link()
        cancelled, over, old = a_task(), a_task(seconds=0.1), a_task()
        for task, end in ((cancelled, {"cancel": {"id": cancelled.id}}), (over, None), (old, {"run": a_run(id=8)})):
            await link.give(task)
            assert await agent.tasks.worker.begun.get() == task.id
            if end is not None:
                await link.say(**end)
            await until(lambda task=task: task.id in agent.tasks.worker.ended, "the work ends")
            await until(lambda task=task: not list(agent.tasks.store.folder.glob(f"{task.id}*")), "its files go")


@scripted
async def test_a_task_without_an_answer_is_an_error_with_the_reason(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        agent.tasks.worker.answer = lambda content: None
        agent.tasks.worker.why = "was ended by SIGKILL (out of memory?)"
        link = await server.link()
        await link.give(a_task())
        reply, _ = await link.reply()
        assert reply.error.reason == "The process that worked on it was ended by SIGKILL (out of memory?)."
        assert count(agent, "A task was not answered") == 1

        async def breaks(*_):
            raise OSError(12, "Cannot allocate memory")

        agent.tasks.worker.do = breaks
        await link.give(a_task())
        reply, _ = await link.reply()
        assert "could not be started (Cannot allocate memory)" in reply.error.reason


@scripted
async def test_replies_that_no_server_asks_for_lock_nobody_out_and_do_not_gather(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        for _ in range(4):
            link = await server.link()
            for _ in range(MOST_TASKS - 4):
                await link.give(a_task())
                await link.reply()  # and never Received
            link.cut()
        link = await server.link()
        await link.say(ping={})
        await link.hear("pong")
        assert len(list(agent.tasks.store.folder.glob("*.content"))) <= 4
        assert count(agent, "more tasks") == 0


@scripted
async def test_a_content_that_a_power_cut_spoilt_is_not_worked_on(tmp_path):
    task = a_task(b"whole")
    store = TaskStore(tmp_path / "tasks")
    store.keep(task, 3, 0)
    store.content(task.id).write_bytes(b"")
    async with WireServer() as server, device(server, tmp_path):
        link = await server.link()
        assert link.hello.holds == [task.id]
        bare = a_task(b"whole", id=task.id)
        bare.content.ClearField("data")
        await link.give(bare)
        link = await server.link()  # it comes again, to be sent all of it
        assert link.hello.holds == []
        await link.give(task)
        assert (await link.reply())[1] == b"whole"


# --- a server that is somebody else's --------------------------------------------------------------------------------

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
    "a task of another content": [
        {"run": a_run()},
        {"task": a_task(Content(size=5, sha256=bytes(32), data=b"other"))},
    ],
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


# --- code of other releases ------------------------------------------------------------------------------------------

OTHER = {"client/app.py": b"app = None\n", "RELEASE": b"bouquet-fl 9\n"}


@scripted
async def test_code_that_the_owner_trusts_is_fetched_once_also_after_a_restart(tmp_path):
    code, bundle = digest_of(OTHER), archive({**OTHER, "RELEASE": OTHER["RELEASE"]})
    run = a_run(code=code, bundle=content_of(bundle))
    trust = CodeTrust(hashes=frozenset({code}))
    async with WireServer() as server:
        async with device(server, tmp_path, trust=trust) as agent:
            link = await server.link()
            await link.give(a_task(), run=run)
            await link.send(code, bundle)
            await link.reply()
            (folder,) = agent.tasks.worker.codes
            assert (folder / "client" / "app.py").read_bytes() == OTHER["client/app.py"]
        for spoilt in (False, True):
            async with device(server, tmp_path, trust=trust) as agent:
                link = await server.link()
                if spoilt:
                    (folder / "client" / "app.py").write_bytes(b"evil")
                (folder / "client" / "__pycache__").mkdir(exist_ok=True)
                (folder / "client" / "__pycache__" / "app.pyc").write_bytes(b"of Python's own")
                await link.give(a_task(), run=run)
                if spoilt:
                    await link.send(code, bundle)
                await link.reply()
                assert agent.tasks.worker.codes == [folder]
        async with device(server, tmp_path) as agent:  # whose owner trusts it no more
            link = await server.link()
            await link.give(a_task(), run=run)
            reply, _ = await link.reply()
            assert f"--trust-app {code}" in reply.error.reason
            assert count(agent, "Refused to run the server's code.") == 1


@scripted
async def test_a_bundle_of_another_digest_is_refused_and_nothing_of_it_stays(tmp_path):
    code, bundle = digest_of(OTHER), archive({**OTHER, "client/app.py": b"evil"})
    async with WireServer() as server, device(server, tmp_path, trust=CodeTrust(hashes=frozenset({code}))) as agent:
        link = await server.link()
        await link.give(a_task(), run=a_run(code=code, bundle=content_of(bundle)))
        await link.send(code, bundle)
        reply, _ = await link.reply()
        assert "its files are others than its digest says" in reply.error.reason
        assert agent.tasks.worker.begun.empty()
        assert not [file for file in (tmp_path / "code").rglob("*") if file.is_file()]


# --- the owner's word, keys, and the way out -------------------------------------------------------------------------


@scripted
async def test_the_owners_conditions_hold_before_anything_of_a_task_is_asked_for(tmp_path):
    when = tmp_path / "when.toml"
    when.write_text('[when]\nhours = "00:00-00:01"\n')
    async with WireServer() as server, device(server, tmp_path, node_config={WHEN: str(when)}) as agent:
        agent.tasks._watch.now = lambda: datetime(2026, 1, 1, 12, 0)
        link = await server.link()
        for _ in range(2):
            await link.give(task := a_task(LARGE))
            said = await link.hear("not_now", "credit")
            assert (said.id, 3600 <= said.seconds <= 12 * 3600 + 60) == (task.id, True)
        assert count(agent, "The owner's conditions: ") == 1
        await link.give(query := a_task(type="query.identify"))
        assert (await link.reply())[0].id == query.id  # who it is, is no work
        when.write_text("[when]\n")
        await link.give(task, LARGE)
        assert (await link.reply())[1] == LARGE
        assert not list(agent.tasks.store.folder.glob("*.part"))


@scripted
async def test_a_renewed_certificate_is_used_next_and_one_that_the_owner_copies_wins(tmp_path):
    keys = tmp_path / "keys"
    init_keys(keys, ["127.0.0.1"])
    own, others = (add_device(keys, name, days=30) for name in ("pi", "other"))
    files = {"authority": own / "ca.crt", "certificate": own / "device.crt", "private_key": own / "device.key"}
    first = files["certificate"].read_bytes()
    renew_device(keys, "pi", days=90)
    second = (keys / "registered" / "pi.crt").read_bytes()
    second = second[: second.index(b"-----END") + 26]
    files["certificate"].write_bytes(first)

    def shown(link):
        return link.context.auth_context()["x509_pem_cert"][0].strip()

    async with WireServer(keys) as server, device(server, tmp_path / "state", **files) as agent:
        link = await server.link()
        assert shown(link) == first.strip()
        for wrong in (b"no certificate", (others / "device.crt").read_bytes()):
            await link.say(certificate={"pem": wrong})
        await link.say(certificate={"pem": second})
        await until(lambda: count(agent, "The server sent a new certificate") == 1, "it is taken")
        assert count(agent, "is not taken") == 2
        link.cut()
        link = await server.link()
        assert shown(link) == second.strip()
        renew_device(keys, "pi", days=60 + 60)  # which writes the owner's copy here, too
        link.cut()
        assert shown(await server.link()) == files["certificate"].read_bytes().strip() != second.strip()


@scripted
async def test_why_a_device_is_not_taken_is_said_once_also_after_it_was_in(tmp_path):
    async with WireServer() as server, device(server, tmp_path) as agent:
        link = await server.link()
        link.cut()
        server.welcome = False
        for _ in range(3):
            link = await asyncio.wait_for(server.links.get(), SECONDS)
            await link.say(refused={"code": Refused.NOT_REGISTERED, "text": "\x1b[31m"})
            await asyncio.wait_for(link.over.wait(), SECONDS)
        assert count(agent, "its certificate is not registered there") == 1
        server.welcome = True
        await server.link()
        await until(lambda: count(agent, "The server is back") == 1, "it is in again")


def test_memory_is_not_taken_by_the_number_of_tasks(tmp_path):
    """16 tasks with a content inside, of which none is kept in memory."""

    async def run():
        async with WireServer() as server, device(server, tmp_path) as agent:
            agent.tasks.worker.may.clear()
            link = await server.link()
            for _ in range(MOST_TASKS):
                await link.give(a_task(os.urandom(120_000)))
            await link.say(ping={})
            await link.hear("pong")
            assert sum(task.ByteSize() for task in agent.tasks._tasks.values()) < 5000

    asyncio.run(run())
