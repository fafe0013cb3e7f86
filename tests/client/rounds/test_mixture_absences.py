"""Devices that come late, sleep or leave, in a run without an end: each serves a mixture of what it has."""

import numpy as np
import pytest

from bouquet.client.rounds.serving import LEFT_OUT, Serving, served_models
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.errors import BouquetError
from bouquet.models.kept import device_model
from tests.helpers.real_devices import Federation

ENDLESS = ("run.rounds=1000000000", "strategy.name=fedavg", "personal.serve=own", "personal.compare=false")
MIXTURE = "personal.serve=mixture"
AUTO = ["personal.serve=auto", "personal.compare=true"]
ROUNDS = 4
# Nodes 2 to 5, and the rounds in which they do not answer. The first is always there.
AWAY = {3: (2,), 4: (1, 2), 5: (3, 4)}  # one sleeps in one round, one comes late, one leaves


def played(folder, *changes, evaluated=(ROUNDS,)):
    """A federation after its rounds, with what each device scored in each of the tests between them."""
    federation, found = Federation(folder, *ENDLESS, *changes), {}
    for round_ in range(1, ROUNDS + 1):
        federation.silent = {node for node, rounds in AWAY.items() if round_ in rounds}
        federation.play(round_)
        if round_ in evaluated:
            federation.strategy.evaluate_round.scores.clear()
            found[round_] = federation.evaluate(round_)
    return federation, found


def state_of(folder, part):
    return DeviceState(FolderStore(folder / f"client-{part}"))


def kept_aside(folder, part):
    """Slot → tensors by name, of what the device kept last."""
    state, found = state_of(folder, part), {}
    run = state.latest().run
    version, *_ = state.array_versions(run, "served")
    for key, array in state.load_arrays(run, "served", version).items():
        slot, separator, name = key.partition("/")
        if separator:
            found.setdefault(slot, {})[name] = array
    return found


def test_whoever_was_away_serves_a_mixture_of_what_it_has(tmp_path):
    _, scores = played(tmp_path, MIXTURE)
    assert set(scores[ROUNDS]) == {"client-0", "client-1", "client-2"}  # the last one is gone
    for part, last in enumerate((4, 4, 4, 2)):
        state = state_of(tmp_path, part)
        assert state.latest().round == last
        assert {"received", "trained"} <= set(kept_aside(tmp_path, part))
        assert len(served_models(state, state.latest().run, last)) == 3 - (LEFT_OUT in kept_aside(tmp_path, part))
        assert len(device_model(tmp_path / f"client-{part}").model.models) >= 2  # without a server, too


def test_the_models_of_a_mixture_have_one_order_whatever_order_a_file_has(tmp_path, monkeypatch):
    """The mean of their probabilities differs in its last digit by the order."""
    played(tmp_path, MIXTURE)
    state, recall = state_of(tmp_path, 0), DeviceState.load_arrays
    run = state.latest().run
    expected = served_models(state, run, ROUNDS)
    assert len(expected) > 1
    monkeypatch.setattr(DeviceState, "load_arrays", lambda *of: dict(sorted(recall(*of).items(), reverse=True)))
    for found, one in zip(served_models(state, run, ROUNDS), expected, strict=True):
        assert all(np.array_equal(found[name], array) for name, array in one.items())


def test_whoever_is_tested_before_its_first_round_serves_what_it_was_sent(tmp_path):
    _, scores = played(tmp_path / "mixed", MIXTURE, evaluated=(1, 2, 3))
    _, plain = played(tmp_path / "plain", evaluated=(1, 2, 3))
    # Silent in a round it is silent in the test after it, too: the late one is first tested after the third.
    assert "client-2" not in scores[2]
    assert set(scores[3]) == set(plain[3]) == {"client-0", "client-1", "client-2"}

    late = Federation(tmp_path / "late", *ENDLESS, MIXTURE)
    late.silent = {4}
    late.play(1)
    late.silent = set()
    without = Federation(tmp_path / "without", *ENDLESS)
    without.silent = {4}
    without.play(1)
    without.silent = set()
    assert late.evaluate(1)["client-2"] == without.evaluate(1)["client-2"]
    with pytest.raises(BouquetError, match="holds no model yet"):
        device_model(tmp_path / "late" / "client-2")
    late.play(2)
    assert {"received", "trained"} <= set(kept_aside(tmp_path / "late", 2))


def test_a_reply_that_came_too_late_is_no_second_round_alone(tmp_path, monkeypatch):
    """A device trains, its reply is lost, and the server asks it for the same round again, or for the next one."""
    federation = Federation(tmp_path, *ENDLESS, *AUTO)
    federation.play(1)
    before = kept_aside(tmp_path, 0)["alone"]
    asked = []
    trained = Serving.save

    def noted(self, aside):
        asked.append(self.version)
        trained(self, aside)

    monkeypatch.setattr(Serving, "save", noted)
    federation.play(2)
    once = kept_aside(tmp_path, 0)["alone"]
    federation.play(2)
    assert asked == [4] * 8  # each of the four devices twice
    for name, array in kept_aside(tmp_path, 0)["alone"].items():
        np.testing.assert_array_equal(array, once[name])
        assert name.endswith("bias") or np.any(array != before[name])
    federation.play(3)
    assert any(np.any(array != once[name]) for name, array in kept_aside(tmp_path, 0)["alone"].items())
