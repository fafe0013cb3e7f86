"""The agent, its trainer and its tasks as real processes: how each dies, and what becomes of the others."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bouquet.client.agent.main import command
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.store import TaskStore
from bouquet.client.agent.worker import Worker
from bouquet.client.trust.policy import CodeTrust
from bouquet.common.trust.code import archive, code_files, digest_of
from bouquet.common.wire.transfer import content_of
from tests.helpers.agent_and_server import LARGE, scripted, until
from tests.helpers.descendants import descendants, is_gone
from tests.helpers.wire_server import SECONDS, WireServer, a_run, a_task

# What a task does, by its content. It stands for `bouquet.client.agent.task`, PyTorch and all.
TASK = """
import json, os, signal, sys, time
def answer(store, identifier):
    store.file(7, "room.run").write_text(json.dumps({"arrays": 2_000_000, "beside": 2_000_000, "tensors": 100}))
    if not store.content(identifier).exists(): return
    content = store.content(identifier).read_bytes()
    what = content[:5]
    if what == b"exit3": sys.exit(3)
    if what == b"raise": raise RuntimeError("broken \\x1b[31m task")
    if what == b"kill9": os.kill(os.getpid(), signal.SIGKILL)
    if what == b"stays":
        (store.folder / "pid").write_text(str(os.getpid())); time.sleep(600)
    store.succeed(identifier, content)
"""
TRAINER = f"""
import socket, sys, types
task = types.ModuleType("bouquet.client.agent.task"); exec({TASK!r}, task.__dict__)
sys.modules["bouquet.client.agent.task"] = task
from bouquet.client.agent import trainer
trainer.become("bouquet-train", 9)
if "nofork" in sys.argv:
    def fork(): raise OSError(11, "Resource temporarily unavailable")
    trainer.os.fork = fork
trainer.Trainer(socket.socket(fileno=int(sys.argv[1]))).run()
"""
ONE_TASK = TASK + textwrap.dedent("""
    from pathlib import Path
    from bouquet.client.agent.store import TaskStore
    from bouquet.common.system.processes import end_with_parent
    end_with_parent(signal.SIGKILL, int(sys.argv[3]))
    answer(TaskStore(Path(sys.argv[1])), sys.argv[2])
