"""Which round was best."""

import pytest

from bouquet.server.record.summary import best_round


@pytest.mark.parametrize(
    ("tested", "last", "best"),
    [
        # Line t tests what t - 1 rounds have led to; the last ones are tested at the end.
        ([0.1, 0.5, 0.9, 0.7], [0.8, 0.6], (2, 0.9)),
        ([0.1, 0.5, 0.6], [1.0, 0.9], (3, 0.95)),
        ([0.1, None, 0.6], [], (2, 0.6)),
        ([None, 0.5, 0.5], [0.5], (1, 0.5)),
    ],
)
def test_the_best_round_is_the_one_whose_models_were_tested_best(tested, last, best):
    rounds = [{"round": k + 1, "accuracy_macro": accuracy} for k, accuracy in enumerate(tested)]
    found = best_round(rounds, last)
    assert (found["round"], found["accuracy_macro"]) == (best[0], pytest.approx(best[1]))


def test_without_a_test_there_is_none():
    assert best_round([{"round": 1, "accuracy_macro": None}], []) is None
