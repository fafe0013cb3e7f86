"""FedBABU on real devices: the head is never trained in the federation, and always for a test."""

import numpy as np
import pytest

from common.errors import BouquetError
from common.protocol import ARRAYS, Instruction, Payload, ProtocolError
from strategies.fedbabu.device import fine_tune
from strategies.fedbabu.strategy import FedBABU
from strategies.fedbabu.wire import FINE_TUNED, FINE_TUNING_EPOCHS, PROCEDURE
from tests.helpers.real_devices import Federation


def instruction(federation, epochs=3, what="all"):
    first = federation.layout.layers[:1]
    config = {FINE_TUNING_EPOCHS: epochs, FINE_TUNED: what}
    return Instruction({ARRAYS: Payload(federation.initial, first)}, upload=first, procedure=PROCEDURE, config=config)


def test_the_body_is_trained_below_the_initial_head_in_every_round(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedbabu")
    first, last = federation.layout.layers
    body, head = federation.layout.columns([first]), federation.layout.columns([last])
    center = federation.play(1)
    federation.play(2)
    start = center.copy()
    start[head] = federation.initial[head]  # not a head that was fine-tuned in round 1
    session = federation.session(Instruction(), 2)
    expected, _ = session.train(start, layers=[first])
    reply = next(r for r in federation.strategy.replies.received if r.client == "client-0")
    assert reply.layers == (first,)
    np.testing.assert_array_equal(reply.vector[body], expected[body])
    assert np.abs(expected[body] - center[body]).max() > 0.001


def test_it_is_tested_fine_tuned_and_keeps_that_model(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedbabu")
    asked = instruction(federation)
    reply = federation.ask(asked)
    session = federation.session(asked, 1)
    own, _ = fine_tune(session, federation.initial)
    session.report_start(own)
    assert session.metrics["test-loss"] == reply.metrics["test-loss"]
    assert reply.metrics["loss"] < 2  # untuned about 2.3
    kept = federation.session(asked, 1, "evaluate").recall().slots["personal"]
    np.testing.assert_array_equal(federation.layout.flatten(kept), own)


@pytest.mark.parametrize("what", ["all", "head"])
def test_what_is_fine_tuned(what, tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedbabu")
    session = federation.session(instruction(federation, what=what))
    moved = fine_tune(session, federation.initial)[0] != federation.initial
    first, last = (federation.layout.columns([layer]) for layer in federation.layout.layers)
    assert moved[last].any()
    assert moved[first].any() == (what == "all")


def test_after_the_last_round_the_new_body_is_fine_tuned(tmp_path):
    federation = Federation(tmp_path, "strategy.name=fedbabu", "strategy.fine_tuned=head")
    federation.play(1, 2)
    found = federation.evaluate(2)["client-0"]
    strategy = federation.strategy
    session = federation.session(strategy.plan_evaluate(strategy.state, 2, ["client-0"])["client-0"], 2, "evaluate")
    own, _ = fine_tune(session, strategy.centers(strategy.state)[0])
    assert session.reply_evaluation(own).content["metrics"]["accuracy"] == found


def test_fine_tuning_that_is_none(tmp_path):
    with pytest.raises(BouquetError, match="fine_tuning_epochs = 0"):
        FedBABU(fine_tuning_epochs=0)
    federation = Federation(tmp_path, "strategy.name=fedbabu")
    with pytest.raises(ProtocolError, match="fine-tuned = 'tail'"):
        federation.ask(instruction(federation, what="tail"))
