"""FedRep on real devices: which part is trained when, what travels and what stays."""

import numpy as np
import pytest

from common.errors import BouquetError
from common.protocol import ARRAYS, Instruction, Payload, ProtocolError
from strategies.fedrep.strategy import FedRep
from strategies.fedrep.wire import BODY_EPOCHS, HEAD_EPOCHS, PROCEDURE
from tests.helpers.real_devices import Federation


def personal(federation, round_, part=0):
    """The model that a device keeps after a round."""
    session = federation.session(Instruction(), round_, "evaluate", part)
    return session.layout.flatten(session.recall().slots["personal"])


def instruction(federation, head=3, body=2, **more):
    (first, _) = federation.layout.layers
    config = {HEAD_EPOCHS: head, BODY_EPOCHS: body}
    models = {ARRAYS: Payload(federation.initial, (first,))}
    return Instruction(models, upload=(first,), procedure=PROCEDURE, config=config, **more)


def test_the_head_is_trained_on_the_received_body_then_the_body_below_the_new_head(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedrep")
    first, last = federation.layout.layers
    asked = instruction(federation)
    reply = federation.ask(asked)
    session = federation.session(asked)
    head_first, _ = session.train(federation.initial, layers=[last], local_epochs=3, stream="head")
    columns = federation.layout.columns([first])
    np.testing.assert_array_equal(head_first[columns], federation.initial[columns])
    expected, _ = session.train(head_first, layers=[first], local_epochs=2)
    np.testing.assert_array_equal(personal(federation, 1), expected)
    assert reply.layers == (first,)
    np.testing.assert_array_equal(reply.vector[columns], expected[columns])
    assert not reply.vector[federation.layout.columns([last])].any()


def test_the_head_stays_on_the_device_and_the_body_is_averaged(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedrep", "strategy.head_epochs=2")
    center = federation.play(1, 2)
    first, last = federation.layout.layers
    body, head = federation.layout.columns([first]), federation.layout.columns([last])
    replies = federation.strategy.replies
    mean = np.average(replies.W[:, body].astype(np.float64), axis=0, weights=replies.num_examples)
    np.testing.assert_allclose(center[body], mean, atol=1e-6)
    np.testing.assert_array_equal(center[head], federation.initial[head])
    heads = np.stack([personal(federation, 2, part)[head] for part in range(4)])
    assert all(np.abs(heads[i] - heads[j]).max() > 0.01 for i in range(4) for j in range(i))
    assert not replies.W[:, head].any()


def test_a_device_is_tested_with_the_newest_body_and_its_own_head(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedrep")
    center = federation.play(1, 2)
    found = federation.evaluate(2)["client-0"]
    own = personal(federation, 2)
    body = federation.layout.columns(federation.layout.layers[:1])
    own[body] = center[body]
    session = federation.session(instruction(federation), 2, "evaluate")
    assert session.reply_evaluation(own).content["metrics"]["accuracy"] == found


def test_a_lost_head_is_said_and_begins_anew(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedrep")
    assert federation.ask(instruction(federation), round_=2).metrics["state-lost"] == 1
    assert federation.ask(instruction(federation, newcomer=True), round_=2, part=1).metrics["state-lost"] == 0


def test_epochs_that_are_none(tmp_path):
    with pytest.raises(BouquetError, match="head_epochs = 0"):
        FedRep(head_epochs=0)
    federation = Federation(tmp_path, "strategy.name=fedrep")
    with pytest.raises(ProtocolError, match="body-epochs = 0"):
        federation.ask(instruction(federation, body=0))
