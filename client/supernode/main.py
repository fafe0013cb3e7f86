"""A SuperNode that asks its owner's `AppTrust` before it takes an app; `client.supernode.prefork` runs it in place of
``flower-supernode``.

The check is in `client.supernode.app_check`. Beside it, this program speaks gRPC with the server
(`client.supernode.fleet_connection`), and waits in its own way (`client.supernode.polling`).
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from client.owner.watch import Watch
from client.supernode.app_check import guard
from client.supernode.not_now import heed
from client.supernode.polling import Executor, wait_well
from client.supernode.process import keep_what_is_in_hand, without_database
from client.supernode.refusals import CANNOT_START
from client.trust.policy import AppTrust
from common.errors import BouquetError
from common.system.flower_backoff import pull_soon


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


def parse(arguments: list[str]) -> tuple[AppTrust, Watch | None, list[str]]:
    """Our own options (`AppTrust`, and `Watch`), then ``--`` and the arguments of ``flower-supernode``."""
    parser = argparse.ArgumentParser(prog="client.supernode.main")
    parser.add_argument("--trust-app", action="append", default=[])
    parser.add_argument("--trust-any-app", action="store_true")
    parser.add_argument("--allow-model", action="append", default=[])
    parser.add_argument("--allow-data", action="append", default=[])
    parser.add_argument("--trust-signer", action="append", default=[])
    parser.add_argument("--rollout", type=Path)
    parser.add_argument("--when", type=Path, nargs=2, metavar=("FILE", "STATE_DIR"))
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
    return trust, Watch(*own.when) if own.when else None, arguments[border + 1 :]


def run(trust: AppTrust, watch: Watch | None, supernode_arguments: list[str], executor: Executor) -> None:
    """Run SuperNode in this process until it ends, guarded; ``executor`` is what runs its messages."""
    without_database()
    keep_what_is_in_hand()
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from client.supernode.fleet_connection import fleet_connection

    start_client_internal.http_request_response = fleet_connection  # type: ignore[assignment]
    try:
        guard(trust, start_client_internal)
        if watch is not None:
            heed(watch, start_client_internal)
        wait_well(start_client_internal, executor)
    except BouquetError as error:
        sys.exit(f"{CANNOT_START}{error}")
    pull_soon()
    end_once(start_client_internal)
    sys.argv = ["flower-supernode", *supernode_arguments]
    flower_supernode()
