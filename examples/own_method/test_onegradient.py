import numpy as np
import pytest
from onegradient.strategy import OneGradient
from onegradient.wire import FIRST_GRADIENT

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client

LAYOUT = ParameterLayout.of({"layer.weight": np.zeros((1, 2), dtype=np.float32)})


def client(name, gradient):
    def answer(model, received):
        return gradient if received.procedure == FIRST_GRADIENT else model - gradient

    return scripted_client(name, LAYOUT, answer)


def test_clients_are_grouped_by_their_gradients():
    gradients = {"a": [1, 0], "b": [0, 2], "c": [3, 0], "d": [0, 0]}
    clients = {node: client(name, np.float32(g)) for node, (name, g) in enumerate(gradients.items(), 2)}
    strategy = OneGradient(num_clusters=2, identify=True)
    initial = protocol.to_record(LAYOUT, np.zeros(2, dtype=np.float32))
    strategy.start(grid=InlineGrid(clients), initial_arrays=initial, num_rounds=2, timeout=5)
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 1, "c": 0}
    assert strategy.train_round.failures == {"d": "its gradient is 0"}
    assert strategy.centers(strategy.state).tolist() == [[-2, 0], [0, -2]]


def test_options():
    with pytest.raises(BouquetError, match="linkage = 'ward': input should be 'average', 'single' or 'complete'"):
        OneGradient(linkage="ward")
