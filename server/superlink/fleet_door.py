"""The door to SuperLink's Fleet API, which anybody on the network reaches: who may pass, and how much is held open.

Flower reads a whole call before it looks who sent it, and lets a device be activated by whoever knows its *public* key.
Here a call is answered from its headers where they are enough, and its body is read only for a registered key, which
must be the key that the message speaks for. What it may ask for then, `server.superlink.authorization` says. What is
refused is said in SuperLink's log, a few lines a minute.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import grpc

from common.trust.public_keys import fingerprint_of
from server.superlink import open_files
from server.superlink.authorization import Authorization

WORKERS = 1000  # calls at a time, as Flower has it
CALLS_OF_A_CONNECTION = 32  # a device has six at most
HANDSHAKE_SECONDS = 15  # from the first packet to the end of TLS and of HTTP/2's settings
IDLE_SECONDS = 120  # without a call; a device's heartbeat comes each half minute
KNOWN_SECONDS = 60.0
LINES_A_MINUTE = 6

ACTIVATE, REGISTER = "/flwr.proto.Fleet/ActivateNode", "/flwr.proto.Fleet/RegisterNode"
NO_KEY = "Missing or unreadable authentication metadata"
ANOTHERS_KEY = "The key that signs is not the key in the message"


class Refusals:
    """Says who was refused: so many lines a minute, and then how many more."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._since, self._said, self._unsaid = clock(), 0, 0

    def add(self, context: grpc.ServicerContext, method: str, why: str) -> None:
        """A call from the peer of ``context`` is refused."""
        with self._lock:
            if self._clock() - self._since >= 60.0:
                if self._unsaid:
                    self._say(f"[door] {self._unsaid} more calls were refused in the meantime.")
                self._since, self._said, self._unsaid = self._clock(), 0, 0
            if self._said >= LINES_A_MINUTE:
                self._unsaid += 1
                return
            self._said += 1
            self._say(f"[door] {method.rpartition('/')[2]} from {context.peer()} is refused: {why}.")


