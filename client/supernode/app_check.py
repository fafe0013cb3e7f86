"""The check of an app before SuperNode takes it.

Flower can check apps by signatures of its Hub only (``--trusted-entities``). Its SuperNode receives a bundle in
one function, stores it there, and has other programs unpack and run what is stored; so the check is put around that
one function, before anything is stored. A refusal is a line in the device's log and an error reply to the server.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

from client.device_log import say
from client.trust.policy import AppRefused, AppTrust
from common.errors import BouquetError
from common.system.flower_release import REQUIREMENT

EXPECTED = {"state", "object_store", "receive", "get_run", "get_fab"}


def guard(trust: AppTrust, supernode: Any) -> None:
    """Put the checks into ``flwr.supernode.start_client_internal``.

    Raises `BouquetError` where that is not as in the Flower that Bouquet is tested with: a check that is passed by
    would be worse than none.
    """
    original = getattr(supernode, "_pull_and_store_message", None)
    if original is None or not set(inspect.signature(original).parameters) >= EXPECTED:
        raise BouquetError(
            "This release of Flower receives apps in a way that was not tested, so that they cannot be checked; "
            f"install {REQUIREMENT}."
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
