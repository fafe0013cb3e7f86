import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.strategies.dcpfl.splitting import period_end, radii_of_curvature, smoothed


def test_the_window_is_shorter_at_the_start():
    assert smoothed([4, 2, 0, 2], 3) == [4, 3, 2, pytest.approx(4 / 3)]


def test_radius_by_hand():
    """Eq. 4 with a window of one: l = 4, 1, 0 has l' = −3, −1 and l'' = 2 at the last of them."""
    radii = radii_of_curvature([4, 1, 0], window=1)
    assert radii[:2] == [math.inf, math.inf]
    assert radii[2] == pytest.approx(2**1.5 / 2)


def test_radius_is_infinite_where_the_curve_is_straight_or_bends_down():
    assert radii_of_curvature([3, 2, 1, 0, -2], window=1) == [math.inf] * 5


def test_radius_is_computed_from_round_s_on():
    falling = [2.0**-t for t in range(10)]
    radii = radii_of_curvature(falling, window=5)
    assert all(math.isinf(r) for r in radii[:4])
    assert math.isfinite(radii[4])
    # As the window is full from here on, the smoothed curve first falls faster: r is infinite once.
    assert [math.isfinite(r) for r in radii[5:]] == [False, True, True, True, True]


def elbow(at, length=16):
    """Steep up to ``at``, then all but flat."""
    return [1.0 - 0.1 * min(t, at) - 0.001 * max(0, t - at) for t in range(length)]


@pytest.mark.parametrize("at", [5, 7, 9])
def test_a_known_elbow_is_found_one_step_after_it(at):
    """With a window of one, l'' is largest where the slope has changed: at the first value after the elbow."""
    assert period_end(elbow(at), window=1, observe=3) == at + 1


def test_the_smoothed_elbow_is_noticed_after_the_observed_rounds_and_not_before():
    losses = elbow(7)
    found = period_end(losses, window=5, observe=3)
    assert 8 <= found <= 12
    assert period_end(losses[: found + 4], window=5, observe=3) == found
    assert period_end(losses[: found + 3], window=5, observe=3) is None


def test_an_exponential_decay_ends_once_it_is_observed():
    """Its curvature is largest at the start of what counts, so the first radius is the least."""
    losses = [math.exp(-t / 3) for t in range(12)]
    assert period_end(losses, window=1, observe=3) == 2
    assert period_end(losses, window=5, observe=3) == 6


def test_a_new_period_does_not_count_earlier_radii():
    two = elbow(5, 9)
    losses = two + [two[-1] - 1 + value for value in elbow(5, 9)]
    first = period_end(losses, window=1, observe=2)
    assert first == 6
    assert period_end(losses, window=1, observe=2, start=first + 1) == 9 + 6


@pytest.mark.parametrize(
    "losses",
    [
        [0.7] * 20,  # a plateau
        [0.1 * t for t in range(20)],  # a straight rise
        [0.01 * t**2 for t in range(20)],  # a rise that gets steeper: as convex as an elbow
        [-0.01 * t**2 for t in range(20)],  # a fall that gets steeper
        [1.0 - 0.01 * t for t in range(20)],  # a straight fall
        [],
        [1.0],
    ],
)
def test_no_period_ends_where_there_is_no_elbow(losses):
    assert period_end(losses, window=1, observe=3) is None
    assert period_end(losses, window=5, observe=3) is None


# Measured with slow layers on the devices (FashionMNIST, α = 3), from the round of a split on: in one round of three
# the model that a device receives is its group's, in the others partly its own.
ZIGZAG = [0.359, 0.151, 0.096, 0.324, 0.119, 0.063, 0.306, 0.107, 0.048, 0.288, 0.074, 0.037, 0.268, 0.065, 0.031]
BEFORE = [2.31, 2.134, 1.205, 0.819, 0.691, 0.639, 0.39, 0.287, 0.584, 0.285, 0.191, 0.54]


def test_an_elbow_of_a_loss_that_slow_layers_swing_needs_a_window_of_whole_cycles():
    losses, start = BEFORE + ZIGZAG, len(BEFORE)
    assert [period_end(losses, window, 3, start) for window in (1, 2, 5)] == [None] * 3
    assert [period_end(losses, window, 3, start) for window in (3, 6)] == [15, 18]


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10))
def test_what_is_noticed_stays_noticed(losses, window, observe, start):
    """The detector sees only the past: more rounds never move an end that was found."""
    ends = [period_end(losses[:n], window, observe, start) for n in range(len(losses) + 1)]
    found = [end for end in ends if end is not None]
    assert len(set(found)) <= 1
    assert ends[len(ends) - len(found) :] == found
    assert all(end >= start for end in found)
