import numpy as np

from bouquet.common.protocol import ARRAYS, Proximal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.ditto.strategy import Ditto


def test_the_global_model_is_fedavgs_and_anchors_the_personal_ones(layout, scripted, play):
    seen = []
    few = scripted("a", lambda sent, _: sent + 1, metrics={"num-examples": 10}, seen=seen)
    many = scripted("b", lambda sent, _: sent + 5, metrics={"num-examples": 30})
    strategy = Ditto(proximal_weight=0.3, identify=True)
    play(strategy, InlineGrid({1: few, 2: many}), range(1, 3))
    np.testing.assert_allclose(strategy.centers(strategy.state), [[8] * 8])
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0}
    for received in seen:
        assert received.procedure == "ditto"
        assert received.start == "personal"
        assert received.proximal == (Proximal(ARRAYS, 0.3),)
        assert received.upload == layout.layers
        assert set(received.models) == {ARRAYS}
    assert [r.newcomer for r in seen] == [True, False]
    assert seen[1].models[ARRAYS].vector.tolist() == [4] * 8


def test_evaluation_asks_for_the_personal_model(layout):
    strategy = Ditto()
    state = strategy.initial_state(layout, np.zeros(layout.dim, dtype=np.float32))
    instruction = strategy.plan_evaluate(state, 3, ["a"])["a"]
    assert (instruction.procedure, instruction.start) == ("ditto", "personal")
