"""The live page's connections: so many and no more, and none that does nothing."""

import socket
import threading

import httpx
import pytest
import uvicorn

from bouquet.common.system.ports import free_port
from bouquet.monitor import page_connections
from bouquet.monitor.page_connections import BriefConnection, listeners
from tests.helpers.waiting_for import eventually

SECONDS = 60


@pytest.fixture
def page():
    """A server behind these limits; the address that it listens on."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    port = free_port()
    config = uvicorn.Config(app, http=BriefConnection, ws="none", loop="asyncio", lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=(listeners("127.0.0.1", port),))
    thread.start()
    eventually(lambda: server.started, "the page is there")
    yield "127.0.0.1", port
    server.should_exit = True
    thread.join()


def closes(connection):
    connection.settimeout(SECONDS)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def answers(page):
    return httpx.get("http://{}:{}".format(*page), timeout=SECONDS).text == "ok"


def test_what_is_too_much_is_closed_and_there_is_room_again(page, monkeypatch):
    monkeypatch.setattr(page_connections, "MOST_CONNECTIONS", 5)
    idle = [socket.create_connection(page) for _ in range(40)]
    assert all(closes(connection) for connection in idle[5:])
    for connection in idle:
        connection.close()

    def free():
        try:
            return answers(page)
        except httpx.TransportError:
            return False

    eventually(free, "there is room again")


REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-Slow: ", REQUEST + b"GET / HT"])
def test_who_makes_no_request_is_sent_away(page, monkeypatch, sent):
    monkeypatch.setattr(page_connections, "REQUEST_SECONDS", 0.5)
    with socket.create_connection(page) as connection:
        connection.sendall(sent)
        assert closes(connection)
    monkeypatch.setattr(page_connections, "REQUEST_SECONDS", SECONDS)
    assert answers(page)
