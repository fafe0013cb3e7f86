"""The device that chooses its cluster: two devices and two clusters by hand, and what it keeps from round to round."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.protocol import Instruction, Payload
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.device import choose_identity, step_similarity
from bouquet.strategies.gradient_loss.wire import Choice, center_record, step_record
from tests.helpers.one_device import four_weights


@pytest.fixture
def device(monkeypatch, tmp_path):
    """``device("a", label)`` answers messages; its samples are all (1, 0), with one label to train and test on."""

    def make(name, label, test_label=None, **more):
        labels = np.full(4, label)
        tested = labels if test_label is None else np.full(4, test_label)
        one = four_weights(monkeypatch, tmp_path, labels, tested, "train.learning_rate=1", name=name, **more)

        def ask(models, kind="train", round_=2, sent=None, **question):
            asked = Choice(**{"num_clusters": 2, "version": 1, "gradient_weight": 0.2, **question})
            payloads = {record: Payload(np.asarray(v, dtype=np.float32)) for record, v in models.items()}
            instruction = Instruction(payloads, procedure=choice.PROCEDURE, config=asked.to_config())
            return one.tested(instruction, round_) if kind == "evaluate" else one.reply(instruction, round_, sent)

        ask.initial = one.initial
        return ask

    return make


# Rows of W are the classes. Cluster 0 learns label 0 on x = (1, 0), cluster 1 label 1: W moves by these.
FOR_ZERO, FOR_ONE = np.array([0.1, 0, -0.1, 0]), np.array([-0.1, 0, 0.1, 0])
EVEN = np.zeros(4)
STEPS = {step_record(0): FOR_ZERO, step_record(1): FOR_ONE}


def both(first, second):
    return {center_record(0): first, center_record(1): second}


def test_two_devices_find_their_clusters_by_gradient_where_the_losses_are_equal(device):
    """At W = 0 both losses are ln 2, and −∇L is (½, 0, −½, 0) for label 0: cos 1 with Δ_0 and −1 with Δ_1."""
    sent = {**both(EVEN, EVEN), **STEPS}
    of_zero, of_one = device("a", 0)(sent), device("b", 1)(sent)
    assert (of_zero.metrics[choice.CHOSEN], of_one.metrics[choice.CHOSEN]) == (0, 1)
    assert of_zero.metrics[choice.SIMILARITY_GAP] == pytest.approx(2)
    assert of_zero.metrics[choice.LOSS_GAP] == 0
    # one gradient step with learning rate 1 from W = 0, Eq. 5
    np.testing.assert_allclose(of_zero.vector, [0.5, 0, -0.5, 0])
    np.testing.assert_allclose(of_one.vector, [-0.5, 0, 0.5, 0])


# For label 0 the loss at W is ln(1 + exp(w_1 − w_0)): ln 2 = .693 at 0, and .598 at (.2, 0, 0, 0). So the loss prefers
# cluster 1 by .095, the gradient cluster 0 by 2: they balance at λ = .095 / 2.095 = .0453.
MISLEADING = {**both(EVEN, [0.2, 0, 0, 0]), **STEPS}


@pytest.mark.parametrize(("gradient_weight", "expected"), [(0.0, 1), (0.04, 1), (0.05, 0), (0.2, 0), (1.0, 0)])
def test_lambda_weighs_the_gradient_against_the_loss(device, gradient_weight, expected):
    reply = device("a", 0)(MISLEADING, gradient_weight=gradient_weight)
    assert reply.metrics[choice.CHOSEN] == expected
    assert reply.metrics[choice.LOSS_GAP] == pytest.approx(np.log(2) - np.log1p(np.exp(-0.2)))


def test_the_euclidean_similarity_by_hand(device):
    """−∇L is (½, 0, −½, 0) at W = 0: distance .4·√2 from Δ_0 and .6·√2 from Δ_1."""
    reply = device("a", 0)({**both(EVEN, EVEN), **STEPS}, similarity="euclidean")
    assert reply.metrics[choice.CHOSEN] == 0
    assert reply.metrics[choice.SIMILARITY_GAP] == pytest.approx(0.2 * np.sqrt(2))


@pytest.mark.parametrize(("round_", "version", "lost"), [(1, 0, 0), (2, 1, 1)])
def test_before_the_first_step_and_without_the_kept_centers_the_loss_decides(device, round_, version, lost):
    reply = device("a", 0)(both(EVEN, [0.2, 0, 0, 0]), round_=round_, version=version)
    assert reply.metrics[choice.CHOSEN] == 1
    assert choice.SIMILARITY_GAP not in reply.metrics
    assert reply.metrics[protocol.STATE_LOST] == lost


def test_a_device_that_kept_the_centers_needs_no_steps(device):
    ask = device("a", 0)
    ask(both(-FOR_ZERO, [0.1, 0, 0.1, 0]), round_=1, version=0)
    # since then center 0 moved by (.1, 0, −.1, 0) and center 1 by (.1, 0, −.1, 0) + the way to (.2, 0, 0, 0): both
    second = ask(both(EVEN, [0.2, 0, 0, 0]))
    assert second.metrics[protocol.STATE_LOST] == 0
    sent = {step_record(0): FOR_ZERO, step_record(1): [0.1, 0, -0.1, 0]}
    told = device("b", 0)({**both(EVEN, [0.2, 0, 0, 0]), **sent})
    assert second.metrics[choice.SIMILARITY_GAP] == pytest.approx(told.metrics[choice.SIMILARITY_GAP], abs=1e-6)
    assert second.metrics[choice.CHOSEN] == told.metrics[choice.CHOSEN]


def test_a_round_that_left_the_centers_as_they_were_does_not_cost_the_step(device):
    ask = device("a", 0)
    ask(both(-FOR_ZERO, -FOR_ONE), round_=1, version=0)
    once = ask(both(EVEN, EVEN), round_=2, version=1)
    again = ask(both(EVEN, EVEN), round_=3, version=1)
    assert once.metrics[choice.SIMILARITY_GAP] == again.metrics[choice.SIMILARITY_GAP] == pytest.approx(2)
    assert once.metrics[choice.CHOSEN] == again.metrics[choice.CHOSEN] == 0  # the losses are equal


def test_a_repeated_round_gives_the_same_answer(device):
    """A server that was restarted repeats its last round; the device starts from the state before it."""
    ask = device("a", 0)
    ask(both(-FOR_ZERO, -FOR_ONE), round_=1, version=0)
    first = ask(MISLEADING | both(EVEN, [0.2, 0, 0, 0]), round_=2, version=1)
    for _ in range(2):
        again = ask(MISLEADING, round_=2, version=1)
        assert again.metrics == first.metrics
        np.testing.assert_array_equal(again.vector, first.vector)


def test_a_device_that_is_told_trains_that_cluster_and_says_what_it_had_chosen(device):
    reply = device("a", 0)({**both(EVEN, [0, 0, 2, 0]), **STEPS}, told=1)
    assert (reply.metrics[choice.CHOSEN], reply.metrics[choice.TRAINED], reply.metrics[choice.TOLD]) == (0, 1, 1)
    p = 1 / (1 + np.exp(2))  # of label 0 at center 1
    np.testing.assert_allclose(reply.vector, [1 - p, 0, 2 - (1 - p), 0], rtol=1e-6)


# For label 0 the loss is .4 less at the first than at the second, and for label 1 as much more.
FOR_LABELS = both([0.4, 0, 0, 0], [0, 0, 0.4, 0])


def test_several_mini_batches_judge_better_than_one(device):
    """Three samples of four have label 0. A mini-batch of one sample may hold the other; all together never do."""
    ask = device("a", [0, 0, 0, 1])

    def chosen(batches):
        question = {"gradient_weight": 0.0, "batches": batches, "sent": {"batch-size": 1}}
        replies = [ask(FOR_LABELS, round_=round_, **question) for round_ in range(1, 12)]
        return {reply.metrics[choice.CHOSEN] for reply in replies}, replies[-1]

    assert chosen(1)[0] == {0, 1}
    clusters, reply = chosen(9)  # as many as there are
    assert clusters == {0}
    assert reply.metrics[choice.LOSS_GAP] == pytest.approx((3 * 0.4 - 0.4) / 4)


def test_over_several_mini_batches_the_gradient_is_that_of_all_samples(device):
    """The mean gradient at W = 0 is that of one mini-batch with everything, and the step is taken on the first."""
    ask, sent = device("a", [0, 0, 0, 1]), {**both(EVEN, EVEN), **STEPS}
    several = ask(sent, sent={"batch-size": 2}, similarity="euclidean", batches=2)
    whole = ask(sent, similarity="euclidean")
    assert several.metrics[choice.SIMILARITY_GAP] == pytest.approx(whole.metrics[choice.SIMILARITY_GAP], abs=1e-6)
    # (1/n) Σ of ±(½, 0, −½, 0) over the first two samples, of which one at most has label 1
    assert np.abs(several.vector).max() in (0.0, 0.5)


@pytest.mark.parametrize("gradient_weight", [0.0, 1e-9])
def test_all_of_its_data_may_judge_whatever_the_mini_batch(device, gradient_weight):
    """As IFCA has it: .3 in favour of cluster 0 in each round, where a mini-batch of one sample may say −.4."""
    ask = device("a", [0, 0, 0, 1])
    question = {"gradient_weight": gradient_weight, "batches": choice.ALL_BATCHES, "sent": {"batch-size": 1}}
    replies = [ask(FOR_LABELS, round_=round_, **question) for round_ in range(1, 12)]
    assert {reply.metrics[choice.CHOSEN] for reply in replies} == {0}
    assert replies[-1].metrics[choice.LOSS_GAP] == pytest.approx((3 * 0.4 - 0.4) / 4)
    # one step on the round's one sample from (.4, 0, 0, 0): 1 − p of label 0 where it has that, else −p
    p = 1 / (1 + np.exp(-0.4))
    assert {round(float(reply.vector[0] - 0.4), 4) for reply in replies} == {round(1 - p, 4), round(-p, 4)}


@pytest.mark.parametrize(
    ("batch_loss", "gradient_weight", "expected"),
    [("mean", 0.05, 0), ("sum", 0.05, 1), ("sum", 0.15, 1), ("sum", 0.17, 0)],
)
def test_the_papers_sum_over_the_mini_batch_by_hand(device, batch_loss, gradient_weight, expected):
    """Of four samples: 4 · .095 = .381 against the similarity's 2, which balance at λ = .381 / 2.381 = .160."""
    reply = device("a", 0)(MISLEADING, gradient_weight=gradient_weight, batch_loss=batch_loss)
    assert reply.metrics[choice.CHOSEN] == expected
    gap = np.log(2) - np.log1p(np.exp(-0.2))
    assert reply.metrics[choice.LOSS_GAP] == pytest.approx(gap * (4 if batch_loss == "sum" else 1), abs=1e-6)


