"""Runs on devices' own tables: regression, classification, forecasts; what is recorded and served; an own task."""

import csv
import json
import math
import re

import numpy as np
import pytest
import torch

from bouquet.common.errors import BouquetError
from bouquet.common.settings import parse_settings
from bouquet.common.settings.sections import TaskSettings
from bouquet.common.task.score import Score
from bouquet.common.task.task import Classification, Regression
from bouquet.experiments.simulation import run
from bouquet.experiments.simulation.run import STATE_FOLDER, simulate
from bouquet.models.export import export
from bouquet.models.kept import cluster_model, device_model
from bouquet.models.predict import predict, score_text
from bouquet.server.record.reader import read_run
from tests.helpers.tanks import FORECAST, write_tables

TABLE = {
    "data.dataset": "own",
    "data.clients": 4,
    "run.rounds": 5,
    "simulation.engine": "inline",
    "model.hidden": [16],
    "train.learning_rate": 0.05,
    "train.local_epochs": 3,
    "server.min_clients": 1,
}


class Quantile(Regression):
    """The upper of two quantiles, by the pinball loss."""

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.score = Score("pinball", "pinball loss", settings.unit, higher_is_better=False)

    def loss(self, outputs, targets):
        return self._pinball(outputs, targets).mean()

    def errors(self, outputs, targets):
        return self._pinball(outputs, targets).mean(dim=1)

    def _pinball(self, outputs, targets):
        return torch.maximum(0.9 * (targets - outputs), 0.1 * (outputs - targets))


def settings(folder, **changes):
    return parse_settings(
        {}, {**TABLE, "data.data_dir": str(folder), **{k.replace("__", "."): v for k, v in changes.items()}}
    )


def write(file, heads, rows):
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([heads, *rows])


@pytest.fixture
def lines(tmp_path):
    """Four tables of y = ±3 x + 100 + noise, two of each sign."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for device in range(4):
        rng = np.random.default_rng(device)
        x = rng.uniform(-1, 1, 80)
        y = 100 + (3 if device < 2 else -3) * x + rng.normal(0, 0.1, 80)
        write(folder / f"d{device}.csv", ("x", "y", "sign"), zip(x, y, np.where(y > 100, "up", "down"), strict=True))
    return folder


@pytest.fixture
def kept(monkeypatch):
    """The devices' folders stay."""
    monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)


REGRESSION = {"task__kind": "regression", "task__unit": "cm", "table__inputs": ["x"], "table__targets": ["y"]}


def test_a_regression_finds_its_clusters_and_is_scored_in_the_targets_unit(lines, tmp_path, kept):
    chosen = settings(lines, **REGRESSION, strategy__name="fesem", strategy__num_clusters=2)
    found = simulate(chosen, tmp_path / "run")
    assert (
        found["assignment"]["d0"] == found["assignment"]["d1"] != found["assignment"]["d2"] == found["assignment"]["d3"]
    )
    assert found["score"] == {"key": "mae", "label": "MAE", "unit": "cm", "higher_is_better": False}
    assert "accuracy_macro" not in found
    # Of the mean alone about 1.5, of the noise alone .08; within what four devices and five rounds can learn.
    assert found["mae_macro"] < 0.5 < 1.2 < found["naive_macro"]
    # The figure against the model that the device keeps, on the rows that it tests, by another way.
    model = device_model(tmp_path / "run" / STATE_FOLDER / "d0")
    rows = np.genfromtxt(lines / "d0.csv", delimiter=",", skip_header=1, usecols=(0, 1))
    assert model.card.scaling is not None
    train = [i for i, x in enumerate(rows[:, 0]) if i not in _tested_rows(chosen, rows)]
    assert model.card.scaling.mean[0] == pytest.approx(rows[train, 0].mean(), rel=1e-6)
    assert model.card.scaling.target_std[0] == pytest.approx(rows[train, 1].std(), rel=1e-6)


def _tested_rows(chosen, rows):
    from bouquet.client.context import own_data

    data = own_data(chosen, str(next(iter(_folder(chosen)))), False)
    test = data.scaling.undone(data.test_y)[:, 0]
    return {int(np.abs(rows[:, 1] - value).argmin()) for value in test}


