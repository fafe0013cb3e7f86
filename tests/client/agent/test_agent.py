"""The agent beside a server that a test writes: tasks, transfers, cuts, hostile frames, the owner's word, keys."""

import asyncio
import os
from datetime import datetime

from bouquet.client.agent.store import TaskStore
from bouquet.client.agent.tasks import MOST_TASKS
from bouquet.client.node_config import WHEN
from bouquet.client.trust.policy import CodeTrust
from bouquet.common.trust.code import archive, digest_of, own_code
from bouquet.common.wire.fleet_pb2 import Refused
from bouquet.common.wire.transfer import content_of
from bouquet.keys.store import add_device, init_keys, renew_device
from tests.helpers.agent_and_server import LARGE, count, device, scripted, until
from tests.helpers.wire_server import SECONDS, WireServer, a_run, a_task


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
        cancelled, over, old = a_task(), a_task(), a_task()
        soon = {"task": a_task(id=over.id, seconds=0.1)}  # it comes again, and its time is nearly over
        for task, end in ((cancelled, {"cancel": {"id": cancelled.id}}), (over, soon), (old, {"run": a_run(id=8)})):
            await link.give(task)
            assert await agent.tasks.worker.begun.get() == task.id
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
        await (await asyncio.wait_for(server.links.get(), SECONDS)).say(welcome={"major": 2})
        await until(lambda: count(agent, "speaks version 2 of the protocol, this device version 1") == 1, "it is named")
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
