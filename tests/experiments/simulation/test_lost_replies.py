"""Replies that are lost, in runs that compress: both ends go on from what both of them hold."""

import pytest
from flwr.app import Error, Message, MessageType

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation import run
from bouquet.server.record.reader import read_run

LOST, ROUND = run.FIRST_NODE + 1, 3  # the node, and its training whose reply is lost
BASE = ["simulation.engine=inline", "data.clients=3", "run.rounds=6", "train.local_epochs=1"]
WIRE = ["wire.up=int4", "wire.down=int8"]


@pytest.fixture
def losing(monkeypatch):
    """The reply of one node in one round is lost on its way: the device does not know."""
    handlers_of, trained = run.app_handlers, []

    def losing_handlers(client_app, contexts):
        handlers = handlers_of(client_app, contexts)

        def answer(message):
            reply = handlers[LOST](message)
            if message.metadata.message_type == MessageType.TRAIN:
                trained.append(message)
                if len(trained) == ROUND:
                    return Message(Error(code=2, reason="lost on the way"), reply_to=message)
            return reply

        return handlers | {node: answer for node in handlers if node == LOST}

    monkeypatch.setattr(run, "app_handlers", losing_handlers)
    return trained


@pytest.mark.parametrize("method", ["fedac", "clusterfl", "fedtsdp", "fesem"])
def test_a_device_that_starts_from_its_own_model_goes_on_after_a_lost_reply(losing, tmp_path, method):
    more = {
        "fedtsdp": ["data.public_fraction=0.1", "strategy.hopkins_threshold=0"],
        "clusterfl": ["strategy.num_clusters=3"],
    }
    run.simulate(
        load_settings(None, [*BASE, *WIRE, *more.get(method, []), f"strategy.name={method}"]), tmp_path / "run"
    )
    assert len(losing) == 6
    failed = {line["round"]: line["failed"] for line in read_run(tmp_path / "run").rounds if line["failed"]}
    assert failed == {ROUND: {"client-1": "The device reported: lost on the way"}}
