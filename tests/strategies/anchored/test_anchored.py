"""The anchored method: FeSEM's centers as anchors of personal models, and one center where there are no groups."""

import numpy as np
import pytest

from bouquet.client.training.objective import ProximalTerm
from bouquet.common.errors import BouquetError
from bouquet.common.protocol import ARRAYS, Instruction, Payload, ProtocolError, Proximal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import one_model
from bouquet.strategies.anchored import ANCHOR_WEIGHT, PROCEDURE
from bouquet.strategies.anchored.strategy import Anchored
from tests.helpers.real_devices import Federation


def towards(goal, rate=0.5):
    return lambda sent, _: sent + np.float32(rate) * (np.asarray(goal, dtype=np.float32) - sent)


def two_pairs(scripted, seen=None):
    """Devices a, c pull to one side, b, d to the other."""
    goals = {"a": 4.0, "b": -4.0, "c": 4.2, "d": -4.2}
    return InlineGrid(
        {
            node: scripted(name, towards(np.full(8, goal)), seen=seen if name == "a" else None)
            for node, (name, goal) in enumerate(goals.items(), start=1)
        }
    )


def test_each_device_is_anchored_at_the_center_of_its_cluster(scripted, play):
    seen = []
    strategy = Anchored(num_clusters=2, anchor_weight=0.3, identify=True)
    play(strategy, two_pairs(scripted, seen), range(1, 5))
    found = strategy.assignment(strategy.state)
    assert found["a"] == found["c"] != found["b"] == found["d"]
    last = seen[-1]
    assert (last.procedure, last.start, last.newcomer) == ("anchored", "personal", False)
    assert last.config[ANCHOR_WEIGHT] == 0.3
    assert last.proximal == (Proximal(ARRAYS, 0.002),)  # FeSEM's own, for the center
    assert set(last.models) == {ARRAYS}
    assert last.models[ARRAYS].vector.mean() > 3
    assert seen[0].newcomer


def test_the_number_of_clusters_is_found_as_fesem_finds_it(scripted, play):
    strategy = Anchored(identify=True)
    goals = {f"c{i:02}": np.random.default_rng(i % 2).normal(size=8) + 0.01 * i for i in range(12)}
    devices = [scripted(name, towards(goal)) for name, goal in goals.items()]
    play(strategy, InlineGrid(dict(enumerate(devices, start=1))), range(1, 5))
    assert strategy.record(strategy.state)["num_clusters"] == len(strategy.centers(strategy.state)) == 2


def test_one_center_where_there_are_no_groups(scripted, play):
    """Every device pulls its own way; then it is Ditto."""
    sides = np.eye(8)[:5] * 4
    grid = InlineGrid({node: scripted(f"c{node}", towards(side)) for node, side in enumerate(sides, start=1)})
    strategy = Anchored(identify=True)
    play(strategy, grid, range(1, 6))
    assert strategy.record(strategy.state)["num_clusters"] == len(strategy.centers(strategy.state)) == 1


def instruction(federation, weight=1.0, **more):
    config = {ANCHOR_WEIGHT: weight}
    return one_model(federation.initial, start="personal", procedure=PROCEDURE, config=config, **more)


def personal(federation, round_=1):
    session = federation.session(Instruction(), round_, "evaluate")
    return session.layout.flatten(session.recall().slots["personal"])


def test_a_device_trains_the_center_and_its_own_model_near_it(tmp_path):
    """Each with its own term: what is sent is FeSEM's, what is kept is pulled by the anchor."""
    federation = Federation(tmp_path, "strategy.name=anchored", "train.local_epochs=3")
    asked = instruction(federation, weight=5.0, proximal=(Proximal(ARRAYS, 0.5),))
    reply = federation.ask(asked)
    session = federation.session(asked)
    shared, _ = session.train(federation.initial, session.proximal_terms())
    np.testing.assert_array_equal(reply.vector, shared)
    anchor = session.tensors(Payload(federation.initial))
    own, _ = session.train(federation.initial, [ProximalTerm(anchor, 5.0)])
    np.testing.assert_array_equal(personal(federation), own)
    far = [np.linalg.norm(model - federation.initial) for model in (own, shared)]
    assert far[0] < 0.8 * far[1]


def test_it_is_tested_with_its_personal_model_which_goes_on_from_round_to_round(tmp_path):
    federation = Federation(tmp_path, "strategy.name=anchored", "strategy.num_clusters=2")
    federation.play(1, 2)
    found = federation.evaluate(2)["client-0"]
    session = federation.session(Instruction(), 2, "evaluate")
    assert session.reply_evaluation(personal(federation, 2)).content["metrics"]["accuracy"] == found
    assert federation.ask(instruction(federation), round_=3).metrics["state-lost"] == 0


def test_options_that_do_not_fit(tmp_path):
    with pytest.raises(BouquetError, match="anchor_weight = -1"):
        Anchored(anchor_weight=-1)
    federation = Federation(tmp_path, "strategy.name=anchored")
    with pytest.raises(ProtocolError, match="anchor-weight = None"):
        federation.ask(one_model(federation.initial, procedure=PROCEDURE))
