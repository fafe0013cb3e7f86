"""A run's record as TensorBoard reads it; skipped where TensorBoard is not installed."""

import json
import sys

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.settings import parse_settings
from bouquet.experiments.report.tracking import TensorBoard
from bouquet.experiments.simulation.run import simulate


def test_without_the_extra_it_is_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BouquetError, match=r"pip install 'bouquet-fl\[research\]'"):
        TensorBoard(tmp_path)


def test_tensorboard_reads_what_the_record_holds_and_each_round_once(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    small = {"simulation.engine": "inline", "data.clients": 2, "strategy.name": "fedavg"}
    for rounds, resume in ((2, False), (3, True)):
        settings = parse_settings({}, {**small, "run.rounds": rounds})
        with TensorBoard(tmp_path) as tracker:
            simulate(settings, tmp_path, resume, tracker)
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [
        (line["round"], pytest.approx(line["loss"])) for line in lines
    ]
    summary = json.loads((tmp_path / "summary.json").read_text())
    (last,) = read.Scalars("summary/accuracy_macro")
    assert (last.step, last.value) == (3, pytest.approx(summary["accuracy_macro"]))
    assert not {"round", "summary/seed"} & set(read.Tags()["scalars"])
