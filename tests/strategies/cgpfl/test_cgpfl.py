"""CGPFL: contexts on the server, and the device's descent of the envelope against steps by hand."""

import json

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.protocol import ARRAYS, Instruction, Payload, Proximal
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.cgpfl import PROCEDURE
from bouquet.strategies.cgpfl.strategy import CGPFL
from tests.helpers.one_device import four_weights
from tests.helpers.points import FOUR, begin, replies


def update(strategy, state, rows, round_):
    return strategy.update(state, round_, replies(rows))


def test_k_contexts_from_k_means_then_each_client_to_the_nearest():
    strategy = CGPFL(num_clusters=2)
    state = update(strategy, begin(strategy), FOUR, 1)
    assert strategy.centers(state).tolist() == [[0, 1], [10, 1]]
    assert strategy.assignment(state) == {"a": 0, "b": 0, "c": 1, "d": 1}
    state = update(strategy, state, {"a": (1, 1), "b": (7, 1), "c": (9, 1)}, 2)
    assert strategy.assignment(state) == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert strategy.centers(state).tolist() == [[1, 1], [8, 1]]
    assert strategy.record(state)["moved"] == 1


def test_the_server_moves_a_context_part_of_the_way():
    strategy = CGPFL(num_clusters=2)
    strategy.server_step = 0.25
    state = update(strategy, begin(strategy), FOUR, 1)
    np.testing.assert_allclose(strategy.centers(state), [[0, 0.25], [2.5, 0.25]])


def test_gathering_while_half_are_asked():
    strategy = CGPFL(num_clusters=2, fraction_train=0.5)
    state = begin(strategy)
    for round_, clients in enumerate(["ac", "ab", "cd", "ad"], start=1):
        assert strategy.assignment(state) == {}
        state = update(strategy, state, {c: FOUR[c] for c in clients}, round_)
        arrays, rest = dump_state(state)
        state = load_state(strategy.state_class, arrays, json.loads(json.dumps(rest)))
    assert strategy.assignment(state) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_what_a_device_is_sent():
    strategy = CGPFL(num_clusters=2)
    state = update(strategy, begin(strategy), FOUR, 1)
    plan = strategy.plan(state, 2, ["a", "new"])
    assert plan["a"].models[ARRAYS].vector.tolist() == [0, 1]
    assert plan["new"].models[ARRAYS].vector.tolist() == [5, 1]
    for instruction in plan.values():
        assert (instruction.procedure, instruction.start) == (PROCEDURE, "personal")
        assert instruction.proximal == (Proximal(ARRAYS, 0.1),)
        assert instruction.config == {"personal-steps": 5, "context-step": 0.3}
    assert [plan[c].newcomer for c in ("a", "new")] == [False, True]
    assert strategy.plan_evaluate(state, 2, ["a"])["a"].start == "personal"


# --- the device -------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Its four samples are (1, 0) with label 1, in two mini-batches."""
    sgd = ("train.learning_rate=0.5", "train.local_epochs=1", "train.batch_size=2")
    one = four_weights(monkeypatch, tmp_path, [1] * 4, [1] * 4, *sgd)

    def ask(vector, config, kind="train", round_=1, weight=1.0, **more):
        instruction = Instruction(
            {ARRAYS: Payload(np.asarray(vector, dtype=np.float32))},
            start="personal",
            procedure=PROCEDURE,
            proximal=(Proximal(ARRAYS, weight),),
            config=config,
            **more,
        )
        return one.tested(instruction, round_) if kind == "evaluate" else one.reply(instruction, round_)

    return ask, lambda: one.own(98)


def by_hand(personal, context, steps, weight, share, batches=2):
    personal, context = np.array(personal, dtype=np.float64), np.array(context, dtype=np.float64)
    for _ in range(batches):
        for _ in range(steps):
            logits = personal[[0, 2]]
            p = np.exp(logits) / np.exp(logits).sum()
            gradient = np.array([p[0], 0, p[1] - 1, 0])
            personal = personal - 0.5 * (gradient + weight * (personal - context))
        context = context - share * (context - personal)
    return personal, context


def test_the_descent_by_hand_and_the_personal_model_stays_and_goes_on(device):
    ask, personal = device
    start = np.array([0.3, 0, -0.3, 0])
    first = ask(start, {"personal-steps": 3, "context-step": 0.25}, newcomer=True)
    theta, omega = by_hand(start, start, 3, 1.0, 0.25)
    np.testing.assert_allclose(personal(), theta, atol=1e-5)
    np.testing.assert_allclose(first.vector, omega, atol=1e-5)
    assert not np.allclose(theta, omega)
    second = ask(np.zeros(4), {"personal-steps": 3, "context-step": 0.25}, round_=2)
    theta, omega = by_hand(theta, np.zeros(4), 3, 1.0, 0.25)  # θ goes on from where it was
    np.testing.assert_allclose(personal(), theta, atol=1e-5)
    np.testing.assert_allclose(second.vector, omega, atol=1e-5)
    assert second.metrics["state-lost"] == 0
    tested = ask(np.array([9.0, 0, -9, 0]), {"personal-steps": 3, "context-step": 0.25}, "evaluate", 2)
    assert tested["accuracy"] == 1.0  # that context would be wrong on every sample


def test_a_strong_pull_keeps_the_personal_model_at_the_context(device):
    ask, personal = device
    ask(np.zeros(4), {"personal-steps": 5, "context-step": 0.5}, weight=1.9, newcomer=True)
    strong = np.abs(personal()).max()
    ask(np.zeros(4), {"personal-steps": 5, "context-step": 0.5}, weight=0.01, newcomer=True)
    assert strong < 0.5 * np.abs(personal()).max()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"context-step": 0.5}, "personal-steps = None"),
        ({"personal-steps": 0, "context-step": 0.5}, "personal-steps = 0"),
        ({"personal-steps": 1, "context-step": 1.5}, "context-step is 1.5"),
    ],
)
def test_a_question_that_does_not_fit_is_refused(device, config, message):
    with pytest.raises(BouquetError, match=message):
        device[0](np.zeros(4), config)