""")


# --- the trainer -----------------------------------------------------------------------------------------------------


class Bench:
    """A worker whose trainer does `TASK`."""

    def __init__(self, folder, *more):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-c", TRAINER, str(theirs.fileno()), *more]
        self.process = subprocess.Popen(
            argv, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        theirs.close()
        self.store, self.said = TaskStore(folder), []
        self.worker = Worker(folder, self.said.append, cold=False, trainer=ours.detach())
        self.number = 0

    def ask(self, content):
        self.number += 1
        self.last = f"{self.number:032x}"
        self.store.content(self.last).write_bytes(content)
        return self.worker.do(self.last, None, False)

    async def close(self):
        await self.worker.close()
        await asyncio.to_thread(self.process.wait, SECONDS)
        return self.process.stdout.read().decode()


@scripted
async def test_however_a_task_ends_its_reason_is_told_and_the_next_one_is_done(tmp_path):
    bench = Bench(tmp_path)
    for content, why in (
        (b"exit3", "ended with status 1 before it had answered"),
        (b"raise", "ended with status 1 before it had answered"),
        (b"kill9", "was ended by SIGKILL (out of memory?)"),
    ):
        assert await bench.ask(content) == why
        assert await bench.ask(b"fine") == ""
        assert bench.store.reply_file(bench.last).read_bytes() == b"fine"
    threads = list(Path(f"/proc/{bench.process.pid}/task").iterdir())
    assert len(threads) == 1
    assert "broken" in await bench.close()


@scripted
async def test_a_fork_that_fails_is_told_as_such(tmp_path):
    bench = Bench(tmp_path, "nofork")
    assert await bench.ask(b"fine") == "could not be started (Resource temporarily unavailable)"
    await bench.close()


@scripted
async def test_a_task_that_is_stopped_ends_and_its_end_is_not_taken_for_the_next_ones(tmp_path):
    bench = Bench(tmp_path)
    for _ in range(3):
        (tmp_path / "pid").unlink(missing_ok=True)
        doing = asyncio.ensure_future(bench.ask(b"stays"))
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it works")
        pid = int((tmp_path / "pid").read_text())
        doing.cancel()
        bench.number -= 1  # the server sends the same one again
        assert await bench.ask(b"fine") == ""
        await until(lambda pid=pid: is_gone(pid), "the stopped one is gone")
    await bench.close()


@scripted
async def test_the_trainer_and_its_tasks_end_with_the_agents_end_of_the_link(tmp_path):
    bench = Bench(tmp_path)
    doing = asyncio.ensure_future(bench.ask(b"stays"))
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it works")
    pid = int((tmp_path / "pid").read_text())
    doing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await doing
    await bench.close()
    await until(lambda: is_gone(pid), "the task is gone")


def test_a_task_whose_agent_ended_before_it_could_ask_for_its_end_ends(tmp_path):
    argv = [sys.executable, "-m", "bouquet.client.agent.task", str(tmp_path), "0" * 32, "0"]
    assert subprocess.run(argv, capture_output=True).returncode == -signal.SIGKILL


# --- the agent -------------------------------------------------------------------------------------------------------


class Process:
    """A real agent, whose tasks are fresh processes of code that the server has: `ONE_TASK`."""

    FILES = code_files() | {"bouquet/client/agent/task.py": ONE_TASK.encode()}
    CODE, BUNDLE = digest_of(FILES), archive(FILES)
    RUN = a_run(code=CODE, bundle=content_of(BUNDLE))

    def __init__(self, server, folder, **changes):
        changes = {"cold": True, "trust": CodeTrust(hashes=frozenset({self.CODE}))} | changes
        self.settings = DeviceSettings(server.address, folder, insecure=True, **changes)
        self.log = folder.parent / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command(self.settings), stdout=log, stderr=log, start_new_session=True)
        self.pid = self.process.pid

    async def ended(self):
        return await asyncio.to_thread(self.process.wait, SECONDS)

    @property
    def said(self):
        return self.log.read_text()


@contextlib.asynccontextmanager
async def agent(server, folder, **changes):
    found = Process(server, folder, **changes)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


@pytest.mark.parametrize("step", ["content", "work", "reply", "upload", "delivered"])
def test_an_agent_that_is_killed_at_any_step_goes_on_there_when_it_is_started_again(tmp_path, step):
    task, stays = a_task(LARGE), a_task(b"stays")
    state = tmp_path / "state"

    async def run():
        async with WireServer() as server:
            async with agent(server, state) as first:
                link = await server.link()
                await link.say(run=Process.RUN)
                await link.send(Process.CODE, Process.BUNDLE)
                if step == "work":
                    await link.say(task=stays)
                    await until(lambda: list(state.glob("tasks/pid")), "it works")
                    await until(lambda: (state / "tasks" / "pid").read_text(), "it works")
                await link.say(task=task)
                await link.send(task.id, LARGE, upto=800_000 if step == "content" else None)
                if step == "content":
                    (part,) = state.glob("tasks/*.part")
                    await until(lambda: part.stat().st_size == 800_000, "it has what was sent")
                elif step in ("upload", "delivered"):
                    _, some = await link.reply(upto=300_000 if step == "upload" else None)
                elif step == "reply":
                    await link.hear("reply")
                os.kill(first.pid, signal.SIGKILL)
                if step == "work":
                    pid = int((state / "tasks" / "pid").read_text())
                    await until(lambda: is_gone(pid), "the task ends with its agent")
            async with agent(server, state):
                link = await server.link()
                held = {"content": 0, "work": 2}.get(step, 1)
                if step != "work":  # there the large one may have come to its end, or not
                    assert len(link.hello.holds) == held
                await link.say(run=Process.RUN)
                await link.say(task=task)
                if task.id not in link.hello.holds:
                    assert await link.send(task.id, LARGE) >= (800_000 if step == "content" else 0)
                reply, back = await link.reply(has=some if step == "upload" else b"")
                assert (reply.id, back) == (task.id, LARGE)
                await link.say(received={"id": task.id})
                await until(lambda: not list(state.glob(f"tasks/{task.id}*")), "it is forgotten")

    asyncio.run(run())


def test_nobody_else_reads_what_a_device_keeps_also_what_was_there_before(tmp_path):
    state = tmp_path / "state"
    (state / "data").mkdir(parents=True)
    (state / "data" / "prepared.bin").touch()
    (state / "model.safetensors").touch()
    for path in (state, *state.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

    async def run():
        async with WireServer() as server, agent(server, state):
            link = await server.link()
            await link.say(run=Process.RUN)
            await link.send(Process.CODE, Process.BUNDLE)
            await link.say(task=(task := a_task(LARGE)))
            await link.send(task.id, LARGE)
            await link.reply()
            found = {path: path.stat().st_mode & 0o077 for path in (state, *state.iterdir(), *state.glob("tasks/*"))}
            assert len(found) > 8
            assert not any(found.values()), found

    old = os.umask(0o022)
    try:
        asyncio.run(run())
    finally:
        os.umask(old)


def test_the_signals_a_second_agent_and_the_ports(tmp_path):
    async def run():
        async with WireServer() as server:
            for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
                async with agent(server, tmp_path / "state") as first:
                    link = await server.link()
                    second = await asyncio.to_thread(
                        subprocess.run, command(first.settings), capture_output=True, text=True
                    )
                    assert second.returncode == 2
                    assert f"is in use by process {first.pid}. It is another client's" in second.stderr
                    await link.say(run=Process.RUN)
                    await link.send(Process.CODE, Process.BUNDLE) if number == signal.SIGTERM else None
                    await link.say(task=a_task(b"stays"))
                    await until(lambda: descendants(first.pid), "it works")
                    tasks = descendants(first.pid)
                    listening = {
                        line.split()[9]
                        for table in ("tcp", "tcp6")
                        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
                        if line.split()[3] == "0A"
                    }
                    for pid in (first.pid, *tasks):
                        with contextlib.suppress(OSError):
                            links = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]
                            assert not [one for one in links if one.removeprefix("socket:[").rstrip("]") in listening]
                    os.killpg(first.pid, number) if number == signal.SIGINT else os.kill(first.pid, number)
                    await link.hear("goodbye")
                    assert await first.ended() == status
                    await until(lambda tasks=tasks: all(map(is_gone, tasks)), "its tasks are gone")
                    assert "Traceback" not in first.said
                    assert "is lost" not in first.said

    asyncio.run(run())


def test_the_real_trainer_answers_and_when_it_is_killed_another_one_does(tmp_path):
    """With PyTorch: who the device is, asked of one trainer, of none, and of the next."""

    def trainers(pid):
        return [one for one in descendants(pid) if Path(f"/proc/{one}/comm").read_text().strip() == "bouquet-train"]

    async def run():
        state = tmp_path / "state"
        config = {"name": "pi", "state-dir": str(state), "data": str(tmp_path)}
        async with WireServer() as server, agent(server, state, cold=False, node_config=config) as device:
            link = await server.link()
            query = {"type": "query.identify"}
            await link.give(first := a_task(b"", **query))
            reply, _ = await link.reply()
            assert (reply.id, reply.HasField("content")) == (first.id, True), reply
            (warm,) = trainers(device.pid)
            assert len(list(Path(f"/proc/{warm}/task").iterdir())) == 1
            os.kill(warm, signal.SIGSTOP)
            await link.give(in_hand := a_task(b"", **query))
            await until(lambda: list(state.glob(f"tasks/{in_hand.id}.json")), "it has it")
            await link.say(ping={})
            await link.hear("pong")
            os.kill(warm, signal.SIGKILL)
            reply, _ = await link.reply()
            assert reply.id == in_hand.id
            assert reply.error.reason.startswith(
                "The process that worked on it is gone with the trainer, which was"
            ) or (
                reply.HasField("content")  # it was not asked yet
            )
            await link.give(after := a_task(b"", **query))
            reply, _ = await link.reply()
            assert (reply.id, reply.HasField("content")) == (after.id, True), reply
            rest = descendants(device.pid)
            os.kill(device.pid, signal.SIGKILL)
            await until(lambda: all(map(is_gone, rest)), "all of it ends with the agent")

    asyncio.run(run())


def test_the_agent_imports_nothing_large(tmp_path):
    code = textwrap.dedent("""
        import asyncio, sys, json
        import bouquet.client.agent.main
        from bouquet.client.agent.agent import Agent
        from bouquet.client.agent.settings import DeviceSettings
        from pathlib import Path
        settings = DeviceSettings.from_json(sys.argv[1])
        async def run():
            agent = Agent(settings, print)
            agent._hello()
        asyncio.run(run())
        large = {"torch", "flwr", "numpy", "pydantic", "cryptography", "PIL", "typer", "rich"}
        print(json.dumps(sorted(large & {name.partition(".")[0] for name in sys.modules})))
    """)
    settings = DeviceSettings("a:1", tmp_path, insecure=True).to_json()
    done = subprocess.run([sys.executable, "-P", "-c", code, settings], capture_output=True, text=True)
    assert json.loads(done.stdout or "null") == [], done.stderr
