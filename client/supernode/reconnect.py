"""Finding a server again that was away: sooner than Flower does, and also after an error of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from common.system.flower_backoff import PAUSES

# A server that is back is found again so late at most; gRPC alone takes up to two minutes, Flower 20 s on top.
RECONNECT_SECONDS = 5.0


def find_server_again(supernode: Any, grpc: Any) -> None:
    """Have SuperNode look for a server that is away every few seconds: a round may be over in less than Flower waits.

    ``grpc`` is the module that Flower opens its channel with.
    """
    make = supernode._make_fleet_connection_retry_invoker

    def retry_invoker(*args: Any, **given: Any) -> Any:
        invoker = make(*args, **given)
        invoker.wait_gen_factory = lambda: itertools.chain([0.5, 1.0, 2.0], itertools.repeat(RECONNECT_SECONDS))
        invoke = invoker.invoke
        invoker.invoke = lambda target, *values, **named: invoke(asked_again(target), *values, **named)
        return invoker

    def quicker(channel: Callable[..., Any]) -> Callable[..., Any]:
        def with_option(*args: Any, options: Sequence[tuple[str, Any]] = (), **given: Any) -> Any:
            limit = ("grpc.max_reconnect_backoff_ms", int(1000 * RECONNECT_SECONDS))
            return channel(*args, options=[*options, limit], **given)

        return with_option

    supernode._make_fleet_connection_retry_invoker = retry_invoker
    grpc.insecure_channel, grpc.secure_channel = quicker(grpc.insecure_channel), quicker(grpc.secure_channel)


def asked_again(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call to SuperLink that is made again where SuperLink had an error of its own; what else goes wrong is raised.

    Flower gives up at once: a device that could not pull a part of its message forgets the message, and the round waits
    for it in vain. To ask twice does no harm: parts go by their hashes, and a message is there until it is confirmed.
    """

    def with_pauses(*args: Any, **given: Any) -> Any:
        for pause in PAUSES:
            try:
                return call(*args, **given)
            except Exception as error:
                if status_of(error) != "INTERNAL":
                    raise
            time.sleep(pause)
        return call(*args, **given)

    return with_pauses


def status_of(error: BaseException | None) -> str:
    """The name of gRPC's status, such as UNAVAILABLE; empty where an error has none."""
    code = getattr(error, "code", None)  # a method of gRPC's errors, a number of SystemExit
    return getattr(code() if callable(code) else code, "name", "")
