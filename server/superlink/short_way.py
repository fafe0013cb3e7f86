"""A short way through SuperLink's HTTP API for the calls of a round.

Flower's own way to a handler has ten layers around it and half a dozen changes of thread, which is most of what a call
costs. Here it is one thread, with the same checks before the same handler and the same answers; all other calls go
Flower's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.dependencies.task import authenticate_task
from flwr.supercore.dependencies.version import VersionDependency
from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES, ProtobufTranslationMiddleware
from flwr.supercore.routers.runtime.router import (
    confirm_message_received,
    get_nodes,
    pull_messages,
    pull_object,
    push_messages,
    push_object,
)
from flwr.superlink import main as superlink
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.routers.fleet.router import (
    fleet_confirm_message_received,
    fleet_pull_messages,
    fleet_pull_object,
    fleet_push_messages,
    fleet_push_object,
    fleet_send_node_heartbeat,
)
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from server.superlink.grid import REPLY_BYTES
from server.superlink.link_state import LinkState

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
OF_DEVICES = (
    fleet_confirm_message_received,
    fleet_pull_messages,
    fleet_pull_object,
    fleet_push_messages,
    fleet_push_object,
    fleet_send_node_heartbeat,
)
OF_THE_SERVERAPP = (confirm_message_received, get_nodes, pull_messages, pull_object, push_messages, push_object)


class ShortWay:
    """An ASGI application: Flower's, ``app``, but for the calls of a round."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        named: dict[str, Callable[..., Any]] = {f"{RUNTIME}{one.__name__}": one for one in OF_THE_SERVERAPP}
        named |= {f"{FLEET}{one.__name__.removeprefix('fleet_')}": one for one in OF_DEVICES}
        self._endpoints = {path.replace("_", "-"): endpoint for path, endpoint in named.items()}
        self._check_version = VersionDependency(
            component_name="SuperLink", connection_name="Caller <-> SuperLink Runtime API"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._endpoints:
            await self.app(scope, receive, send)
            return
        request = Request({**scope, "app": self.app, "state": {}}, receive)

        async def answer(_: Request) -> Response:
            ProtobufTranslationMiddleware._check_request_media_type(request)
            content = await run_in_threadpool(self._answer, request, await request.body())
            return Response(content, media_type=PROTOBUF_MEDIA_TYPE)

        response = await http_error_translator(request, answer)
        await response(scope, receive, send)

    def _answer(self, request: Request, body: bytes) -> bytes:
        path, state = request.scope["path"], self.app.state.linkstate_factory.state()
        message = ProtobufTranslationMiddleware._parse_request(body, PROTOBUF_REQUEST_TYPES["POST", path])
        given: dict[str, Any] = {"request": message, "state": state}
        if path.startswith(FLEET):
            request.state.protobuf_request = message
            node_auth.authenticate_node(request)
        else:
            self._check_version(request)
            given["task"] = authenticate_task(request, request.headers.get(TASK_TOKEN_HEADER), state)
            given["handlers"] = self.app.state.runtime_handlers
            if isinstance(state, LinkState) and (reply_bytes := request.headers.get(REPLY_BYTES)):
                state.expect(given["task"].run_id, int(reply_bytes))
        answer: bytes = self._endpoints[path](**given).SerializeToString()
        return answer


def install() -> None:
    """Have the SuperLink that this process runs from now on go it."""
    create_app = superlink.create_app
    superlink.create_app = lambda *arguments, **named: ShortWay(create_app(*arguments, **named))  # type: ignore