def test_the_gradient_of_the_sum_is_compared_with_the_step_as_it_is(device):
    """4 · (½, 0, −½, 0) is 1.9 · √2 from Δ_0 and 2.1 · √2 from Δ_1."""
    question = {"similarity": "euclidean", "batch_loss": "sum"}
    reply = device("a", 0)({**both(EVEN, EVEN), **STEPS}, **question)
    assert reply.metrics[choice.SIMILARITY_GAP] == pytest.approx(0.2 * np.sqrt(2), abs=1e-6)
    tilted = {**both(EVEN, EVEN), step_record(0): [2, 0, -2, 0], step_record(1): [0.5, 0, -0.5, 0]}
    assert device("b", 0)(tilted, **question).metrics[choice.CHOSEN] == 0
    assert device("c", 0)(tilted, similarity="euclidean").metrics[choice.CHOSEN] == 1


def test_local_epochs_instead_of_one_step(device):
    """Two epochs over four equal samples in one batch: two steps, from W = 0 and from (½, 0, −½, 0)."""
    reply = device("a", 0)({**both(EVEN, EVEN), **STEPS}, local_update="epochs")
    second = 1 / (1 + np.exp(1.0))
    np.testing.assert_allclose(reply.vector, np.array([1, 0, -1, 0]) * (0.5 + second), rtol=1e-6)


