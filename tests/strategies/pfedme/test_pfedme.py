"""pFedMe: the step along the Moreau envelope's gradient, by hand and by its definition; personal models; mixing."""

import numpy as np
import pytest

from common.errors import BouquetError
from common.protocol import ARRAYS, Instruction, Payload, ProtocolError
from experiments.simulation.inline_grid import InlineGrid
from strategies import one_model
from strategies.baselines.fedsgd import ALL_SAMPLES
from strategies.pfedme.device import solve
from strategies.pfedme.strategy import PFedMe
from strategies.pfedme.wire import INNER_STEPS, OUTER_RATE, PROCEDURE, PROXIMAL_WEIGHT
from tests.helpers.real_devices import Federation

FULL_BATCH = ("strategy.name=pfedme", f"train.batch_size={ALL_SAMPLES}", "train.learning_rate=0.1")


def instruction(federation, weight=15.0, rate=0.005, steps=5, **more):
    config = {PROXIMAL_WEIGHT: weight, OUTER_RATE: rate, INNER_STEPS: steps}
    return one_model(federation.initial, start="personal", procedure=PROCEDURE, config=config, **more)


def test_two_inner_steps_and_one_outer_step_by_hand(tmp_path):
    """θ₁ = (w − α ∇f(w) + α λ w) / (1 + α λ), θ₂ likewise from θ₁; then w ← w − η λ (w − θ₂)."""
    federation = Federation(tmp_path, *FULL_BATCH)
    session = federation.session(instruction(federation, weight=4.0, rate=0.05, steps=2))
    shared, personal, _ = solve(session, federation.initial)
    w, alpha = federation.initial.astype(np.float64), 0.1
    first = (w - alpha * session.gradient(federation.initial) + 0.4 * w) / 1.4
    second = (first - alpha * session.gradient(first.astype(np.float32)) + 0.4 * w) / 1.4
    np.testing.assert_allclose(personal, second, atol=1e-6)
    np.testing.assert_allclose(shared, w - 0.05 * 4.0 * (w - second), atol=1e-6)
    assert np.abs(second - w).max() > 0.01


def test_solved_well_the_step_is_along_the_gradient_of_the_moreau_envelope(tmp_path):
    """∇F(w) = λ (w − θ̂), and at θ̂ that is ∇f(θ̂): the device's step of w is −η ∇f(θ̂)."""
    smooth = (
        "model.name=tests.helpers.real_devices:softmax_regression",
        "model.hidden=[]",
    )  # no kinks of ReLU to stop at
    federation = Federation(tmp_path, *FULL_BATCH, *smooth)
    session = federation.session(instruction(federation, weight=8.0, rate=0.02, steps=60))
    shared, personal, _ = solve(session, federation.initial)
    step = session.gradient(personal)
    np.testing.assert_allclose(shared, federation.initial - 0.02 * step, atol=1e-6)
    np.testing.assert_allclose(8.0 * (federation.initial - personal), step, atol=1e-4)
    assert np.abs(step).max() > 0.01


def test_the_next_mini_batch_is_solved_near_the_moved_model(tmp_path):
    """Over many local rounds w follows θ; with η λ = 1 it is where θ was after each, as in plain descent."""
    federation = Federation(tmp_path, *FULL_BATCH, "train.local_epochs=3")
    session = federation.session(instruction(federation, weight=10.0, rate=0.1, steps=1))
    shared, personal, _ = solve(session, federation.initial)
    np.testing.assert_allclose(shared, personal, atol=1e-6)
    plain, _ = session.train(federation.initial, learning_rate=0.05)  # 0.1 / (1 + 0.1 · 10)
    np.testing.assert_allclose(personal, plain, atol=1e-5)


def test_a_device_is_tested_with_its_personal_model_which_stays(tmp_path):
    federation = Federation(tmp_path, "strategy.name=pfedme")
    federation.play(1, 2)
    found = federation.evaluate(2)
    kept = []
    for part in range(4):
        session = federation.session(Instruction({ARRAYS: Payload(federation.initial)}), 2, "evaluate", part)
        kept.append(session.layout.flatten(session.recall().slots["personal"]))
        assert session.reply_evaluation(kept[-1]).content["metrics"]["accuracy"] == found[f"client-{part}"]
    for reply in federation.strategy.replies.received:
        assert not any(np.allclose(reply.vector, own, atol=1e-3) for own in kept)


def test_a_lost_personal_model_is_said_and_a_new_device_has_lost_nothing(tmp_path):
    federation = Federation(tmp_path, "strategy.name=pfedme")
    assert federation.ask(instruction(federation), round_=2).metrics["state-lost"] == 1
    assert federation.ask(instruction(federation, newcomer=True), round_=2, part=1).metrics["state-lost"] == 0


@pytest.mark.parametrize(("mixing", "moved"), [(1.0, 3.0), (0.5, 1.5), (2.0, 6.0)])
def test_the_server_mixes_and_all_weigh_alike(mixing, moved, scripted, play):
    few = scripted("a", lambda sent, _: sent + 1, {"num-examples": 10})
    many = scripted("b", lambda sent, _: sent + 5, {"num-examples": 30})
    strategy = PFedMe(mixing=mixing, identify=True)
    play(strategy, InlineGrid({1: few, 2: many}), range(1, 2))
    assert strategy.centers(strategy.state).tolist() == [[moved] * 8]


def test_no_pull_is_too_stiff_and_a_missing_one_is_named(tmp_path):
    federation = Federation(tmp_path, "strategy.name=pfedme")
    _, personal, _ = solve(federation.session(instruction(federation, weight=1e4, rate=1e-4)), federation.initial)
    np.testing.assert_allclose(personal, federation.initial, atol=0.01)
    with pytest.raises(ProtocolError, match="proximal-weight = None"):
        federation.ask(one_model(federation.initial, procedure=PROCEDURE))


@pytest.mark.parametrize(
    "option", [{"proximal_weight": 0}, {"inner_steps": 0}, {"outer_rate": 0.1}, {"outer_rate": 0}, {"mixing": 0}]
)
def test_options_that_do_not_fit(option):
    with pytest.raises(BouquetError, match=f"{next(iter(option))} = "):
        PFedMe(**option)
