"""What strangers do to a server's door while a run goes on, which does not notice.

They have no certificate, or one that was removed, which gets through the handshake as far as HTTP/2, and come from many
addresses.
"""

import contextlib
import itertools
import os
import resource
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port
from bouquet.common.wire.transfer import METHOD
from bouquet.keys.store import add_device, remove_device
from bouquet.server.run.stop import ask_to_stop
from bouquet.server.service.connections import STRANGERS

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]

ROUNDS = 100_000  # until it is stopped
OPEN_FILES = 2000  # of the server, hard
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 18)]
HELD = 800  # connections that stay as they are
MOST_BYTES = 2**22  # of one attack; most are cut off before
TIMES = 1.5  # the attackers' part of the server's memory
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HALF_OPEN = b"\x16\x03\x01\x02\x00\x01"  # the first bytes of a ClientHello
DATA, HEADERS, RESET, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9


def frame(kind, stream=0, payload=b"", flags=0):
    """One of HTTP/2's."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name, value):
    """One that is in no table."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(
    header(name, value)
    for name, value in {
        b":method": b"POST",
        b":scheme": b"https",
        b":path": METHOD.encode(),
        b":authority": b"server",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }.items()
)


def calls(more):
    """Call after call, and of each what ``more`` makes of its number; no answer is ever read."""
    return (frame(HEADERS, number, CALL, flags=4) + more(number) for number in itertools.count(1, 2))


ATTACKS = (
    lambda: itertools.repeat(bytes(16_384)),  # no HTTP/2 at all
    lambda: calls(lambda number: frame(RESET, number, bytes(4))),
    lambda: calls(lambda number: frame(DATA, number, bytes(1000), flags=1)),
    lambda: itertools.chain(
        [frame(SETTINGS, payload=b"\0\4" + bytes(4))],  # a window of nothing
        calls(lambda number: frame(DATA, number, b"\0\0\0\0\2\x0a\0", flags=1)),
    ),
    lambda: itertools.chain(
        [frame(SETTINGS, flags=1) + frame(HEADERS, 1, CALL)],
        itertools.repeat(frame(CONTINUATION, 1, 1000 * header(b"a", b"b"))),
    ),
    lambda: itertools.repeat(frame(PING, payload=bytes(8))),
)


def most_memory(pid):
    """Of a process, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Strangers:
    """They attack the port until they leave; ``former`` has the keys of a device that was removed."""

    def __init__(self, port, former):
        self.port, self.held, self.over, self.done = port, [], threading.Event(), set()
        self.contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(3)]
        for context in self.contexts:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
        for context in self.contexts[1:]:
            context.load_cert_chain(former / "device.crt", former / "device.key")
        self.threads = [threading.Thread(target=self.storm, args=(attack,)) for attack in ATTACKS]

    def connect(self, number, port=None):
        where = ADDRESSES[number % len(ADDRESSES)], 0
        return socket.create_connection(("127.0.0.1", port or self.port), timeout=10, source_address=where)

    def hold(self, number, port=None, begin=b""):
        """Connections that say nothing more than this."""
        for count in range(number):
            with contextlib.suppress(OSError):
                self.held.append(self.connect(count, port))
                self.held[-1].sendall(begin)

    def storm(self, attack):
        """Connection after connection, each with one of these attacks, with and without a certificate."""
        for count in itertools.count():
            if self.over.is_set():
                return
            context = self.contexts[count % len(self.contexts)]
            with contextlib.suppress(OSError), self.connect(count) as plain, context.wrap_socket(plain) as secured:
                secured.sendall(PREFACE + frame(SETTINGS))
                sent = 0
                for data in attack():
                    secured.sendall(data)
                    sent += len(data)
                    if sent > MOST_BYTES or self.over.is_set():
                        break
            self.done.add(attack)

    def leave(self):
        self.over.set()
        for one in self.held:
            one.close()
        for thread in self.threads:
            if thread.is_alive():
                thread.join(120)


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
    run = wired(rounds=ROUNDS, grace=200)
    former = commands.folder / "former"
    shutil.copytree(add_device(commands.folder / "keys", "former"), former)
    remove_device(commands.folder / "keys", "former")
    strangers = Strangers(commands.port, former)
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
    assert log.count("refused") < 30
    assert "Traceback" not in log
    assert "ssl_transport" not in log  # nor a line of each of them
