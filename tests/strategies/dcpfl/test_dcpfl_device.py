"""The device's side of DC-PFL: a trial in two messages, and rounds in which slow layers stay on the device."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bouquet.client.state.device_state import PERSONAL
from bouquet.common import protocol
from bouquet.common.protocol import ARRAYS, Instruction, Payload
from bouquet.common.protocol.error_replies import NotNow
from bouquet.common.settings import load_settings
from bouquet.strategies.base import reply_checks
from bouquet.strategies.dcpfl import DIVERGED, LOSS_NEW, LOSS_OLD, NEW, PROCEDURE, TAKE, WHOLE_ROUND
from bouquet.strategies.dcpfl import device as dcpfl_device
from tests.helpers.one_device import OneDevice

SETTINGS = load_settings(
    None, ["data.clients=10", "train.local_epochs=1", "train.learning_rate=0.1", "train.max_gradient_norm=none"]
)


@pytest.fixture
def device(tmp_path):
    return OneDevice(SETTINGS, tmp_path / "state")


@pytest.fixture
def model(device):
    return device.layout, device.initial


def refusal(device, instruction, round_, kind="train"):
    return device.ask(instruction, round_, kind).error.reason


def other(vector):
    return (0.5 * vector).astype(np.float32)


def both(vector):
    return Instruction({ARRAYS: Payload(vector), NEW: Payload(other(vector))}, upload=(), procedure=PROCEDURE)


def take(new):
    return Instruction(procedure=PROCEDURE, config={TAKE: new})


def whole(vector, **more):
    return Instruction({ARRAYS: Payload(vector)}, procedure=PROCEDURE, **more)


def part(model, since, **more):
    """The first layer only; the others are the device's own, from the whole model of round ``since``."""
    layers = model[0].layers[:1]
    sent = {ARRAYS: Payload(model[1], layers)}
    return Instruction(sent, upload=layers, procedure=PROCEDURE, config={WHOLE_ROUND: since}, **more)


# --- a trial -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [False, True])
def test_losses_go_up_first_and_then_the_chosen_model_only(device, model, new):
    first = device.ask(both(model[1]), 4)
    assert "arrays" not in first.content
    losses = reply_checks.read_reply(first, model[0], ()).metrics
    assert losses[LOSS_OLD] != losses[LOSS_NEW]
    taken = device.reply(take(new), 4)
    # It is what an ordinary round from that model would have trained.
    ordinary = device.another().reply(whole(other(model[1]) if new else model[1]), 4)
    np.testing.assert_array_equal(taken.vector, ordinary.vector)
    assert taken.metrics["accuracy-trained"] == ordinary.metrics["accuracy-trained"]
    assert taken.metrics["train-loss"] == ordinary.metrics["train-loss"]
    # What it was tested with before training is the old structure's model, whichever won.
    assert taken.metrics["loss"] == losses["loss"]
    np.testing.assert_array_equal(device.own(4), taken.vector)
    assert set(device.state.recall("r", 5).slots) == {PERSONAL}


def test_the_losses_of_a_trial_are_those_of_the_trained_models(device, model):
    metrics = device.reply(both(model[1]), 4).metrics
    assert metrics[LOSS_OLD] < metrics["loss"]
    taken = device.reply(take(False), 4)
    again = device.reply(whole(taken.vector), 5)
    assert again.metrics["loss"] == pytest.approx(metrics[LOSS_OLD])


def test_a_trial_can_be_judged_by_samples_that_are_never_trained_on(device, model):
    held_out = protocol.holding_out(0.25)
    metrics = device.reply(replace(both(model[1]), config=held_out), 4).metrics
    taken = device.reply(take(False), 4)
    ordinary = device.another().reply(whole(model[1], config=held_out), 4)
    np.testing.assert_array_equal(taken.vector, ordinary.vector)  # trained on the rest
    on_all = device.reply(whole(taken.vector), 5).metrics
    on_rest = device.reply(whole(taken.vector, config=held_out), 6).metrics
    n, rest = on_all["num-examples"], on_rest["num-examples"]
    assert (n, rest) == (144, 108)
    expected = (n * on_all["loss"] - rest * on_rest["loss"]) / (n - rest)
    assert metrics[LOSS_OLD] == pytest.approx(expected, rel=1e-4)
    assert metrics[LOSS_OLD] != pytest.approx(on_rest["loss"], rel=1e-4)


def bad(vector):
    """A start from which the first step leads to no number, though every value of it is finite."""
    return np.full_like(vector, 1e30)


def test_a_model_that_diverges_has_the_largest_loss_and_cannot_be_taken(device, model):
    diverging = {ARRAYS: Payload(model[1]), NEW: Payload(bad(model[1]))}
    instruction = Instruction(diverging, upload=(), procedure=PROCEDURE)
    metrics = device.reply(instruction, 4).metrics
    assert metrics[LOSS_NEW] == DIVERGED
    assert metrics[LOSS_OLD] < metrics["loss"]
    assert "The model that won the trial of round 4 diverged on this device" in refusal(device, take(True), 4)
    ordinary = device.another().reply(whole(model[1]), 4)
    np.testing.assert_array_equal(device.reply(take(False), 4).vector, ordinary.vector)


