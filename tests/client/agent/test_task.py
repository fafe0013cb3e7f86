"""What a task's own process does before the ClientApp sees anything: how much a content may be, and hold."""

import json

import numpy as np
import pytest
from flwr.app import RecordDict

from bouquet.client.agent.store import NODE_CONFIG, TaskStore
from bouquet.client.agent.task import answer
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload
from bouquet.common.settings import parse_settings
from bouquet.common.wire.fleet_pb2 import Run, Task
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import content_of

ID = "1" * 32


@pytest.fixture
def device(tmp_path):
    """Has a device be given a task with settings, and with a content unless that is None."""

    def give(content, run=7, **settings):
        store = TaskStore(tmp_path / "tasks")
        store.keep_run(Run(id=run, settings=parse_settings({}, settings).model_dump_json()))
        (store.folder / NODE_CONFIG).write_text("{}")
        store.keep(Task(id=ID, run=run, type="train", seconds=60.0, content=content_of(content or b"")), 3, 0)
        if content is None:
            store.content(ID).unlink()
        else:
            store.content(ID).write_bytes(content)
        answer(store, ID)
        return store

    return give


@pytest.mark.parametrize(
    "settings",
    [{"model.hidden": [4]}, {"model.hidden": [400, 300], "strategy.name": "ifca", "strategy.num_clusters": 40}],
)
def test_what_a_run_may_send_follows_from_the_devices_own_model(device, settings):
    store = device(None, **settings)
    layout, vector = state_vector(initial_model(parse_settings({}, settings)))
    most = settings.get("strategy.num_clusters", 16)
    sent = Encoder(layout).content(Instruction({ARRAYS: Payload(vector)}), 1, "r", {})
    for number in range(1, most):
        sent[f"center-{number}"] = sent[ARRAYS]
    store.room(7).check(content_bytes(sent))
    assert store.room(7).size < 4 * most * layout.most_bytes + 4 * 2**20
    assert device(None, **settings, **{"run.seed": 5}).room(7) == store.room(7)  # measured anew
    store.keep_run(Run(id=8))
    assert store.room(7) is None


@pytest.mark.parametrize("content", [b"\x0a\x00" * 60_000, b"\x0a\x04\x12\x02" * 1000, b"\xff" * 50], ids=len)
def test_a_content_of_many_parts_is_refused_before_a_message_is_made_of_it(device, content):
    store = device(content)
    reason = store.reply(ID).error.reason
    assert reason.startswith("The content cannot be read. "), reason
    assert np.array(json.loads(store.file(ID, "error").read_text())[0]) == 8


def test_the_same_where_the_run_is_measured(device):
    store = device(None)
    store.keep(Task(id=ID, run=7, type="train", seconds=60.0, content=content_of(b"")), 3, 0)
    store.content(ID).write_bytes(b"\x0a\x00" * 100_000)
    answer(store, ID)
    assert "more than 100 entries" in store.reply(ID).error.reason
    store.drop(ID)
    store.keep(Task(id=ID, run=7, type="query.identify", seconds=60.0), 3, 0)
    store.content(ID).write_bytes(content_bytes(RecordDict()))
    answer(store, ID)
    assert store.reply(ID) is not None
