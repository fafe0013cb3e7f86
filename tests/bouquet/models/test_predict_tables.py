"""``bouquet predict`` on tables with gaps: what training fills or leaves out, it does too, and says so."""

import json
import sys

import numpy as np
import pytest
import torch

from bouquet.cli import main
from bouquet.common.data.scaling import Scaling
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import parse_settings
from bouquet.models.kept import KeptModel, Scaled


class Sums:
    """In a model's place: the sum of what it is given, so that a row is known by what is told of it."""

    def __call__(self, x):
        return x.flatten(1).sum(dim=1, keepdim=True)


def kept(**table):
    forecast = "history" in table
    settings = parse_settings(
        {},
        {"data.dataset": "own", "task.kind": "forecast" if forecast else "regression", "task.unit": "cm"}
        | {f"table.{key}": value for key, value in table.items()},
    )
    card = ModelCard.of(settings).model_copy(update={"scaling": Scaling((0.0,), (1.0,), (0.0,), (1.0,))})
    return KeptModel(Sums(), card, "here")


@pytest.fixture
def bouquet(monkeypatch, capsys):
    def run(model, *arguments):
        monkeypatch.setattr("bouquet.commands.models._model", lambda *_: model)
        monkeypatch.setattr(sys, "argv", ["bouquet", "predict", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out.splitlines(), said.err.splitlines()

    return run


ROWS = {"inputs": ["a", "b"], "targets": ["y"]}


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_keep_their_lines_and_what_has_no_target_is_not_scored(tmp_path, bouquet):
    file = write(tmp_path / "t.csv", "a,b,y", "1,1,2", "2,NA,4", "", "4,4,", "5,5,9", "6,,", "7,7,14")
    code, out, err = bouquet(kept(**ROWS), file)
    assert (code, out) == (0, [f"{file}, line {n}: y {v} cm" for n, v in ((2, 2), (5, 8), (6, 10), (8, 14))])
    assert "2 of 6 rows have gaps and are left out." in err
    assert "Cells without a value, of 6 rows: b 2." in err
    # Lines 2, 6 and 8 have a target: they are wrong by 0, 1 and 0.
    assert err[-1] == "MAE 0.3333 cm, over 3 samples with a target"
    _, out, _ = bouquet(kept(**ROWS), file, "--json")
    told = [json.loads(line) for line in out]
    assert [(one["file"], one["line"]) for one in told] == [(str(file), n) for n in (2, 5, 6, 8)]


def test_a_forecast_seen_from_older_rows_says_so(tmp_path, bouquet):
    about = {"inputs": ["a"], "targets": ["a"], "time": ["t"], "history": 2, "horizon": 3}
    rows = [f"{60 * n},{n}" for n in range(8)]
    file = write(tmp_path / "t.csv", "t,a", *rows)
    _, out, err = bouquet(kept(**about), file)
    assert out == [f"{file} 1970-01-01T00:10:00Z: a 13 cm"]
    assert [line for line in err if "newest" in line] == []
    write(file, "t,a", *rows, "480,", "540,9")
    _, out, err = bouquet(kept(**about), file)
    assert out == [f"{file} 1970-01-01T00:10:00Z: a 13 cm"]
    assert "The newest rows, after 1970-01-01T00:07:00Z, have gaps: what is foretold is seen from there." in err
    assert "2 of 9 windows have gaps and are left out." in err
    # Windows from 0 to 3, and from 5, whose target is 9; not from 4, whose target is a gap, nor what is yet to come.
    errors = [abs(2 * n + 1 - (n + 4)) for n in (0, 1, 2, 3, 5)]
    assert err[-1] == f"MAE {np.mean(errors):.4g} cm, over 5 samples with a target"
    _, out, err = bouquet(kept(**about, fill=1), file)
    assert out == [f"{file} 1970-01-01T00:12:00Z: a 16 cm"]
    assert [line for line in err if "newest" in line] == []
    _, out, _ = bouquet(kept(**about, until="1970-01-01T00:05"), file)
    assert out[0].endswith("00:10:00Z: a 13 cm")  # the rows that training did not use are there


def test_rows_that_do_not_fit_are_an_error_or_left_out(tmp_path, bouquet):
    file = write(tmp_path / "t.csv", "a,b,y", "1,1,2", "x7,2,4", "3,3,6")
    code, out, err = bouquet(kept(**ROWS), file, "--strict")
    assert (code, out) == (1, [])
    assert "line 3, column 'a' holds 'x7'" in err[0]
    code, out, err = bouquet(kept(**ROWS), file)
    assert (code, [line.split()[2] for line in out]) == (0, ["2:", "4:"])
    assert err[0].startswith("Left out: 1 of 3 rows. ")
    assert err[-1] == "MAE 0 cm, over 2 samples with a target"


def test_a_meters_level_is_scaled_as_in_training(tmp_path, bouquet):
    """100,000,003 is no number of float32, whose next ones are 8 apart."""
    settings = parse_settings(
        {}, {"data.dataset": "own", "task.kind": "regression", "table.inputs": ["a"], "table.targets": ["y"]}
    )
    scaling = Scaling((1e8,), (5.0,), (2e8,), (10.0,))
    card = ModelCard.of(settings).model_copy(update={"scaling": scaling})
    model = KeptModel(Scaled(torch.nn.Identity(), scaling, (1,)), card, "here")
    file = write(tmp_path / "t.csv", "a,y", "100000003,200000006", "99999995,199999990")
    code, out, err = bouquet(model, file)
    assert (code, [line.partition(": ")[2] for line in out]) == (0, ["y 200000006", "y 199999990"])
    assert float(err[-1].split()[1].rstrip(",")) < 1e-5
