"""One task: a message, the ClientApp, and its reply, all of them files. It runs in a process that ends with it.

``python -m bouquet.client.agent.task FOLDER ID PARENT``, with the process id of the agent, is such a process; a warm
device forks it instead (`bouquet.client.agent.trainer`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from bouquet.client.agent.store import NODE_CONFIG, TaskStore
from bouquet.common.system.processes import end_with_parent


def answer(store: TaskStore, identifier: str) -> None:
    """Have the ClientApp answer a task, and leave the reply, whole, where the agent finds it."""
    # Not before: a fresh process is to end with the agent from its first moment on, and these take seconds.
    from flwr.app import Context, RecordDict

    from bouquet.client.app import app
    from bouquet.common.protocol import CONFIG, ROUND
    from bouquet.common.protocol.records import config_of
    from bouquet.common.settings.settings import AS_JSON
    from bouquet.common.wire.flower import content_bytes, instruction

    about = json.loads((store.folder / f"{identifier}.json").read_text(encoding="utf-8"))
    run_config: dict[str, bool | float | int | str] = {
        AS_JSON: store.run_file(about["run"]).read_text(encoding="utf-8")
    }
    node_config = json.loads((store.folder / NODE_CONFIG).read_text(encoding="utf-8"))
    content = store.content(identifier).read_bytes()
    where = about["run"], about["node"]
    message = instruction(content, identifier, *where, about["type"], about["group"], about["seconds"] or 1.0)
    del content
    round_ = config_of(message.content, CONFIG).get(ROUND)
    if about["type"].partition(".")[0] == "train" and isinstance(round_, int):
        store.begin(identifier, round_)
    reply = app(message, Context(*where, node_config, RecordDict(), run_config))
    if reply.has_error():
        store.fail(identifier, reply.error.code, str(reply.error.reason))
        return
    store.succeed(identifier, content_bytes(reply.content))


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL, int(sys.argv[3]))
    answer(TaskStore(Path(sys.argv[1])), sys.argv[2])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Python would take PyTorch's modules apart for a second
