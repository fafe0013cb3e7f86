"""A device's connection to the server: Flower's Fleet API over gRPC, where Flower's own speaks HTTP from 1.40 on.

`fleet_connection` stands in the place of Flower's ``http_request_response``. It waits for a server that is away for
ever, and finds it again within seconds: a round may be over in less than Flower waits. A call that the server could not
answer is made again, where Flower gives up and the round waits for the device in vain: to ask twice does no harm, for
parts go by their hashes, and a message is there until it is confirmed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app.message import remove_content_from_message
from flwr.common.constant import (
    HEARTBEAT_CALL_TIMEOUT,
    HEARTBEAT_DEFAULT_INTERVAL,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
)
from flwr.common.serde import fab_from_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, run_pb2
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.node_pb2 import Node
from flwr.supercore import log
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.exit import ExitCode, flwr_exit
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable import inflatable_protobuf_utils as parts
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.logger import console_handler
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.run import RunNotRunningException

from client.device_log import connection_watcher, say
from client.supernode.refusals import TURNED_AWAY
from common.protocol.error_replies import NO_ROOM
from common.system.flower_backoff import PAUSES

Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]

# A server that is back is found again so late at most; gRPC alone takes up to two minutes, Flower 20 s on top.
RECONNECT_SECONDS = 5.0
# While a call is open: how a device notices a server that went without a goodbye, which TCP alone does in a quarter of
# an hour. Not more often than heartbeats, or a server takes it for an attack.
KEEPALIVE_SECONDS, KEEPALIVE_ANSWER_SECONDS = 60, 20
GOODBYE_SECONDS = 5.0
SIGNAL_SECONDS = 1.0  # in which a signal to this process comes through
# The server may hold a look for a message open so long; beyond that, and what a busy one adds, it has not heard it.
HOLD_SECONDS, LATE_SECONDS = 25, 20
HOLD_HEADER = "bouquet-hold"
AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")  # the last of a server that ends with the call in hand
SERVERS_ERRORS = ("INTERNAL", "RESOURCE_EXHAUSTED", "UNKNOWN")


class Signature(grpc.UnaryUnaryClientInterceptor):
    """Signs the time of each call with the device's key, as SuperLink asks for."""

    def __init__(self, keys: Keys) -> None:
        self._private, self._public = keys[0], public_key_to_bytes(keys[1])

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        """Send a call on with its signature."""
        time_of_call = now().isoformat()
        signature = sign_message(self._private, time_of_call.encode("ascii"))
        signed = ((PUBLIC_KEY_HEADER, self._public), (TIMESTAMP_HEADER, time_of_call), (SIGNATURE_HEADER, signature))
        return continuation(details._replace(metadata=[*(details.metadata or ()), *signed]), request)


def signed_channel(address: str, keys: Keys, *, insecure: bool = False, authority: bytes | None = None) -> grpc.Channel:
    """A gRPC channel to ``host:port`` whose calls are signed with ``keys``.

    ``authority`` is the certificate (PEM) that the server's is checked against; without it the system's count.
    """
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_reconnect_backoff_ms", int(1000 * RECONNECT_SECONDS)),
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_ANSWER_SECONDS),
    ]
    channel = (
        grpc.insecure_channel(address, options)
        if insecure
        else grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options)
    )
    return grpc.intercept_channel(channel, RuntimeVersionClientInterceptor("SuperNode"), Signature(keys))


class PatientCalls:
    """The calls of the Fleet API, as a stub has them, each made until the server answers; once ``closing``, once."""

    def __init__(self, stub: FleetStub) -> None:
        self.closing = False
        self._lost, self._back = connection_watcher(say)
        for name, call in vars(stub).items():
            setattr(self, name, partial(self._made, call))

    def _made(self, call: Callable[..., Any], request: Any, **given: Any) -> Any:
        away, with_errors = itertools.chain((0.5, 1.0, 2.0), itertools.repeat(RECONNECT_SECONDS)), iter(PAUSES)
        no_room = False
        while True:
            try:
                answer = call(request, **given)
            except grpc.RpcError as error:
                if NO_ROOM in str(error.details()):
                    if not no_room:
                        say(f"The reply waits: {NO_ROOM}.")
                    no_room = True
                time.sleep(self._pause(error, away, with_errors))
            else:
                if no_room:
                    say("The server has room again.")
                self._back()
                return answer

    def _pause(self, error: Any, away: Iterator[float], with_errors: Iterator[float]) -> float:
        """How long to wait until the call is made again; raises where it is not."""
        status, details = status_of(error), str(error.details())
        if self.closing:
            raise error
        if status in AWAY and "handshake failed" not in details.lower():
            if NO_ROOM not in details:
                self._lost(error)
            return random.uniform(0.0, next(away))
        if status in SERVERS_ERRORS and (pause := next(with_errors, None)) is not None:
            return pause
        if status == "PERMISSION_DENIED":
            raise RunNotRunningException
        if status == "UNAUTHENTICATED":
            say(f"{TURNED_AWAY}{details}")
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(SIGNAL_SECONDS)
        raise error


