"""A thousand strangers at a server's port while a fleet works: the devices' rounds and the server's memory.

    python -m benchmarks.storm --devices 20 --seconds 120

Strangers come from 16 addresses of loopback, with no certificate or a removed device's. Most hold connections open,
half of them in the middle of TLS; the others, a thread for each of `ATTACKS`, reset
streams, leave answers unread, give no window, send headers or pings without end. Printed, for each storm and the calm
before it: seconds a round (median), replies that were missing, the most memory of the server so far, and the cores
that it used.
Server and devices are on one processor, the strangers on another, so that what these compute slows nobody down.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import socket
import ssl
import threading
import time
from statistics import median

from benchmarks.fleet_size import federation
from benchmarks.links import written_lines
from benchmarks.processes import cpu_seconds, most_resident
from bouquet.common.system.processes import ending_in_order
from bouquet.common.wire.transfer import METHOD
from bouquet.keys.store import add_device, remove_device

ENDLESS = 10**6  # rounds
STRANGERS = 1000
PAIRS = 4  # of a calm and a storm
WARM = 10  # rounds that are not counted
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 18)]
MOST_BYTES = 2**22  # of one attack; most are cut off before
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120, help="of the storms, and of the calm between them")
    parser.set_defaults(set=["server.straggler_grace=1800"], processes=1)
    options = parser.parse_args()
    theirs, ours = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {ours})
    with ending_in_order(), federation("scripted", options.devices, ENDLESS, options) as running:
        record, keys = running.folder / "run", running.folder / "keys"
        running.wait(lambda: len(written_lines(record)) >= WARM, "the first rounds")
        shutil.copytree(add_device(keys, "former"), running.folder / "former")
        remove_device(keys, "former")
        port = int(running.server.args[running.server.args.index("--port") + 1])
        os.sched_setaffinity(0, {theirs})
        for _ in range(PAIRS):  # one after the other, so that both see what else the machine does
            said = {"calm": _rounds_in(running, record, options)}
            strangers = Strangers(port, running.folder / "former")
            try:
                for thread in strangers.threads:
                    thread.start()
                held = STRANGERS - len(strangers.threads)
                strangers.hold(held // 2)
                strangers.hold(held // 2, begin=HALF_OPEN)
                said["storm"] = _rounds_in(running, record, options)
            finally:
                strangers.leave()
            print("; ".join(f"{name}: {told}" for name, told in said.items()), flush=True)


def _rounds_in(running, record, options):
    """What is to be said of the rounds that end within so many seconds."""
    pid, began = running.server.pid, time.monotonic()
    first, cpu = len(written_lines(record)), cpu_seconds(pid)
    until = began + options.seconds / PAIRS
    running.wait(lambda: time.monotonic() > until and len(written_lines(record)) > first, "rounds")
    cores = (cpu_seconds(pid) - cpu) / (time.monotonic() - began)
    lines = written_lines(record)[first:]
    missing = sum(options.devices - line["replies"] for line in lines)
    seconds = median(line["seconds"] for line in lines)
    told = f"{missing} replies missing, {most_resident(pid) / 1e6:.0f} MB at most, {cores:.2f} cores"
    return f"{len(lines)} rounds of {seconds:.3g} s, {told}"


if __name__ == "__main__":
    main()
