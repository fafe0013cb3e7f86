"""A SuperNode that asks its owner's `AppTrust` before it takes an app; `client.supernode.prefork` runs it in place of
``flower-supernode``.

The check is in `client.supernode.app_check`. Beside it, this program says what Flower leaves unsaid when no log is
wanted: the node's id, and why a server that had admitted the device turned it away.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from client.device_log import connection_watcher, say
from client.supernode.app_check import guard
from client.supernode.polling import Executor, wait_well
from client.supernode.process import without_database
from client.supernode.reconnect import find_server_again, status_of
from client.supernode.refusals import CANNOT_START, TURNED_AWAY
from client.trust.policy import AppTrust
from common.errors import BouquetError
from common.system.flower_backoff import pull_soon


def speak(supernode: Any) -> None:
    """Have the connection say, whatever the log level, the node's id and why it ends."""
    from flwr.supercore.logger import console_handler

    connect, retries = supernode._init_connection, supernode._make_fleet_connection_retry_invoker

    @contextlib.contextmanager
    def init_connection(*args: Any, **given: Any) -> Iterator[Any]:
        with connect(*args, **given) as connection:
            if console_handler.level > logging.INFO:
                print(f"Connected. SuperNode ID: {connection[0]}", flush=True)
            yield connection

    def retry_invoker(*args: Any, **given: Any) -> Any:
        invoker = retries(*args, **given)
        invoker.on_backoff, invoker.on_success = connection_watcher(say)
        give_up: Callable[[Exception], bool] = invoker.should_giveup

        def should_giveup(error: Any) -> bool:
            if error.code().name == "UNAUTHENTICATED":
                say(f"{TURNED_AWAY}{error.details()}")
            return give_up(error)

        invoker.should_giveup = should_giveup
        return invoker

    def thread_ended(about: threading.ExceptHookArgs) -> None:
        # The heartbeat's thread ends by the same refusal, with a page of traceback.
        if status_of(about.exc_value) != "UNAUTHENTICATED":
            threading.__excepthook__(about)

    threading.excepthook = thread_ended
    supernode._init_connection, supernode._make_fleet_connection_retry_invoker = init_connection, retry_invoker


def end_once(supernode: Any) -> None:
    """Have a second signal not cut off the goodbye that the first began: the server would think it connected.

    A terminal or ``timeout`` signals a whole group, and whoever started this process passes the signal on. Flower goes
    back to the handlers that were there before its own.
    """
    register = supernode.register_signal_handlers

    def register_signal_handlers(*args: Any, **given: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        register(*args, **given)

    supernode.register_signal_handlers = register_signal_handlers


def parse(arguments: list[str]) -> tuple[AppTrust, list[str]]:
    """Our own options (`AppTrust`), then ``--`` and the arguments of ``flower-supernode``."""
    parser = argparse.ArgumentParser(prog="client.supernode.main")
    parser.add_argument("--trust-app", action="append", default=[])
    parser.add_argument("--trust-any-app", action="store_true")
    parser.add_argument("--allow-model", action="append", default=[])
    parser.add_argument("--allow-data", action="append", default=[])
    parser.add_argument("--trust-signer", action="append", default=[])
    parser.add_argument("--rollout", type=Path)
    border = arguments.index("--")
    own = parser.parse_args(arguments[:border])
    try:
        trust = AppTrust(
            frozenset(own.trust_app),
            own.trust_any_app,
            frozenset(own.allow_model),
            frozenset(own.allow_data),
            signers=frozenset(own.trust_signer),
            memory=own.rollout,
        )
    except BouquetError as error:
        sys.exit(f"{CANNOT_START}{error}")
    return trust, arguments[border + 1 :]


def run(trust: AppTrust, supernode_arguments: list[str], executor: Executor) -> None:
    """Run SuperNode in this process until it ends, guarded; ``executor`` is what runs its messages."""
    without_database()
    import grpc
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    try:
        guard(trust, start_client_internal)
        wait_well(start_client_internal, executor)
    except BouquetError as error:
        sys.exit(f"{CANNOT_START}{error}")
    find_server_again(start_client_internal, grpc)
    pull_soon()
    speak(start_client_internal)
    end_once(start_client_internal)
    sys.argv = ["flower-supernode", *supernode_arguments]
    flower_supernode()