def test_of_a_trial_in_which_both_models_diverge_it_says_so(device, model):
    diverging = {ARRAYS: Payload(bad(model[1])), NEW: Payload(bad(model[1]))}
    assert "diverged" in refusal(device, Instruction(diverging, upload=(), procedure=PROCEDURE), 4)


def test_without_the_second_message_it_goes_on_and_its_layers_are_of_that_round(device, model):
    device.reply(whole(model[1]), 3)
    device.reply(both(model[1]), 4)
    assert device.reply(part(model, since=3), 5).metrics["state-lost"] == 1  # the server thinks of round 3
    assert device.reply(whole(model[1]), 5).metrics["state-lost"] == 0


def test_a_device_that_lost_the_trained_models_says_so(device, model):
    device.reply(both(model[1]), 4)
    device.state.runs.of("r").delete("round-000004.safetensors")
    assert "no longer has the models that it trained for the trial of round 4" in refusal(device, take(True), 4)
    device.reply(whole(model[1]), 4)
    assert "no longer has the models" in refusal(device, take(True), 4)


def test_a_trial_that_is_repeated_gives_the_same(device, model):
    """A server that died between the two messages asks again, from the beginning."""
    runs = []
    for _ in range(2):
        metrics = device.reply(both(model[1]), 4).metrics
        runs.append((metrics, device.reply(take(True), 4).vector))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_both_models_must_be_whole(device, model):
    models = {ARRAYS: Payload(model[1]), NEW: Payload(model[1], model[0].layers[:1])}
    some = Instruction(models, upload=(), procedure=PROCEDURE)
    assert f"Record '{NEW}' must hold a whole model" in refusal(device, some, 1)


# --- layers that stay on the device ------------------------------------------------------------------------------


def test_slow_layers_live_on_the_device_across_restarts(device, model):
    layout = model[0]
    first, slow = layout.columns(layout.layers[:1]), layout.columns(layout.layers[1:])
    before = device.reply(whole(model[1]), 1).vector
    reply = device.reply(part(model, since=1), 2)
    assert reply.layers == layout.layers[:1]
    assert reply.metrics["state-lost"] == 0
    # Trained from the received first layer and its own other ones, as one message with all of that would have it.
    start = before.copy()
    start[first] = model[1][first]
    same = device.another().reply(whole(start), 2).vector
    np.testing.assert_array_equal(device.own(2)[slow], same[slow])
    np.testing.assert_array_equal(reply.vector[first], same[first])
    assert device.state.recall("r", 3).facts[WHOLE_ROUND] == 1


def test_a_repeated_round_gives_the_same(device, model):
    device.reply(whole(model[1]), 1)
    replies = [device.reply(part(model, since=1), 2).vector for _ in range(2)]
    np.testing.assert_array_equal(replies[0], replies[1])


def test_lost_layers_are_said_and_neither_trained_nor_kept(device, model):
    reply = device.reply(part(model, since=1), 2)
    assert reply.metrics == {"state-lost": 1, "num-examples": 144, "group": -1}
    assert device.state.recall("r", 3) is None
    assert device.reply(whole(model[1]), 3).metrics["state-lost"] == 0


def test_layers_from_another_whole_model_count_as_lost(device, model):
    device.reply(whole(model[1]), 1)
    device.reply(part(model, since=1), 2)
    reply = device.reply(part(model, since=2), 3)
    assert reply.metrics["state-lost"] == 1
    assert "loss" not in reply.metrics
    np.testing.assert_array_equal(device.own(3), device.own(2))


def test_alone_it_needs_no_model_and_says_when_it_has_none(device, model):
    alone = Instruction(start="personal", upload=(), procedure=PROCEDURE)
    assert device.reply(alone, 2).metrics["state-lost"] == 1
    trained = device.reply(whole(model[1]), 3).vector
    reply = device.ask(alone, 4)
    assert "arrays" not in reply.content
    metrics = reply_checks.read_reply(reply, model[0], ()).metrics
    assert metrics["state-lost"] == 0
    expected = device.another().reply(whole(trained), 4)
    assert metrics["loss"] == expected.metrics["loss"]
    np.testing.assert_array_equal(device.own(4), expected.vector)


def test_it_is_tested_with_its_own_slow_layers_or_not_at_all(device, model):
    test = part(model, since=1)
    assert "no model to test" in refusal(device, test, 1, "evaluate")
    device.reply(whole(model[1]), 1)
    tested = device.tested(test)
    start = device.own(1)
    columns = model[0].columns(model[0].layers[:1])
    start[columns] = model[1][columns]
    same = device.tested(whole(start))
    assert tested["test-loss"] == same["test-loss"]


def test_an_owner_who_ends_the_work_in_a_trial_says_nothing_of_the_structure(monkeypatch):
    trained = iter([(np.zeros(2), 0.5, {}), NotNow("too hot; again below 60 °C", 5.0)])

    def train(*_):
        if isinstance(found := next(trained), NotNow):
            raise found
        return found

    monkeypatch.setattr(dcpfl_device, "_trained", train)
    session = SimpleNamespace(report_start=lambda _: None, whole=lambda _: np.zeros(2), metrics={})
    with pytest.raises(NotNow, match="too hot"):
        dcpfl_device._try_both(session)
