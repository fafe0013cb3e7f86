"""Whole runs with compression, simulated in this process: every method, a device that lost its folder, and resume."""

import json

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.server.run.build import build_strategy
from bouquet.strategies.base.filters.compression import Compression
from bouquet.strategies.baselines.fedavg import FedAvg

BASE = [
    "data.clients=4",
    "data.groups=2",
    "data.partition=rotated",
    "data.samples_per_client=120",
    "data.public_fraction=0.2",
    "model.hidden=[16]",
    "run.rounds=3",
    "simulation.engine=inline",
]
OPTIONS = {
    "fesem": ["strategy.num_clusters=2"],
    "fesem-ma": ["strategy.num_clusters=2"],
    "ifca": ["strategy.num_clusters=2"],
    "gradient-loss": ["strategy.num_clusters=2"],
}


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def rounds(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_works_or_refuses_by_name(name, tmp_path):
    chosen = settings(f"strategy.name={name}", *OPTIONS.get(name, ()), "wire.up=int4", "wire.down=int4")
    try:
        summary = simulate(chosen, tmp_path / "run")
    except BouquetError as error:
        assert name == "feddane"
        assert f"does not fit {name!r}" in str(error)  # noqa: PT017
        return
    assert all(line["failures"] == 0 for line in rounds(tmp_path / "run"))
    assert summary["clients"] == 4
    assert np.isfinite(summary["accuracy_macro"])
    assert summary["bytes_up"] <= summary["bytes_up_plain"]
    if any(line["bytes_by_layer"]["up"] for line in rounds(tmp_path / "run")):
        assert summary["bytes_up"] < 0.5 * summary["bytes_up_plain"]


def test_a_compressed_run_is_near_the_same_run_uncompressed(tmp_path):
    changes = ["strategy.name=fedavg", "run.rounds=8", "data.groups=null", "data.partition=iid"]
    exact = simulate(settings(*changes), tmp_path / "exact")
    coded = simulate(settings(*changes, "wire.up=int8", "wire.down=int8"), tmp_path / "coded")
    assert coded["accuracy_macro"] == pytest.approx(exact["accuracy_macro"], abs=0.05)
    assert exact["bytes_up"] == exact["bytes_up_plain"]
    assert coded["bytes_up"] + coded["bytes_down"] < 0.5 * (exact["bytes_up"] + exact["bytes_down"])
    assert coded["bytes_down_plain"] == pytest.approx(exact["bytes_down"], rel=0.05)


def test_a_method_that_needs_exact_models_is_refused_by_name(tmp_path, monkeypatch):
    reason = "it counts the bits of what it was sent."
    monkeypatch.setattr(FedAvg, "needs_exact", lambda self, down: reason if down == "int4" else "")
    refused = settings("strategy.name=fedavg", "wire.down=int4")
    with pytest.raises(BouquetError, match=f"Setting wire.down = 'int4' does not fit 'fedavg': {reason}"):
        build_strategy(refused)
    assert build_strategy(settings("strategy.name=fedavg", "wire.up=int4")).filter_of(Compression) is not None
    assert build_strategy(settings("strategy.name=fedavg")).filter_of(Compression) is None
