"""Flower's own PyTorch quickstart with FeSEM in the place of FedAvg, its ClientApp unchanged (examples)."""

import os
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart-pytorch"
CONFIG = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@pytest.fixture
def example(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.chdir(tmp_path)
    from pytorchexample import client_app, server_app

    yield client_app, server_app
    for name in [name for name in sys.modules if name.startswith("pytorchexample")]:
        del sys.modules[name]


def six_devices(client_app):
    torch.manual_seed(0)
    configs = [{"partition-id": part, "num-partitions": 6} for part in range(6)]
    contexts = {10 + part: Context(1, 10 + part, config, RecordDict(), CONFIG) for part, config in enumerate(configs)}
    return InlineGrid(app_handlers(client_app.app, contexts))


def test_it_finds_who_sees_digits_upside_down_and_is_more_accurate_than_fedavg(example, capsys):
    client_app, server_app = example
    server_app.app(six_devices(client_app), Context(1, 1, {}, RecordDict(), CONFIG))
    accuracy, *clusters = capsys.readouterr().out.strip().splitlines()
    upright, turned = (" ".join(f"node-{10 + part}" for part in parts) for parts in ((0, 2, 4), (1, 3, 5)))
    assert {line.partition(" is the model of ")[2] for line in clusters} == {upright, turned}
    assert sorted(os.listdir()) == ["cluster-0.pt", "cluster-1.pt"]
    server_app.Net().load_state_dict(torch.load("cluster-0.pt"))
    grid, initial = six_devices(client_app), ArrayRecord(server_app.Net().state_dict())
    rounds, config = CONFIG["num-server-rounds"], ConfigRecord({"lr": CONFIG["learning-rate"]})
    fedavg = FedAvg().start(grid, initial, num_rounds=rounds, train_config=config)
    found = float(accuracy.removeprefix("Accuracy: "))
    assert found > 0.9
    assert found > fedavg.evaluate_metrics_clientapp[rounds]["eval_acc"] + 0.05
