"""The owner's conditions, asked before SuperNode takes a message that is to be worked on.

A message is announced before its model is sent: one that is refused here has cost no more than that. The refusal is a
line in the device's log, where it is another than the last, and an error reply that says when to ask again. Questions
of who the device is are answered at any time.
"""

from __future__ import annotations

from typing import Any

from client.device_log import say
from client.owner.watch import Watch
from common.protocol.error_replies import NOT_NOW_ERROR, NotNow, not_now_text

WORK = ("train", "evaluate")  # types of messages, and what their names begin with


def heed(watch: Watch, supernode: Any) -> None:
    """Put the question into ``flwr.supernode.start_client_internal``; `app_check.guard` has looked at it before."""
    original = supernode._pull_and_store_message
    said = ""

    def pull_and_store_message(**given: Any) -> int | None:
        nonlocal said
        received: list[Any] = []

        def receive() -> Any:
            pulled = given["receive"]()
            if pulled and pulled[0].metadata.message_type.partition(".")[0] in WORK:
                received.append(pulled[0])
                if (later := watch.refusal()) is not None:
                    raise later
            return pulled

        try:
            stored: int | None = original(**given | {"receive": receive})
        except NotNow as later:
            message = received[-1]
            if str(later) != said:
                said = str(later)
                say(f"The owner's conditions: {said}. Rounds go on without this device until then.")
            error = supernode.Error(NOT_NOW_ERROR, not_now_text(later))
            reply = supernode.Message(error, reply_to=message)
            supernode._insert_message(reply, given["state"], given["object_store"])
            run_id: int = message.metadata.run_id
            return run_id
        if received:
            said = ""
        return stored

    supernode._pull_and_store_message = pull_and_store_message
