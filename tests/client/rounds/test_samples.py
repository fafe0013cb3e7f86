"""Which of a device's samples are held out of training."""

import pytest
import torch

from bouquet.client.rounds.samples import RoundSamples


def test_of_samples_in_the_order_of_their_time_the_newest_are_held_out():
    x = torch.arange(10)
    (rest, _), (held, labels) = RoundSamples((x, x), (x, x), 0, in_order=True).split(0.2)
    assert (held.tolist(), labels.tolist()) == ([9, 8], [9, 8])
    assert sorted(rest.tolist()) == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(("count", "folds"), [(2, 2), (7, 7), (45, 20)])
def test_each_sample_is_in_one_fold_and_trained_on_in_all_other_rounds(count, folds, in_order):
    x = torch.arange(count)
    samples = RoundSamples((x, x), (x, x), 0, in_order=in_order)
    held = []
    for round_ in range(5, 5 + folds):
        (rest, _), (fold, labels) = samples.fold(samples.all_train, round_)
        assert fold.tolist() == labels.tolist()
        assert sorted([*rest.tolist(), *fold.tolist()]) == x.tolist()
        assert len(fold) in (count // folds, count // folds + 1)
        assert not in_order or fold.tolist() == list(range(fold[0], fold[0] + len(fold)))
        held += fold.tolist()
    assert sorted(held) == x.tolist()
