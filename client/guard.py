"""A SuperNode that asks its owner's `AppTrust` before it takes an app; `client.warm` runs it in place of
``flower-supernode``.

Flower 1.39 can check apps by signatures of its Hub only (``--trusted-entities``). Its SuperNode receives a bundle in
one function, stores it there, and has other programs unpack and run what is stored; so the check is put around that
one function, before anything is stored. A refusal is a line in the device's log and an error reply to the server.
Beside that, this program says what Flower leaves unsaid when no log is wanted: the node's id, and why a server that
had admitted the device turned it away.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import inspect
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from client.device_log import connection_watcher, say
from client.endings import CANNOT_START, TURNED_AWAY
from client.lean import without_database
from client.trust import AppRefused, AppTrust
from client.waiting import Executor, find_server_again, status_of, wait_well
from common.errors import BouquetError
from common.pulling import pull_soon

EXPECTED = {"state", "object_store", "receive", "get_run", "get_fab"}


def guard(trust: AppTrust, supernode: Any) -> None:
    """Put the checks into ``flwr.supernode.start_client_internal``.

    Raises `BouquetError` where that is not as in Flower 1.39: a check that is passed by would be worse than none.
    """
    original = getattr(supernode, "_pull_and_store_message", None)
    if original is None or not set(inspect.signature(original).parameters) >= EXPECTED:
        raise BouquetError(
            "This release of Flower receives apps in another way than 1.39, so that they cannot be checked; install "
            "flwr>=1.39,<1.40."
        )

    accepted: dict[str, int] = {}
    refused: dict[str, Any] = {}  # the last one: the server asks again, and that is not to cost the app each time

    def again(state: Any, run_id: int) -> None:
        """Check the app of a run that goes on when a newer release has run since."""
        run = state.get_run(run_id) if trust.signers else None
        if run is not None and accepted.get(run.fab_hash) != trust.newest_serial:
            trust.check_app(state.get_fab(run.fab_hash).content)
            accepted[run.fab_hash] = trust.newest_serial

    def pull_and_store_message(**given: Any) -> int | None:
        received: list[Any] = []
        runs: dict[int, Any] = {}

        def receive() -> Any:
            pulled = given["receive"]()
            received.extend(pulled[:1] if pulled else [])
            if pulled:
                again(given["state"], pulled[0].metadata.run_id)
            return pulled

        def get_run(run_id: int) -> Any:
            runs[run_id] = given["get_run"](run_id)
            return runs[run_id]

        def get_fab(fab_hash: str, run_id: int) -> Any:
            fab = refused.get(fab_hash) or given["get_fab"](fab_hash, run_id)
            refused.clear()
            refused[fab_hash] = fab
            check(trust, runs[run_id], fab)
            refused.clear()
            accepted[fab.hash_str] = trust.newest_serial
            return fab

        try:
            stored: int | None = original(**given | {"receive": receive, "get_run": get_run, "get_fab": get_fab})
            return stored
        except AppRefused as error:
            message = received[-1]
            say(f"Refused to run the server's app. {error}")
            reply = supernode.Message(supernode.Error(supernode.ErrorCode.INVALID_FAB, str(error)), reply_to=message)
            supernode._insert_message(reply, given["state"], given["object_store"])
            run_id: int = message.metadata.run_id
            return run_id

    supernode._pull_and_store_message = pull_and_store_message


def check(trust: AppTrust, run: Any, fab: Any) -> None:
    """Raise `AppRefused` unless the bundle is trusted and is what will be run.

    Flower finds the unpacked app again by what the server calls it, so those names must be the bundle's own.
    """
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.common.config import get_fused_config_from_fab
    from flwr.supercore.constant import TaskType

    news = trust.check_app(fab.content)
    digest = hashlib.sha256(fab.content).hexdigest()
    if (fab.hash_str, run.fab_hash) != (digest, digest) or (run.fab_id, run.fab_version) != get_fab_metadata(
        fab.content
    ):
        raise AppRefused("The server calls an app by names and a hash that are not its own.")
    if run.primary_task_type == TaskType.AGENT_APP:
        raise AppRefused("The server asks for an agent; a device of Bouquet's runs ClientApps only.")
    trust.check_config(get_fused_config_from_fab(fab.content, run))
    if news:
        say(news)


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
    parser = argparse.ArgumentParser(prog="client.guard")
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
