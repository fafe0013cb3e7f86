"""What a run that goes on knows of the rounds before."""

from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.resume import Remembered, open_run, save_run
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
    save_run(strategy, settings, record, 3, Remembered(), 1.0)
    resumed = FedAvg()
    assert open_run(resumed, settings, record, resume=True).first_round == 4
    assert (resumed.exclusion.until, resumed.exclusion.spells) == ({"c": 8}, {"c": 1})
