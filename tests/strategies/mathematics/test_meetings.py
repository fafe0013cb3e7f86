import numpy as np
from scipy.spatial.distance import squareform

from bouquet.strategies.mathematics.meetings import add_meeting, mean_distances


def test_a_pair_averages_over_the_rounds_in_which_it_met():
    def square(ab, ac, bc):
        return squareform(np.array([ab, ac, bc], dtype=float))

    total, meetings, known = add_meeting(None, None, [], ["b", "a"], np.array([[0, 1.0], [1, 0]]))
    assert known == ["b", "a"]
    total, meetings, known = add_meeting(total, meetings, known, ["a", "b", "c"], square(3, 4, 6))
    assert known == ["b", "a", "c"]
    np.testing.assert_array_equal(mean_distances(total, meetings), square(2, 6, 4))
    total, meetings, known = add_meeting(total, meetings, known, ["c", "d", "a"], square(7, 9, 8), fill_in=True)
    assert mean_distances(total, meetings)[1, 2] == 4  # a and c met before
    assert mean_distances(total, meetings)[3].tolist() == [7, 8, 7, 0]  # b and d: over c, max(6, 7)


def test_a_pair_that_nobody_links_is_as_far_as_any():
    total, meetings, known = add_meeting(None, None, [], ["a", "b"], np.array([[0, 1.0], [1, 0]]))
    total, meetings, known = add_meeting(total, meetings, known, ["c", "d"], np.array([[0, 5.0], [5, 0]]))
    assert mean_distances(total, meetings).tolist() == [[0, 1, 5, 5], [1, 0, 5, 5], [5, 5, 0, 5], [5, 5, 5, 0]]
