"""A gate that is killed when SuperLink has given out a message and nobody else knows of it."""

import contextlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import grpc
import pytest

from server.gate.superlink_api import Refused
from tests.helpers.waiting_for import eventually

KILLED_BEFORE_IT_NOTES = """
import os, signal
from server.gate import authorization, main
authorization.Authorization.note = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main.main()
"""


def test_a_message_that_a_killed_gate_had_in_hand_is_given_again(federation):
    (mine,) = federation.push(federation.honest)
    server, options = federation.server, federation.server.options
    server.stop()
    arguments = ["--listen", options.listen, "--superlink", options.superlink, "--kept", str(options.kept)]
    command = [sys.executable, "-c", KILLED_BEFORE_IT_NOTES, *arguments, "--told", options.told, "--registered-only"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as gate:
        eventually(lambda: looks(federation.honest) is None and gate.poll() is not None, "it is killed")
        assert gate.returncode == -signal.SIGKILL
    server.start()
    found = []
    eventually(lambda: found.append(looks(federation.honest)) or found[-1] is not None, "the gate is back")
    assert found[-1].messages_list[0].metadata.message_id == mine


def test_where_nobody_reads_its_log_any_more_a_call_is_answered_all_the_same(federation, monkeypatch):
    """The server was killed, and SuperLink with it: what a device asks is to be asked again, and no reply is lost."""

    async def post(*_):
        raise Refused(grpc.StatusCode.UNAVAILABLE, "SuperLink does not answer", "it is gone")

    def write(_):
        raise BrokenPipeError

    monkeypatch.setattr(federation.server.gate._relay._superlink, "post", post)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    with pytest.raises(grpc.RpcError) as error:
        federation.honest.given()
    monkeypatch.undo()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def looks(device):
    """What a device gets; None where there is no gate."""
    with contextlib.suppress(grpc.RpcError):
        return device.given()
