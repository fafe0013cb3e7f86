"""A device's call on its way to SuperLink: who makes it, whether it may, how large it may be, and what comes back.

A call is answered from its headers where they are enough, and its body is read only for a registered key, which must
be the key that the message speaks for. What is refused is said in the log, a few lines a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
from typing import Any

import grpc
from flwr.proto import fleet_pb2
from flwr.supercore.error import ApiErrorCode
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from server.gate.authorization import Authorization
from server.gate.identity import Identity, check_speaks_for_itself, node_of, not_too_old
from server.gate.limits import BODY_SECONDS, OBJECTS_AS_A_CALL, Pace, Refusals, Turns, peer_named
from server.gate.superlink_api import Refused, SuperLinkApi, flower_error, headers_of, path_of, refusal
from server.gate.waiting import Waiting

FLEET = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"]
PREFIX = f"/{FLEET.full_name}/"
REQUESTS: dict[str, type[Message]] = {method.name: GetMessageClass(method.input_type) for method in FLEET.methods}
HOLD_HEADER = "bouquet-hold"  # for how many seconds a device would have its look for a message held
NOT_HERE = {  # where devices are registered by the server
    "RegisterNode": ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED,
    "UnregisterNode": ApiErrorCode.FLEET_SUPERNODE_UNREGISTRATION_DISABLED,
}
EMPTY = fleet_pb2.PullMessagesResponse().SerializeToString()
CODE = grpc.StatusCode


class Relay(grpc.GenericRpcHandler):
    """Handles ``/flwr.proto.Fleet/*`` and nothing else."""

    def __init__(
        self,
        superlink: SuperLinkApi,
        identity: Identity,
        authorization: Authorization,
        waiting: Waiting,
        refusals: Refusals,
        registered_only: bool,
    ) -> None:
        self._superlink = superlink
        self._identity = identity
        self._authorization = authorization
        self._waiting = waiting
        self._refusals = refusals
        self._not_here = NOT_HERE if registered_only else {}
        self.turns = Turns()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """What answers a call; None where there is no such method."""
        prefix, _, method = details.method.rpartition("/")
        if f"{prefix}/" != PREFIX or method not in REQUESTS:
            return None
        # A stream, so that the body is not read before it is asked for.
        return grpc.stream_unary_rpc_method_handler(partial(self._answer, method, details.invocation_metadata))

    async def _answer(self, method: str, metadata: Any, _: Any, context: Any) -> bytes:
        turn = contextlib.ExitStack()
        # Not over before the answer is sent, or the connection gone: an answer that nobody reads takes memory.
        context.add_done_callback(lambda _: turn.close())
        try:
            peer = peer_named(context.peer())
            known = turn.enter_context(self.turns.of_all(peer, peer in self._identity.proven))
            headers = dict(metadata)
            caller = await self._identity.caller(method, headers, peer)
            known()
            if method in self._not_here:
                raise Refused(*flower_error(self._not_here[method]), "devices are registered by the server")
            pace = turn.enter_context(self.turns.of(caller.key))
            pace.newest = headers
            await asyncio.sleep(pace.pause())
            async with pace.in_hand:
                request, body = await _read(REQUESTS[method], context)
            check_speaks_for_itself(caller, request)
            pace.count(self._authorization.check(request) / OBJECTS_AS_A_CALL)
            ask = partial(self._ask, method, request, body, headers, pace)
            if method != "PullMessages":
                return await ask()
            node = request.node.node_id
            seconds = _seconds(headers.get(HOLD_HEADER, "0")) if self.turns.may_wait(caller.peer) else 0.0
            # Shielded: what SuperLink gives is noted, even where the device has just left.
            look = partial(self._look, node, ask)
            return await self._waiting.first(node, seconds, lambda: asyncio.shield(look())) or EMPTY
        except Refused as refused:
            if refused.why is not None:
                self._refusals.add(context.peer(), method, refused.why)
            # Not by abort(), whose exception and the call hold one another, and with them the body, until Python looks.
            context.set_code(refused.code)
            context.set_details(refused.details)
            return b""

    async def _look(self, node: int, ask: Any) -> bytes | None:
        """A message for a node, of which it may then have all."""
        answer: bytes = await ask()
        return answer if self._authorization.note(node, answer) else None

    async def _ask(self, method: str, request: Message, body: bytes, headers: dict[str, Any], pace: Pace) -> bytes:
        async with pace.in_hand:
            signed = headers_of(not_too_old(headers, pace.newest).items())
            answer = await self._superlink.post(path_of(method), body, signed)
        if answer.status == 200:
            return answer.body
        if answer.status in (403, 404) and (node := node_of(request)) is not None:  # its run is over
            self._authorization.forget(node)
        raise refusal(answer)


async def _read(kind: type[Message], context: Any) -> tuple[Message, bytes]:
    """A call's one message; not before here does gRPC receive it, whose own iterator would keep it for long."""
    try:
        body = await asyncio.wait_for(context.read(), BODY_SECONDS)
        if body is grpc.aio.EOF:
            raise Refused(CODE.INVALID_ARGUMENT, "A call without a message")
        return kind.FromString(body), body
    except TimeoutError:
        why = "Its body did not come in time"
        raise Refused(CODE.DEADLINE_EXCEEDED, why, why) from None
    except DecodeError:
        raise Refused(CODE.INVALID_ARGUMENT, "It cannot be read", "it cannot be read") from None


def _seconds(text: str | bytes) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0
