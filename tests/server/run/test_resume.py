"""What a run that goes on knows of the rounds before."""

import hashlib
import json

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.resume import ResumePoint, open_run, save_run
from bouquet.strategies import FedAvg


def test_a_client_that_was_left_out_stays_left_out(scripted, play, tmp_path):
    settings, record = parse_settings({}, {"strategy.name": "fedavg", "run.rounds": 9}), RunRecord(tmp_path / "run")
    strategy = FedAvg()
    open_run(strategy, settings, record, resume=False)
    play(
        strategy,
        InlineGrid({n: scripted(name, lambda start, _: start + 1) for n, name in enumerate("ab", 1)}),
        range(1, 2),
    )
    for round_ in (1, 2, 3):
        strategy.exclusion.note(round_, ["c"], ["a", "b"])
    save_run(strategy, settings, record, 3, ResumePoint(), 1.0)
    resumed = FedAvg()
    assert open_run(resumed, settings, record, resume=True).first_round == 4
    assert (resumed.exclusion.until, resumed.exclusion.spells) == ({"c": 8}, {"c": 1})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"state": None}, "not as it was written"),
        ({"state": {"_run": {"exclusion": {"x": 1}}}}, "not as it was written"),
        ({"layout": [1]}, "is whole"),
        ({"round": "two"}, "is whole"),
        (None, "is whole"),
    ],
)
def test_a_checkpoint_that_somebody_has_written_over_is_refused_by_name(scripted, play, tmp_path, what, said):
    settings, record = parse_settings({}, {"strategy.name": "fedavg", "run.rounds": 9}), RunRecord(tmp_path / "run")
    strategy = FedAvg()
    open_run(strategy, settings, record, resume=False)
    play(strategy, InlineGrid({n: scripted(str(n), lambda start, _: start + 1) for n in (1, 2)}), range(1, 2))
    save_run(strategy, settings, record, 1, ResumePoint(), 1.0)
    (file,) = record.checkpoints.glob("round-*/state.json")
    written = file.read_bytes()
    file.write_text(json.dumps({**json.loads(written), **what} if what else [1]))
    sums = file.with_name("SHA256SUMS")
    old, new = (hashlib.sha256(data).hexdigest() for data in (written, file.read_bytes()))
    sums.write_text(sums.read_text().replace(old, new))
    with pytest.raises(BouquetError, match=said) as refused:
        open_run(FedAvg(), settings, record, resume=True)
    assert str(record.folder) in str(refused.value)


def test_a_line_of_the_record_that_is_none_is_passed_over(tmp_path):
    (tmp_path / "rounds.jsonl").write_text('null\n{"a": 1}\n{"round": 1, "replies": 2}\n{"round": 2, "rep')
    assert RunRecord(tmp_path).rounds() == [{"round": 1, "replies": 2}]
