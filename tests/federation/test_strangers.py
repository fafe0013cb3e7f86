"""What strangers send to the port of a server while a run goes on, which does not notice.

They have no certificate, or one that was removed, which gets through the handshake as far as HTTP/2, and come from many
addresses.
"""

import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from benchmarks.storm import ATTACKS, HALF_OPEN, Strangers
from bouquet.common.system.ports import free_port
from bouquet.keys.store import add_device, remove_device
from bouquet.server.run.stop import ask_to_stop
from bouquet.server.service.connections import STRANGERS, Refusals

pytestmark = pytest.mark.federation

ROUNDS = 100_000  # until it is stopped
OPEN_FILES = 2000  # of the server, hard
HELD = 800  # connections that stay as they are
TIMES = 1.5  # the attackers' part of the server's memory


def most_memory(pid):
    """Of a process, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_strangers_end_no_run_and_take_neither_memory_nor_a_devices_place(wired, commands, monkeypatch):
    page = free_port()
    start = commands.start

    def with_few_files(log, *arguments):
        process = start(log, *arguments, "--web", f"127.0.0.1:{page}")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (OPEN_FILES // 2, OPEN_FILES))
        return process

    def further_rounds(number=3):
        wanted = commands.rounds("runs/wired") + number
        commands.wait_for(lambda: commands.rounds("runs/wired") >= wanted)

    monkeypatch.setattr(commands, "start", with_few_files)
    run = wired(rounds=ROUNDS, grace=600)
    former = commands.folder / "former"
    shutil.copytree(add_device(commands.folder / "keys", "former"), former)
    remove_device(commands.folder / "keys", "former")
    strangers, began = Strangers(commands.port, former), time.monotonic()
    run.answer({})
    further_rounds()
    honest, files = most_memory(run.server.pid), open_files(run.server.pid)
    try:
        for thread in strangers.threads:
            thread.start()
        strangers.hold(HELD // 4, page)
        strangers.hold(HELD // 2)
        strangers.hold(HELD // 4, begin=HALF_OPEN)
        commands.wait_for(lambda: len(strangers.done) == len(ATTACKS))
        further_rounds(20)  # while all of it is held open
        commands.wait_for(lambda: open_files(run.server.pid) < files + STRANGERS + HELD // 4)
        # A device whose connection breaks meanwhile is back.
        run.devices["garden-pi"].call.cancel()
        further_rounds()
        most = most_memory(run.server.pid)
    finally:
        strangers.leave()
    ask_to_stop(run.folder)
    lines = run.end()
    assert {(line["replies"], *line["failed"]) for line in lines} == {(2,)}
    assert most < TIMES * honest, (most, honest)
    log = commands.log("server")
    assert "is refused: its certificate" in log
    assert log.count("refused") <= (Refusals.LINES_A_MINUTE + 1) * (2 + (time.monotonic() - began) // 60)
    assert "Traceback" not in log
    assert "ssl_transport" not in log  # nor a line of each of them
