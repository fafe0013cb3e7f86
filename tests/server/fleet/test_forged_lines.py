"""What SuperLink prints is in part what strangers say: no line of it ends the reading, none but its own counts."""

import base64
import contextlib
import io
import os
import sys
from types import SimpleNamespace

import grpc
import pytest
from flwr.supercore.error import ApiErrorCode, FlowerError, rpc_error_translator
from flwr.supercore.logger import console_handler

from bouquet.federation.run import OneKeyTwice
from common.system.process_group import LONGEST_LINE, ProcessGroup

KEY = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(bytes(range(120))) + b"-----END PUBLIC KEY-----\n"
AWAY = "[ApiError:2004] Attempted to register SuperNode with public key: {}, "
AWAY += "exception: SuperNode with node ID 7 could not"


def own_line(monkeypatch, key):
    """What Flower itself logs when it turns a node away."""
    output = io.StringIO()
    monkeypatch.setattr(console_handler, "stream", output)

    def abort(*_):
        raise grpc.RpcError

    context = SimpleNamespace(abort=abort, code=lambda: None)
    with contextlib.suppress(grpc.RpcError), rpc_error_translator(context, "/flwr.proto.Fleet/ActivateNode"):
        raise FlowerError(
            ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED,
            f"Attempted to register SuperNode with public key: {key!r}, "
            "exception: SuperNode with node ID 18446744073709551615 could not be activated.",
        )
    return output.getvalue().rstrip("\n").encode()


FORGED = [
    AWAY.format("b'x', [1], b''").encode(),  # a list is no key of a dictionary
    AWAY.format("b''" + "+b''" * 20_000).encode(),  # deeper than Python may go
    AWAY.format("b'" + "(" * 5000 + "'").encode(),
    b"INFO: " + AWAY.format(repr(KEY)).encode() + b" be activated.",  # as somebody's word within another line
    b"\xff\xfe\x00\x80 no text \x1b[2J\x1b]0;title\x07 \xe2\x80\xa8 \xc2\x9b31m",
    b"[ApiError:2004] " * 4000 + b" public key: b'" * 4000,
    b"x" * 5_000_000,
]


@pytest.fixture
def superlink(tmp_path):
    """Reads what a program prints as SuperLink's output is read: the keys that were turned away, lines, and the log."""

    def read(*printed):
        (tmp_path / "output").write_bytes(b"".join(printed))
        refused, lines = [], []
        watcher = OneKeyTwice(tmp_path, lambda line: None)
        watcher.twins = SimpleNamespace(refused=lambda key, now: refused.append({key: now}))
        code = "import shutil, sys; shutil.copyfileobj(open(sys.argv[1], 'rb'), sys.stdout.buffer)"

        def on_line(line):
            lines.append(line)
            watcher.on_line(line)

        with ProcessGroup() as group:
            argv = [sys.executable, "-c", code, str(tmp_path / "output")]
            group.start("SuperLink", argv, os.environ, tmp_path / "log", on_line).wait(300)
        return [key for found in refused for key in found], lines, (tmp_path / "log").read_text()

    return read


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
def test_a_forged_line_neither_counts_nor_ends_the_reading(superlink, monkeypatch, forged):
    real = own_line(monkeypatch, KEY)
    keys, lines, log = superlink(forged, b"\n", real, b"\n", b"the end")
    assert keys == [KEY]
    assert lines[-1] == "the end"
    assert "the end" in log
    assert max(map(len, lines)) <= LONGEST_LINE
    assert not set(log) & set("\x00\x07\x1b\x80\x9b\u2028")


def test_nor_does_a_line_without_an_end_or_a_reader_that_fails(superlink, monkeypatch, capsys):
    keys, lines, _ = superlink(own_line(monkeypatch, KEY), b"\n", b"\0" * 20_000_000)
    assert keys == [KEY]
    assert sum(map(len, lines)) < 2 * LONGEST_LINE
    said = []

    def stumbling(line):
        said.append(line)
        raise KeyError(line)

    with ProcessGroup() as group:
        group.start("one", [sys.executable, "-c", "print(1); print(2)"], os.environ, on_line=stumbling).wait(60)
    assert said == ["1", "2"]
    assert "KeyError" in capsys.readouterr().err
