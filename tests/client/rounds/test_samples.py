"""Which of a device's samples are held out of training."""

import torch

from bouquet.client.rounds.samples import RoundSamples


def test_of_samples_in_the_order_of_their_time_the_newest_are_held_out():
    x = torch.arange(10)
    (rest, _), (held, labels) = RoundSamples((x, x), (x, x), 0, in_order=True).split(0.2)
    assert (held.tolist(), labels.tolist()) == ([9, 8], [9, 8])
    assert sorted(rest.tolist()) == [0, 1, 2, 3, 4, 5, 6, 7]
