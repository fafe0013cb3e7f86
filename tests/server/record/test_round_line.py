"""A round as a line of the record."""

from bouquet.common import protocol
from bouquet.common.task.score import ACCURACY
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.summary import round_line
from bouquet.server.record.traffic import Bytes
from bouquet.strategies import FedAvg


def test_scores_are_weighted_by_what_they_were_tested_on(scripted, play):
    def device(name, examples, tested, accuracy):
        metrics = {protocol.NUM_EXAMPLES: examples, protocol.TEST_EXAMPLES: tested}
        scores = {ACCURACY.key: accuracy, ACCURACY.trained: accuracy}
        return scripted(name, lambda start, _: start, {**metrics, **scores})

    strategy = FedAvg()
    play(strategy, InlineGrid({1: device("a", 9, 1, 1.0), 2: device("b", 1, 3, 0.0)}), range(1, 2))
    line = round_line(1, strategy, {}, Bytes(), 0.0)
    assert (line["accuracy_micro"], line["accuracy_macro"]) == (0.25, 0.5)
    assert (line["accuracy_trained_micro"], line["accuracy_trained_macro"]) == (0.25, 0.5)
    assert line["tested"] == 4
