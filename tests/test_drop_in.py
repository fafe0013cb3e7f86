"""FeSEM in place of FedAvg, in a plain Flower app with an unmodified ClientApp (examples/drop_in)."""

import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers

EXAMPLE = Path(__file__).parents[1] / "examples" / "drop_in"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from dropin import client_app, server_app

    yield client_app, server_app
    for name in [name for name in sys.modules if name.startswith("dropin")]:
        del sys.modules[name]


def test_the_example_finds_the_two_lines(example, capsys):
    client_app, server_app = example
    contexts = {10 + part: Context(1, 10 + part, {"partition-id": part}, RecordDict(), {}) for part in range(6)}
    grid = InlineGrid(app_handlers(client_app.app, contexts))
    server_app.app(grid, Context(1, 1, {}, RecordDict(), {"num-rounds": 4}))
    printed = capsys.readouterr().out
    centers = np.array(eval(printed.split("(slope, intercept): ")[1].splitlines()[0]))
    assert sorted(centers[:, 0].round()) == [-2, 2]
    clusters = eval(printed.split("clusters: ")[1])
    assert len({clusters[f"node-{10 + part}"] for part in (0, 2, 4)}) == 1
    assert clusters["node-10"] != clusters["node-11"]


def test_the_same_app_with_flowers_fedavg_cannot_fit_both(example):
    client_app, _ = example
    import torch
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from bouquet.strategies import FeSEM

    losses = {}
    for strategy in (FedAvg(), FeSEM(num_clusters=2, proximal_weight=0)):
        contexts = {10 + part: Context(1, 10 + part, {"partition-id": part}, RecordDict(), {}) for part in range(6)}
        torch.manual_seed(0)
        initial = ArrayRecord(client_app.make_model().state_dict())
        result = strategy.start(InlineGrid(app_handlers(client_app.app, contexts)), initial, num_rounds=4, timeout=5)
        losses[type(strategy).__name__] = result.evaluate_metrics_clientapp[4]["eval_loss"]
    assert losses["FeSEM"] < 0.01 < 0.1 < losses["FedAvg"]
