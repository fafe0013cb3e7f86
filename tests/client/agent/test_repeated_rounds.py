"""A server that lost its last checkpoint repeats rounds: a device that does an earlier one again does the later too."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from bouquet.client.agent.store import NODE_CONFIG, TaskStore
from bouquet.client.agent.task import answer
from bouquet.common.protocol import CONFIG, ROUND
from bouquet.common.wire.fleet_pb2 import Run, Task
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import content_of

RUN = 3


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A store, and a function that has the task of a round answered; both ends keep its reply."""
    store = TaskStore(tmp_path)
    store.keep_run(Run(id=RUN, settings="{}"))
    (tmp_path / NODE_CONFIG).write_text("{}")
    monkeypatch.setattr("bouquet.client.app.app", lambda message, context: Message(RecordDict(), reply_to=message))

    def do(round_, kind="train"):
        identifier = f"{kind[0]}{round_}".rjust(32, "0")
        content = content_of(content_bytes(RecordDict({CONFIG: ConfigRecord({ROUND: round_})})))
        store.keep(Task(id=identifier, run=RUN, type=kind, seconds=60.0, content=content), 2, 0)
        answer(store, identifier)
        return identifier

    return store, do


def test_of_a_repeated_round_the_replies_to_later_ones_go(device):
    store, do = device
    third, fourth, fifth, test = do(3), do(4), do(5), do(5, "evaluate")
    assert all(map(store.reply_is_there, (third, fourth, fifth, test)))
    do(4)
    assert [store.reply_is_there(one) for one in (third, fourth, fifth)] == [True, True, False]
    assert store.content(fifth).exists()  # it need not be sent again
    store.drop(fourth)
    assert not [file for file in store.folder.iterdir() if fourth in file.name]