class KnownKeys:
    """Whether a key is registered, as ``ask`` says; what was registered a moment ago is not asked for again.

    A key that was removed meanwhile is refused further in, by Flower.
    """

    def __init__(self, ask: Callable[[bytes], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._until: dict[bytes, float] = {}

    def __call__(self, key: bytes) -> bool:
        """Whether the key, in PEM, is registered."""
        if self._until.get(key, 0.0) > self._clock():
            return True
        known = self._ask(key)
        if known:
            self._until[key] = self._clock() + KNOWN_SECONDS
        return known


class Doorkeeper(grpc.ServerInterceptor):
    """The outermost interceptor of the Fleet API, around Flower's own, which checks signatures.

    ``knows`` tells whether a key is registered; None where devices register themselves.
    """

    def __init__(self, knows: Callable[[bytes], bool] | None, refusals: Refusals) -> None:
        self.knows = knows
        self.refusals = refusals
        self.authorization = Authorization()

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        """The handler of a call: what needs no body of it does without."""
        from flwr.common.constant import PUBLIC_KEY_HEADER
        from flwr.supercore.utils import get_metadata_bytes

        try:
            handler = continuation(call)
        except Exception:  # Flower's interceptor parses a key and a time, which can be anything
            return self._unread(partial(self._refuse, call.method, NO_KEY, grpc.StatusCode.UNAUTHENTICATED, NO_KEY))
        if handler is None:
            return None
        if handler.request_deserializer is None:  # what Flower's interceptors refuse has none
            return self._unread(partial(self._refused_further_in, call.method, handler.unary_unary))
        key = get_metadata_bytes(call.invocation_metadata, PUBLIC_KEY_HEADER) or b""
        return grpc.stream_unary_rpc_method_handler(
            partial(self._answer, call.method, key, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _answer(self, method: str, key: bytes, unary: Any, requests: Iterator[Any], context: Any) -> Any:
        if self.knows is not None and not self.knows(key):
            why = f"the key {fingerprint_of(key)} is not registered"
            self._refuse(method, why, *_unregistered(method), context)
        request = next(requests, None)  # not before here does gRPC receive the body
        if request is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "A call without a message")
        if (spoken_for := getattr(request, "public_key", key)) != key:
            why = f"{fingerprint_of(key)} signed for the key {fingerprint_of(spoken_for)}"
            self._refuse(method, why, grpc.StatusCode.UNAUTHENTICATED, ANOTHERS_KEY, context)
        if problem := self.authorization.problem(request):
            self._refuse(method, problem, grpc.StatusCode.PERMISSION_DENIED, problem, context)
        answer = unary(request, context)
        self.authorization.note(request, answer)
        return answer

    def _refuse(self, method: str, why: str, code: grpc.StatusCode, details: str, context: Any) -> NoReturn:
        self.refusals.add(context, method, why)
        context.abort(code, details)
        raise AssertionError  # abort raises

    def _refused_further_in(self, method: str, unary: Any, context: Any) -> Any:
        self.refusals.add(context, method, "no valid signature")
        return unary(None, context)

    @staticmethod
    def _unread(refuse: Callable[[Any], Any]) -> Any:
        return grpc.stream_unary_rpc_method_handler(lambda _, context: refuse(context))


def _unregistered(method: str) -> tuple[grpc.StatusCode, str]:
    """What Flower answers to a key that it does not know: devices tell their owners by it what to do."""
    from flwr.supercore.error import ApiErrorCode
    from flwr.supercore.error.catalog import API_ERROR_MAP

    codes = {
        ACTIVATE: ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED,
        REGISTER: ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED,
    }
    if (code := codes.get(method)) is None:
        return grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID"
    answer = API_ERROR_MAP[code]
    error = {"code": int(code), "public_message": answer.public_message, "public_details": None}
    return answer.status_code, json.dumps(error)


def fleet_server(
    message_bytes: int,
    servicer_and_add_fn: tuple[Any, Callable[[Any, grpc.Server], None]],
    server_address: str,
    certificates: tuple[bytes, bytes, bytes] | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] | None = None,
    **_: Any,
) -> grpc.Server:
    """A gRPC server for the Fleet API, not started: in place of Flower's ``generic_create_grpc_server``.

    ``message_bytes`` is the most that a call of a device may hold, ``certificates`` are the authority's, the server's
    and its key, in PEM.
    """
    from flwr.supercore import log

    servicer, add_servicer = servicer_and_add_fn
    states = servicer.state_factory
    asked = KnownKeys(lambda key: states.state().get_node_id_by_public_key(key) is not None)
    say = partial(log, logging.WARNING)
    open_files.watch(say)
    door = Doorkeeper(asked if servicer.enable_supernode_auth else None, Refusals(say))
    server = grpc.server(
        ThreadPoolExecutor(WORKERS),
        interceptors=[door, *(interceptors or ())],
        options=door_options(message_bytes),
        maximum_concurrent_rpcs=WORKERS,
    )
    add_servicer(servicer, server)
    if certificates is None:
        port = server.add_insecure_port(server_address)
    else:
        authority, certificate, key = certificates
        port = server.add_secure_port(server_address, grpc.ssl_server_credentials([(key, certificate)], authority))
    server.bound_address = f"{server_address.rpartition(':')[0]}:{port}"  # read by Flower
    return server


def door_options(message_bytes: int) -> list[tuple[str, int]]:
    """gRPC's limits: what a message may be, and how long a connection may do nothing."""
    return [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
        ("grpc.max_allowed_incoming_connections", open_files.most_connections()),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        # As Flower has them: a peer that is gone is noticed within four minutes.
        ("grpc.keepalive_time_ms", 210_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 0),
    ]


def install(message_bytes: int) -> None:
    """Have the SuperLink that this process runs from now on stand behind this door."""
    # The package has a function of the module's name.
    superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    superlink.generic_create_grpc_server = partial(fleet_server, message_bytes)  # type: ignore[attr-defined]
