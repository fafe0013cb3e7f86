import numpy as np

from bouquet.strategies.gradient_loss.wire import step_record
from tests.helpers.choosing_devices import POINTS, fresh, grid


def test_devices_come_go_and_fail(play):
    seen, strategy = [], fresh()
    play(strategy, grid(seen, {"c": (2,)}, "abc"), range(1, 4), POINTS)
    assert set(strategy.state.assignment) == {"a", "b", "c"}
    play(strategy, grid(seen, names="abcd"), range(4, 9), POINTS)
    assignment = strategy.state.assignment
    assert assignment["a"] == assignment["b"] != assignment["c"] == assignment["d"]
    with_step = {(round_, name) for round_, name, received in seen if step_record(0) in received.models}
    # c failed in round 2, d joined in round 4; all others had the centers of the round before
    assert with_step == {(3, "c"), (4, "d")}
    np.testing.assert_allclose(strategy.state.centers[assignment["a"]], [0, 0], atol=0.5)
    np.testing.assert_allclose(strategy.state.centers[assignment["d"]], [8, 8], atol=0.5)


def test_a_round_without_enough_replies_changes_nothing(play):
    seen, strategy = [], fresh(min_replies=4)
    play(strategy, grid(seen), range(1, 3), POINTS)
    before = strategy.state
    play(strategy, grid(seen, {"a": (3,)}), range(3, 4), POINTS)
    assert strategy.state is before
    play(strategy, grid(seen), range(4, 5), POINTS)
    # a refused, the others answered in vain: the server knows of version 1 at all of them, which is what they need
    assert not any(step_record(0) in received.models for round_, _, received in seen if round_ == 4)
