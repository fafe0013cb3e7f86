"""One task: a message, the ClientApp, and its reply, all of them files. It runs in a process that ends with it.

``python -m bouquet.client.agent.task FOLDER ID PARENT``, with the process id of the agent, is such a process; a warm
device forks it instead (`bouquet.client.agent.trainer`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

from bouquet.client.agent.store import CRASHED, NODE_CONFIG, TaskStore
from bouquet.common.system.files import write_atomically
from bouquet.common.system.processes import end_with_parent
from bouquet.common.texts import plain
from bouquet.common.wire.content_size import Room
from bouquet.common.wire.transfer import INLINE_BYTES

SMALL = Room(INLINE_BYTES, INLINE_BYTES, INLINE_BYTES // 64)  # of a content that travelled inside its task
FEW_MODELS = 16  # in one message; where clusters are all sent, as many more


def answer(store: TaskStore, identifier: str) -> None:
    """Have the ClientApp answer a task, and leave the reply, whole, where the agent finds it.

    Of a task whose content is not asked for yet, leave there what that may take.
    """
    # Not before: a fresh process is to end with the agent from its first moment on, and these take seconds.
    from flwr.app import Context, RecordDict

    from bouquet.client.app import app
    from bouquet.common.protocol import CONFIG, ROUND
    from bouquet.common.protocol.records import config_of
    from bouquet.common.settings.settings import AS_JSON
    from bouquet.common.wire.flower import content_bytes, instruction

    about = json.loads((store.folder / f"{identifier}.json").read_text(encoding="utf-8"))
    settings = store.file(about["run"], "run").read_text(encoding="utf-8")
    room, content = store.room(about["run"]), store.content(identifier)
    if not content.exists() or (room is None and content.stat().st_size > INLINE_BYTES):
        measure(store, about["run"], settings)
        return
    run_config: dict[str, bool | float | int | str] = {AS_JSON: settings}
    node_config = json.loads((store.folder / NODE_CONFIG).read_text(encoding="utf-8"))
    data = content.read_bytes()
    try:
        (room or SMALL).check(data)
    except Exception as problem:  # whatever its bytes bring about
        store.fail(identifier, CRASHED, f"The content cannot be read. {type(problem).__name__}: {plain(str(problem))}")
        return
    where = about["run"], about["node"]
    message = instruction(data, identifier, *where, about["type"], about["group"], about["seconds"] or 1.0)
    del data
    round_ = config_of(message.content, CONFIG).get(ROUND)
    if about["type"].partition(".")[0] == "train" and isinstance(round_, int):
        store.begin(identifier, round_)
    reply = app(message, Context(*where, node_config, RecordDict(), run_config))
    if reply.has_error():
        store.fail(identifier, reply.error.code, str(reply.error.reason))
        return
    store.succeed(identifier, content_bytes(reply.content))


def measure(store: TaskStore, run: int, settings: str) -> None:
    """Leave what a content of a run may take, by the model that the settings name, in the place of `TaskStore.room`."""
    from bouquet.client.rounds.model import Built
    from bouquet.common.compression.delta import MOST_MODELS
    from bouquet.common.settings import Settings

    read = Settings.from_json(settings)
    built, clusters = Built.of(read), read.strategy.options.get("num_clusters")
    models = clusters + FEW_MODELS if isinstance(clusters, int) else FEW_MODELS
    whole = sum(tensor.numel() * tensor.element_size() for tensor in built.model.state_dict().values())
    room = Room.of(built.layout, min(max(models, FEW_MODELS), MOST_MODELS))
    room = replace(room, arrays=room.arrays + 2 * whole)  # layers that do not travel are sent once
    write_atomically(store.file(run, "room.run"), json.dumps(asdict(room)).encode(), 0o600)


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL, int(sys.argv[3]))
    answer(TaskStore(Path(sys.argv[1])), sys.argv[2])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Python would take PyTorch's modules apart for a second