def _folder(chosen):
    from bouquet.client.data.folder import client_folders

    return client_folders(chosen.data.data_dir)


def test_the_worst_tenth_of_an_error_is_the_highest_and_the_best_round_the_lowest(lines, tmp_path):
    found = simulate(settings(lines, **REGRESSION, strategy__name="fedavg", personal__serve="own"), tmp_path / "run")
    assert found["mae_worst_decile"] == max(found["mae_by_client"].values())
    record = read_run(tmp_path / "run")
    assert record.score.label == "MAE"
    _, values = record.outcome("mae_macro")
    assert found["best_round"]["mae_macro"] == pytest.approx(values.min())
    # Two signs in one model: no better than the mean, and the run says so.
    assert any("no better than without a model" in warning for warning in found["warnings"])


@pytest.mark.parametrize("method", ["standalone", "fedper", "ditto", "ifca", "gradient-loss", "dc-pfl", "fedac", "cfl"])
def test_methods_that_need_no_classes_run_on_numbers(method, lines, tmp_path):
    found = simulate(settings(lines, **REGRESSION, strategy__name=method, run__rounds=2), tmp_path / "run")
    assert len(found["mae_by_client"]) == 4
    assert all(math.isfinite(value) for value in found["mae_by_client"].values())


def test_what_needs_classes_is_refused_by_name(lines, tmp_path):
    with pytest.raises(BouquetError, match=r"'fedtsdp' does not fit task.kind = 'regression': models are compared by"):
        simulate(settings(lines, **REGRESSION, strategy__name="fedtsdp"), tmp_path / "run")


def test_a_mixture_of_numbers_is_their_mean(lines, tmp_path, kept):
    simulate(settings(lines, **REGRESSION, strategy__name="ditto", personal__serve="mixture"), tmp_path / "run")
    model = device_model(tmp_path / "run" / STATE_FOLDER / "d2")
    x = np.array([[0.5], [-0.5]], dtype=np.float32)
    mixture, scaling = model.model.model, model.card.scaling
    parts = [one(torch.as_tensor(scaling.inputs(x))).detach().numpy() for one in mixture.models]
    assert len(parts) >= 2
    np.testing.assert_allclose(model.numbers(x), scaling.undone(np.mean(parts, axis=0)), rtol=1e-5)


def test_a_classification_from_a_table(lines, tmp_path, kept):
    table = {"table__inputs": ["x"], "table__targets": ["sign"], "data__classes": ["down", "up"]}
    found = simulate(settings(lines, **table, strategy__name="fesem", strategy__num_clusters=2), tmp_path / "run")
    assert found["accuracy_macro"] > 0.85
    model = device_model(tmp_path / "run" / STATE_FOLDER / "d0")
    said = list(predict(model, [lines / "d0.csv"], 1))
    assert len(said) == 80
    assert said[0].name == f"{lines / 'd0.csv'}, line 2"
    assert {one.classes[0][0] for one in said} == {"down", "up"}
    assert re.match(r"accuracy (1\.0|0\.9).*over 80 samples", score_text(model, [lines / "d0.csv"], said))


def test_an_own_task_is_a_class_of_a_few_lines(lines, tmp_path):
    kind = f"{__name__}:Quantile"
    found = simulate(
        settings(lines, **{**REGRESSION, "task__kind": kind}, strategy__name="standalone"), tmp_path / "run"
    )
    assert found["score"]["label"] == "pinball loss"
    assert 0 < found["pinball_macro"] < found["naive_macro"]


class OwnClasses(Classification):
    pass


def test_a_task_derived_from_classification_is_refused_for_its_loss_would_not_count(lines, tmp_path):
    kind = f"{__name__}:OwnClasses"
    with pytest.raises(BouquetError, match=r"OwnClasses' is derived from Classification, .* Regression or Forecast"):
        simulate(settings(lines, **{**REGRESSION, "task__kind": kind}), tmp_path / "run")