@contextlib.contextmanager
def fleet_connection(
    server_address: str,
    insecure: bool,
    root_certificates: bytes | str | None = None,
    authentication_keys: Keys | None = None,
    _max_retries: int | None = None,
    _max_wait_time: float | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Connect to SuperLink as Flower's own connection does, with the same arguments; how often is not limited.

    Without keys the device registers itself with new ones, where the server lets it. Yields the node's id and Flower's
    functions: receive, send, get_run, get_fab, pull_object, push_object, confirm_message_received.
    """
    if isinstance(root_certificates, str):
        root_certificates = Path(root_certificates).expanduser().read_bytes()
    keys = authentication_keys or generate_key_pairs()
    public_key = public_key_to_bytes(keys[1])
    channel = signed_channel(server_address, keys, insecure=insecure, authority=root_certificates)
    fleet: Any = PatientCalls(FleetStub(channel))
    node: Node | None = None
    heartbeats = HeartbeatSender(lambda: _heartbeat(fleet, node))
    try:
        if authentication_keys is None:
            fleet.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=public_key))
        activation = fleet_pb2.ActivateNodeRequest(public_key=public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        node = Node(node_id=fleet.ActivateNode(activation).node_id)
        heartbeats.start()
        if console_handler.level > logging.INFO:  # then Flower does not say it
            print(f"Connected. SuperNode ID: {node.node_id}", flush=True)
        yield node.node_id, *_functions(fleet, node)
    except Exception as error:
        if node is None:
            flwr_exit(ExitCode.SUPERNODE_CONNECTION_ERROR, f"Failed to connect to the SuperLink.\n{_reason(error)}")
        log(logging.ERROR, error)
    finally:
        fleet.closing = True
        if node is not None:
            heartbeats.stop()
            with contextlib.suppress(grpc.RpcError):
                fleet.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node.node_id), timeout=GOODBYE_SECONDS)
                if authentication_keys is None:
                    goodbye = fleet_pb2.UnregisterNodeFleetRequest(node_id=node.node_id)
                    fleet.UnregisterNode(goodbye, timeout=GOODBYE_SECONDS)
        channel.close()


def _functions(fleet: Any, node: Node) -> tuple[Callable[..., Any], ...]:
    """What Flower's loop calls, in its order."""

    def receive() -> tuple[Any, Any] | None:
        answer = fleet.PullMessages(
            fleet_pb2.PullMessagesRequest(node=node),
            timeout=HOLD_SECONDS + LATE_SECONDS,
            metadata=((HOLD_HEADER, str(HOLD_SECONDS)),),
        )
        if not answer.messages_list:
            return None
        return message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]

    def send(message: Any, tree: Any, seconds: float) -> tuple[set[str], str]:
        bare = remove_content_from_message(message) if message.has_content() else message
        answer = fleet.PushMessages(
            fleet_pb2.PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(bare)],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )
        )
        return set(answer.objects_to_push), answer.session_id

    def get_fab(fab_hash: str, run: int) -> Any:
        return fab_from_proto(fleet.GetFab(fab_pb2.GetFabRequest(node=node, hash_str=fab_hash, run_id=run)).fab)

    def push_object(run: int, session: str, name: str, content: bytes) -> None:
        parts.make_push_object_fn_protobuf(fleet.PushObject, node, run, session)(name, content)

    return (
        receive,
        send,
        lambda run: run_from_proto(fleet.GetRun(run_pb2.GetRunRequest(node=node, run_id=run)).run),
        get_fab,
        lambda run, name: parts.make_pull_object_fn_protobuf(fleet.PullObject, node, run)(name),
        push_object,
        lambda run, name: parts.make_confirm_message_received_fn_protobuf(fleet.ConfirmMessageReceived, node, run)(
            name
        ),
    )


def _heartbeat(fleet: Any, node: Node | None) -> bool:
    request = heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
    try:
        return bool(fleet.SendNodeHeartbeat(request, timeout=HEARTBEAT_CALL_TIMEOUT).success)
    except grpc.RpcError as error:
        return status_of(error) == "UNAUTHENTICATED"  # by which the program ends; else once more


def status_of(error: Any) -> str:
    """The name of a gRPC error's status, such as UNAVAILABLE."""
    return str(error.code().name)


def _reason(error: Exception) -> str:
    """Why the server does not take the device, as `client.supernode.refusals` knows it."""
    details = error.details() if isinstance(error, grpc.RpcError) else None
    if known := FlowerError.from_json(details):
        return f"[code: {known.code}] {known.message}\n{known.public_details or ''}".strip()
    return str(details or error)
