"""The options that gRPC is given, by name: it says nothing of one that it does not know."""

import re
from pathlib import Path

from grpc._cython import cygrpc

from bouquet.client.agent import channel
from bouquet.server.service import connections

ROOT = Path(__file__).parents[3]
SHORTEST_CUT_OFF = 60  # seconds of silence after which routers and firewalls forget a connection


def test_grpc_knows_every_option():
    files = [file for package in ("client", "common", "server") for file in (ROOT / package).rglob("*.py")]
    named = {name for file in files for name in re.findall(r'"(grpc\.[a-z0-9_.]+)"', file.read_text())}
    library = Path(cygrpc.__file__).read_bytes()
    assert "grpc.keepalive_time_ms" in named
    assert sorted(name for name in named if f"{name}\0".encode() not in library) == []


def test_a_device_at_rest_says_something_before_a_router_forgets_it():
    options = dict(connections.server_options())
    assert channel.KEEPALIVE_SECONDS == connections.KEEPALIVE_SECONDS < SHORTEST_CUT_OFF
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < 1000 * channel.KEEPALIVE_SECONDS
