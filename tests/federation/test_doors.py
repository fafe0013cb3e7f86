"""What somebody without a certificate does to a server's door while a run goes on, which does not notice."""

import contextlib
import resource
import socket
import ssl
import threading
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port
from bouquet.server.run.stop import ask_to_stop

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]

ROUNDS = 100_000  # until it is stopped
OPEN_FILES = 600  # of the server, hard
IDLE = 300
RECONNECTS = 500
TIMES = 1.5  # the attackers' part of the server's memory
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def most_memory(pid):
    """Of a process, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def further_rounds(commands, number=3):
    """Wait for so many more rounds."""
    wanted = commands.rounds("runs/wired") + number
    commands.wait_for(lambda: commands.rounds("runs/wired") >= wanted)


class Stranger:
    """Somebody on the network, who has no certificate, or one of an authority of his own."""

    def __init__(self, port):
        self.address = ("127.0.0.1", port)
        self.held = []
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.context.set_alpn_protocols(["h2"])

    def idle(self, number, port=None, begin=b""):
        """Connections that say nothing more than this."""
        for _ in range(number):
            with contextlib.suppress(OSError):
                self.held.append(socket.create_connection(("127.0.0.1", port or self.address[1]), timeout=10))
                self.held[-1].sendall(begin)

    def storm(self, number):
        """Connections one after another: half of them get as far as TLS, and flood it."""
        for count in range(number):
            with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=10) as plain:
                if count % 2:
                    with self.context.wrap_socket(plain) as secured:
                        secured.sendall(PREFACE + bytes(16_384))

    def leave(self):
        """Close what he holds open."""
        for one in self.held:
            one.close()


def test_without_a_certificate_nobody_ends_a_run_or_takes_its_servers_memory(wired, commands, monkeypatch):
    page = free_port()
    start = commands.start

    def with_few_files(log, *arguments):
        process = start(log, *arguments, "--web", f"127.0.0.1:{page}")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (OPEN_FILES // 2, OPEN_FILES))
        return process

    monkeypatch.setattr(commands, "start", with_few_files)
    run = wired(rounds=ROUNDS)
    stranger = Stranger(commands.port)
    run.answer({})
    further_rounds(commands)
    honest = most_memory(run.server.pid)
    half_open = b"\x16\x03\x01\x02\x00\x01"  # the first bytes of a ClientHello
    attack = threading.Thread(target=stranger.storm, args=(RECONNECTS,))
    attack.start()
    stranger.idle(IDLE // 3, page)
    stranger.idle(IDLE // 3)
    stranger.idle(IDLE // 3, begin=half_open)
    further_rounds(commands)  # while all of it is held open
    attack.join(300)
    # A device whose connection breaks meanwhile is back.
    device = run.devices["garden-pi"]
    device.call.cancel()
    further_rounds(commands)
    most = most_memory(run.server.pid)
    ask_to_stop(run.folder)
    lines = run.end()
    stranger.leave()
    assert {(line["replies"], *line["failed"]) for line in lines} == {(2,)}
    assert most < TIMES * honest
