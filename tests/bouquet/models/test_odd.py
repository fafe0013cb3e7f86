"""Which rows of a table are odd: the errors of windows by row, the device's own threshold, and what predict says."""

import json

import numpy as np
import pytest
import torch

from bouquet.client.data.cache import FOLDER, prepared
from bouquet.client.data.own import load_table
from bouquet.common.errors import BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import load_settings
from bouquet.models.export import export
from bouquet.models.kept import KeptModel, Scaled
from bouquet.models.odd import OddRows, row_errors
from bouquet.models.predict import predict, score_text

SETTINGS = ["task.kind=anomaly", "data.dataset=own", "table.inputs=flow,power", "table.time=time", "table.history=3"]
SETTINGS += ["model.name=mlp", "model.hidden=2"]


def test_errors_of_windows_are_those_of_their_rows():
    values = np.arange(12.0).reshape(6, 2)
    windows = np.stack([values[i : i + 3].T for i in (0, 1, 3)])  # none begins with the third row
    outputs = windows.copy()
    outputs[0, 1, 2] += 6  # of row 2, the second column; that row is in two windows
    first, errors = row_errors(windows, outputs.reshape(3, -1))
    assert first.tolist() == [0, 1, 4]
    expected = np.zeros((7, 2))
    expected[2, 1] = 3
    np.testing.assert_array_equal(errors, expected)


def test_a_row_is_odd_beyond_the_device_s_own_quantile_and_the_worst_column_is_named():
    errors = np.random.default_rng(0).exponential(size=(10_000, 2)) * (1, 100)
    usual = OddRows.of(errors)
    assert (usual.scores(errors).max(axis=1) > 1).mean() == pytest.approx(0.005, abs=1e-4)
    new = np.tile([0.1, 10.0], (10, 1))
    new[2:5, 1], new[7, 0] = 5000, 50
    new[8] = np.nan  # in no window
    found = [(s.first, s.last, s.column) for s in usual.stretches(new)]
    assert found == [(2, 4, 1), (7, 7, 0)]
    assert list(usual.stretches(new[:2])) == []


class Usual(torch.nn.Module):
    """Makes power of flow, as it is in training."""

    def forward(self, x):
        return torch.stack([x[:, 0], x[:, 0]], dim=1).flatten(1)


def test_predict_says_which_minutes_are_odd_and_by_which_column(tmp_path):
    rng = np.random.default_rng(0)
    flow = rng.normal(10, 2, 400)
    power = 3 * flow + rng.normal(0, 0.1, 400)
    power[350:360] += 20
    path = tmp_path / "pump.csv"
    rows = [
        f"2026-01-01T{i // 60:02}:{i % 60:02},{a:.3f},{b:.3f}" for i, (a, b) in enumerate(zip(flow, power, strict=True))
    ]
    path.write_text("\n".join(["time,flow,power", *rows, ""]))
    settings = load_settings(None, SETTINGS)
    data = load_table(path, settings)
    assert (data.train_x.shape[1:], data.train_y.shape[1:]) == ((2, 3), (6,))
    np.testing.assert_array_equal(data.test_y, data.test_x.reshape(len(data.test_x), -1))
    card = ModelCard.of(settings).model_copy(update={"scaling": data.scaling})
    assert ModelCard.from_json(card.to_json()) == card
    assert card.outputs == ("flow -2", "flow -1", "flow 0", "power -2", "power -1", "power 0")
    trained = prepared(tmp_path / "state", [path], {}, lambda: data).kept_as
    kept = KeptModel(Scaled(Usual(), data.scaling, (2, 3)), card, "here", tmp_path / "state" / FOLDER / trained)
    found = list(predict(kept, [path], top=1))
    assert [one.time for one in found if one.numbers[0][1] > 1.5] == ["2026-01-01T05:50:00Z/2026-01-01T05:59:00Z"]
    (fault,) = [one for one in found if one.numbers[0][1] > 1.5]
    assert json.loads(fault.to_json())["unit"] == "times the threshold"
    assert "rows." in found[0].notes[-1]
    assert score_text(kept, [path], found) == ""
    with pytest.raises(BouquetError, match="is not exported"):
        export(kept, tmp_path / "model.onnx")
