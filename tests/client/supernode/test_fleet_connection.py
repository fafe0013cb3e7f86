"""A device's connection over gRPC, with a server of gRPC's own that answers as a test has it."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.proto import fleet_pb2, fleet_pb2_grpc, heartbeat_pb2, message_pb2
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.run import RunNotRunningException

from client.supernode import fleet_connection as connection
from client.supernode.fleet_connection import PatientCalls, fleet_connection
from common.protocol.error_replies import NO_ROOM
from common.system.flower_backoff import PAUSES

OLD_FLEET = Path(__file__).with_name("fleet_api_of_1_39.txt")


class Refused(grpc.RpcError):
    """As gRPC's errors are."""

    def __init__(self, name: str, details: str = "why") -> None:
        self.name, self.why = name, details

    def details(self) -> str:
        return self.why

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode[self.name]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which nobody waits for; of those that are drawn the most that they can be."""
    waited: list[float] = []
    monkeypatch.setattr(connection, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(connection, "random", SimpleNamespace(uniform=lambda least, most: most))
    return waited


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sent: list[int] = []
    monkeypatch.setattr(connection.os, "kill", lambda pid, number: sent.append(number))
    return sent


def calls(*errors: BaseException) -> tuple[Any, list[Any]]:
    """A connection's calls, of which the first fail so, and what was asked."""
    left, made = list(errors), []

    def call(*args: Any, **given: Any) -> str:
        made.append((args, given))
        if left:
            raise left.pop(0)
        return "answer"

    return PatientCalls(SimpleNamespace(PullObject=call)), made


@pytest.mark.parametrize(
    ("errors", "pauses"),
    [
        ([], []),
        (["INTERNAL", "RESOURCE_EXHAUSTED"], PAUSES[:2]),
        # Of a gate that is ended with the call in hand.
        (["CANCELLED", "UNKNOWN", "UNAVAILABLE"], [0.5, PAUSES[0], 1.0]),
        (["UNAVAILABLE"] * 7, [0.5, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0]),
        (["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"], [0.5, PAUSES[0], 1.0]),
    ],
)
def test_a_call_is_made_again_until_the_server_answers(waits, errors, pauses):
    fleet, made = calls(*map(Refused, errors))
    assert fleet.PullObject("part", timeout=3) == "answer"
    assert made == [(("part",), {"timeout": 3})] * (len(errors) + 1)
    assert waits == list(pauses)


def test_where_the_server_has_no_room_that_is_what_the_log_says(waits, capsys):
    fleet, _ = calls(*[Refused("UNAVAILABLE", NO_ROOM)] * 3)
    assert fleet.PullObject("part") == "answer"
    assert capsys.readouterr().out.splitlines() == [f"The reply waits: {NO_ROOM}.", "The server has room again."]
    assert waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("errors", "made_calls"),
    [
        ([Refused("INTERNAL")] * 9, len(PAUSES) + 1),
        ([Refused("RESOURCE_EXHAUSTED")] * 9, len(PAUSES) + 1),
        ([Refused("UNKNOWN")] * 9, len(PAUSES) + 1),
        ([Refused("INTERNAL"), Refused("NOT_FOUND")], 2),
        ([Refused("UNAVAILABLE", "Ssl handshake failed: certificate")], 1),
    ],
)
def test_what_asking_again_does_not_mend_is_raised(waits, errors, made_calls):
    fleet, made = calls(*errors)
    with pytest.raises(Refused):
        fleet.PullObject("part")
    assert len(made) == made_calls


def test_a_run_that_is_over_is_what_flower_calls_it(waits):
    fleet, _ = calls(Refused("PERMISSION_DENIED"))
    with pytest.raises(RunNotRunningException):
        fleet.PullObject("part")


def test_a_device_that_is_turned_away_says_why_and_ends(waits, signals, capsys):
    fleet, made = calls(Refused("UNAUTHENTICATED", "Invalid node ID"))
    with pytest.raises(Refused):
        fleet.PullObject("part")
    assert capsys.readouterr().out.strip().endswith("The server turned this device away: Invalid node ID")
    assert signals == [signal.SIGINT]
    assert len(made) == 1


