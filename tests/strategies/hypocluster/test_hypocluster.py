"""HypCluster: the server's means, and two devices and two hypotheses by hand on a model of four weights."""

import json

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.protocol import ClientReply, Instruction, Payload
from bouquet.common.protocol.names import CENTER, CHOSEN, LOSS_GAP
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.hypocluster import PROCEDURE
from bouquet.strategies.hypocluster.strategy import HypoCluster
from tests.helpers.one_device import four_weights


def reply(layout, client, value, chosen, examples=10):
    metrics = {} if chosen is None else {CHOSEN: chosen, LOSS_GAP: 0.5}
    vector = np.full(layout.dim, value, dtype=np.float32)
    return ClientReply(client, ord(client), vector, layout.layers, examples, metrics, {})


def begin(strategy, layout):
    strategy.layout = layout
    return strategy.initial_state(layout, np.arange(layout.dim, dtype=np.float32))


def test_all_hypotheses_go_to_everybody_and_begin_apart(layout):
    strategy = HypoCluster(num_clusters=3)
    state = begin(strategy, layout)
    assert len(np.unique(state.centers, axis=0)) == 3
    instruction = strategy.plan(state, 1, ["a"])["a"]
    assert instruction.procedure == PROCEDURE
    assert set(instruction.models) == {f"{CENTER}{k}" for k in range(3)}
    assert set(strategy.plan_evaluate(state, 1, ["a"])["a"].models) == set(instruction.models)


def test_the_mean_is_weighted_by_samples_and_an_untaken_hypothesis_stays(layout):
    strategy = HypoCluster(num_clusters=3)
    state = begin(strategy, layout)
    received = (reply(layout, "a", 1, 0, 30), reply(layout, "b", 5, 0, 10), reply(layout, "c", 7, 2))
    after = strategy.update(state, 1, Replies(layout, received)).state
    assert after.centers[0].tolist() == [2] * layout.dim
    np.testing.assert_array_equal(after.centers[1], state.centers[1])
    assert after.centers[2].tolist() == [7] * layout.dim
    assert strategy.assignment(after) == {"a": 0, "b": 0, "c": 2}
    assert strategy.record(after) == {"num_clusters": 3, "members": [2, 0, 1], "moved": 0, "loss_gap": 0.5}
    arrays, rest = dump_state(after)
    restored = load_state(strategy.state_class, arrays, json.loads(json.dumps(rest)))
    moved = strategy.update(restored, 2, Replies(layout, (reply(layout, "a", 9, 1),))).state
    assert strategy.assignment(moved) == {"a": 1, "b": 0, "c": 2}
    assert strategy.record(moved)["moved"] == 1


@pytest.mark.parametrize("chosen", [None, 3, -1, 0.5])
def test_a_reply_that_names_no_hypothesis_is_refused(layout, chosen):
    strategy = HypoCluster(num_clusters=3)
    state = begin(strategy, layout)
    outcome = strategy.update(state, 1, Replies(layout, (reply(layout, "a", 1, 0), reply(layout, "b", 99, chosen))))
    assert set(outcome.refused) == {"b"}
    assert "from 0 to 2" in outcome.refused["b"]
    assert outcome.state.centers[0].tolist() == [1] * layout.dim
    alone = strategy.update(state, 1, Replies(layout, (reply(layout, "b", 99, chosen),)))
    assert alone.state is state


# --- the device -------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Answers messages; its six samples are (1, 0), four of label 1 and then two of label 0; tested on label 0."""
    sgd = ("train.local_epochs=1", "train.batch_size=2")
    one = four_weights(monkeypatch, tmp_path, [1, 1, 1, 1, 0, 0], [0] * 6, *sgd)

    def ask(models, kind="train", records=(CENTER + "{}").format):
        payloads = {records(k): Payload(np.asarray(v, dtype=np.float32)) for k, v in models.items()}
        instruction = Instruction(payloads, procedure=PROCEDURE)
        return one.tested(instruction, 2) if kind == "evaluate" else one.reply(instruction, 2)

    return ask


# Rows of W are the classes: the logits of (1, 0) are the first and the third weight.
FOR_ZERO, FOR_ONE, EVEN = np.array([2.0, 0, -2, 0]), np.array([-1.0, 0, 1, 0]), np.zeros(4)


def test_it_takes_the_least_loss_on_all_training_data_and_trains_that_model(device):
    answer = device({0: FOR_ZERO, 1: FOR_ONE, 2: EVEN})
    # log(1 + e^−2) for a right label, 2 more for a wrong one: mean of four right and two wrong .79; even .69
    assert answer.metrics[CHOSEN] == 2
    assert answer.metrics["loss"] == pytest.approx(np.log(2), abs=1e-6)
    wrong = (4 * np.log1p(np.exp(4)) + 2 * np.log1p(np.exp(-4))) / 6
    assert answer.metrics[LOSS_GAP] == pytest.approx(wrong - np.log(2), abs=1e-5)
    moved = answer.vector - EVEN
    assert moved[2] > 0 > moved[0]  # towards label 1, the more frequent one
    mild = np.array([-0.2, 0, 0.2, 0])
    assert device({0: FOR_ZERO, 1: mild, 2: EVEN}).metrics[CHOSEN] == 1


def test_it_is_tested_with_the_model_that_its_training_data_choose(device):
    metrics = device({0: FOR_ZERO, 1: np.array([-0.2, 0, 0.2, 0])}, "evaluate")
    # FOR_ZERO would be right on every test sample
    assert (metrics[CHOSEN], metrics["accuracy"]) == (1, 0.0)


def test_a_diverged_hypothesis_is_not_taken_and_none_is_an_error(device):
    huge = np.full(4, 3e38, dtype=np.float32) * np.array([1, 0, -1, 0])
    assert device({0: huge, 1: EVEN}).metrics[CHOSEN] == 1
    with pytest.raises(BouquetError, match="diverged"):
        device({0: huge})


def test_a_message_without_models_of_clusters_is_refused(device):
    with pytest.raises(BouquetError, match="sent no models of clusters, but arrays"):
        device({0: EVEN}, records=lambda k: "arrays")