def test_one_step_is_one_step_whatever_the_server_says_of_epochs_and_batches(device):
    reply = device("a", 0)({**both(EVEN, EVEN), **STEPS}, sent={"local-epochs": 5, "batch-size": 2})
    np.testing.assert_allclose(reply.vector, [0.5, 0, -0.5, 0])


def test_it_is_tested_with_the_model_that_fits_its_training_data(device):
    """The test labels would choose the other cluster; the score shows that they were not asked."""
    scores = device("a", 0, test_label=1)(both([1, 0, -1, 0], [-1, 0, 1, 0]), kind="evaluate")
    assert scores[choice.CHOSEN] == 0
    assert scores[protocol.ACCURACY] == 0.0


def test_dropout_is_the_same_for_every_model_and_frozen_tensors_do_not_count(device):
    """Equal models must have equal losses whatever is dropped, and a frozen layer has no gradient to compare."""

    def factory(input_shape, num_classes):
        model = nn.Sequential(nn.Linear(2, 8, bias=False), nn.Dropout(0.5), nn.Linear(8, 2, bias=False))
        model[0].requires_grad_(False)
        return model

    ask = device("a", 0, model=factory)
    initial = ask.initial
    step = np.ones_like(initial)
    before = torch.get_rng_state()
    answer = ask({**both(initial, initial), step_record(0): step, step_record(1): step})
    assert answer.metrics[choice.LOSS_GAP] == 0
    assert answer.metrics[choice.SIMILARITY_GAP] == 0
    np.testing.assert_array_equal(answer.vector[:16], initial[:16])
    torch.testing.assert_close(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("models", "question", "message"),
    [
        ({}, {}, "sent no model of 0"),
        ({center_record(0): EVEN}, {}, "sent no model of 1"),
        (both(EVEN, EVEN), {"told": 2}, "train cluster 2 of 2"),
        (both(EVEN, EVEN), {"similarity": "taxicab"}, "'taxicab'"),
        (both(EVEN, EVEN), {"local_update": "half"}, "'half'"),
        (both(EVEN, EVEN), {"batch_loss": "half"}, "'half'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(device, models, question, message):
    with pytest.raises(BouquetError, match=message):
        device("a", 0)(models, **question)


def test_models_that_diverged_are_not_chosen():
    assert choose_identity([float("nan"), 5.0, float("inf")], [1.0, -1.0, 1.0], 0.5) == 1
    with pytest.raises(BouquetError, match="diverged"):
        choose_identity([float("nan"), float("inf")], [0.0, 0.0], 0.2)


vectors = st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3).map(np.array)


@given(gradient=vectors, step=vectors, scale=st.floats(0.1, 10))
def test_the_cosine_knows_directions_only(gradient, step, scale):
    value = step_similarity(gradient, step, "cosine")
    assert -1.000001 <= value <= 1.000001
    assert step_similarity(scale * gradient, step, "cosine") == pytest.approx(value, abs=1e-6)
    assert step_similarity(-gradient, step, "cosine") == pytest.approx(-value, abs=1e-6)


def test_without_a_gradient_or_a_step_the_cosine_is_0():
    some = np.array([1.0, 2.0])
    assert step_similarity(some, np.zeros(2), "cosine") == 0
    assert step_similarity(np.zeros(2), some, "cosine") == 0
    assert step_similarity(-some, some, "euclidean") == 0