@pytest.mark.parametrize("name", ["UNAVAILABLE", "CANCELLED", "INTERNAL", "UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_at_the_end_nothing_is_asked_twice(waits, signals, name):
    fleet, made = calls(Refused(name))
    fleet.closing = True
    with pytest.raises(Refused):
        fleet.PullObject("part")
    assert (len(made), waits, signals) == (1, [], [])


class Fleet(fleet_pb2_grpc.FleetServicer):
    """A server that notes who asked for what, with which metadata and how much time."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any, dict[str, Any], float | None]] = []
        self.answers: dict[str, list[Any]] = {}
        self.plain = {
            "RegisterNode": fleet_pb2.RegisterNodeFleetResponse(),
            "ActivateNode": fleet_pb2.ActivateNodeResponse(node_id=7),
            "SendNodeHeartbeat": heartbeat_pb2.SendNodeHeartbeatResponse(success=True),
            "PullMessages": fleet_pb2.PullMessagesResponse(),
            "PullObject": message_pb2.PullObjectResponse(object_found=True, object_available=True, object_content=b"x"),
            "DeactivateNode": fleet_pb2.DeactivateNodeResponse(),
            "UnregisterNode": fleet_pb2.UnregisterNodeFleetResponse(),
        }
        for name in self.plain:
            setattr(self, name, lambda request, context, name=name: self.answer(name, request, context))

    def answer(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        left = context.time_remaining()
        self.heard.append((name, request, dict(context.invocation_metadata()), left))
        if self.answers.get(name):
            context.abort(*self.answers[name].pop(0))
        return self.plain[name]

    def names(self) -> list[str]:
        return [name for name, *_ in self.heard if name != "SendNodeHeartbeat"]


@pytest.fixture
def server() -> Iterator[tuple[Fleet, str]]:
    fleet, server = Fleet(), grpc.server(ThreadPoolExecutor(4))
    fleet_pb2_grpc.add_FleetServicer_to_server(fleet, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield fleet, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_device_registers_looks_patiently_and_says_goodbye(server):
    fleet, address = server
    with fleet_connection(address, True) as (node_id, receive, _send, _run, _fab, pull_object, _push, _confirm):
        assert node_id == 7
        assert receive() is None
        assert pull_object(3, "a") == b"x"
    assert fleet.names() == [
        "RegisterNode", "ActivateNode", "PullMessages", "PullObject", "DeactivateNode", "UnregisterNode"
    ]  # fmt: skip
    keys = {metadata["flwr-public-key-bin"] for _, _, metadata, _ in fleet.heard}
    assert keys == {next(request for name, request, *_ in fleet.heard if name == "RegisterNode").public_key}
    for _, _, metadata, _ in fleet.heard:
        signed = metadata["flwr-timestamp"].encode(), metadata["flwr-signature-bin"]
        assert verify_signature(bytes_to_public_key(keys.copy().pop()), *signed)
    _, _, metadata, left = next(call for call in fleet.heard if call[0] == "PullMessages")
    assert metadata["bouquet-hold"] == "25"  # how long the server may hold it, which the device waits for and more
    assert 25 < left < 60


def test_a_server_that_does_not_take_a_device_is_heard_out(server, monkeypatch):
    fleet, address = server
    ends: list[str] = []
    # Flower's ends the process for good some seconds later.
    monkeypatch.setattr(connection, "flwr_exit", lambda code, message: ends.append(message))
    reason = '{"code": 2004, "public_message": "No such key.", "public_details": null}'
    fleet.answers["ActivateNode"] = [(grpc.StatusCode.FAILED_PRECONDITION, reason)]
    with pytest.raises(RuntimeError), fleet_connection(address, True):
        raise AssertionError
    assert len(ends) == 1
    assert ends[0].endswith("[code: 2004] No such key.")
    assert fleet.names() == ["RegisterNode", "ActivateNode"]


def test_what_a_device_of_1_39_sends_and_reads_is_all_there_still():
    """Each call of the Fleet API, and each field of what goes either way, as Flower 1.39 has it: number, kind, list."""
    said: set[str] = set()

    def walk(message: Any) -> None:
        for field in message.fields:
            kind = field.message_type or field.enum_type
            line = f"{message.full_name} {field.name} {field.number} {kind.full_name if kind else field.type}"
            line += " list" if field.is_repeated else ""
            if line not in said:
                said.add(line)
                if field.message_type:
                    walk(field.message_type)

    for method in fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods:
        said.add(f"{method.name} {method.input_type.full_name} {method.output_type.full_name}")
        walk(method.input_type)
        walk(method.output_type)
    assert set(OLD_FLEET.read_text().splitlines()) <= said