def test_a_task_that_is_none_is_named(lines, tmp_path):
    with pytest.raises(BouquetError, match=r"'json:JSONDecoder' is no class derived from"):
        simulate(settings(lines, **{**REGRESSION, "task__kind": "json:JSONDecoder"}), tmp_path / "run")


# TorchScript's tracer fixes the number of samples in a GRU's first state: the export finds that and refuses.
@pytest.mark.parametrize(
    ("model", "suffix"), [("mlp", ".onnx"), ("mlp", ".pt"), ("cnn-har", ".onnx"), ("cnn-har", ".pt"), ("gru", ".onnx")]
)
def test_a_forecast_is_exported_with_its_scaling_inside(model, suffix, tmp_path, kept):
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    write_tables(tmp_path / "tables", seed=0, devices=2)
    changes = {"data.clients": 2, "data.data_dir": str(tmp_path / "tables"), "simulation.engine": "inline"}
    changes |= {"model.name": model, "run.rounds": 1, "strategy.name": "standalone"}
    simulate(parse_settings({}, FORECAST | changes), tmp_path / "run")
    kept_model = device_model(tmp_path / "run" / STATE_FOLDER / "filled-1")
    export(kept_model, tmp_path / f"model{suffix}")  # which tries it
    # In centimetres, in and out: a level of about 60 stays one.
    x = np.full((1, 2, 6), 60, dtype=np.float32)
    x[0, 1] = 1
    assert 40 < kept_model.numbers(x)[0, 0] < 110
    last = list(predict(kept_model, [tmp_path / "tables" / "filled-1.csv"], 1))
    assert len(last) == 1
    assert last[0].name.endswith("2026-02-20T03:00:00Z")  # four hours after the last row
    assert json.loads(last[0].to_json())["unit"] == "cm"
    assert score_text(kept_model, [tmp_path / "tables" / "filled-1.csv"], last).startswith("MAE ")


def test_numbers_of_an_npz_are_trained_scored_predicted_and_exported_in_their_units(tmp_path, kept):
    for device in range(2):
        rng = np.random.default_rng(device)
        x = rng.normal(50, 5, (90, 2)).astype(np.float32)
        y = np.stack([1000 + 3 * x[:, 0], 7 - x[:, 1]], axis=1)
        (tmp_path / "fleet" / f"d{device}").mkdir(parents=True)
        np.savez(tmp_path / "fleet" / f"d{device}" / "data.npz", x=x, y=y, time=60.0 * rng.permutation(90))
    chosen = parse_settings(
        {},
        TABLE
        | {"data.clients": 2, "data.data_dir": str(tmp_path / "fleet"), "data.input_shape": [2], "data.split": "time"}
        | {"task.kind": "regression", "task.unit": "cm", "table.targets": ["far", "near"], "strategy.name": "fedavg"},
    )
    found = simulate(chosen, tmp_path / "run")
    assert found["mae_macro"] < 0.5 * found["naive_macro"]
    model = device_model(tmp_path / "run" / STATE_FOLDER / "d1")
    assert model.card.facts()["table"]["targets"] == ["far", "near"]
    file = tmp_path / "fleet" / "d1" / "data.npz"
    said = list(predict(model, [file], 1))
    truth = np.load(file)["y"]
    assert said[7].name == f"{file}[7]"
    told = np.array([[value for _, value in one.numbers] for one in said])
    np.testing.assert_allclose(told, truth, atol=8)
    assert json.loads(said[0].to_json())["predictions"].keys() == {"far", "near"}
    mae = float(np.abs(told - truth).mean())
    text = score_text(model, [file], said)
    assert text.endswith("cm, over 90 samples with a label")
    assert float(text.split()[1]) == pytest.approx(mae, rel=1e-3)
    np.savez(tmp_path / "words.npz", x=np.zeros((2, 2)), y=["a", "b"])
    assert "'y' holds words" in next(iter(predict(model, [tmp_path / "words.npz"], 1))).error
    with pytest.raises(BouquetError, match="which each device scales by its own"):
        cluster_model(tmp_path / "run", 0)
    pytest.importorskip("onnxscript")
    export(model, tmp_path / "model.onnx")
