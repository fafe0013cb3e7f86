"""`[privacy]` and the methods: which are refused and why, and the (ε, δ) in record, checkpoint and report."""

import json
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.privacy_accounting import epsilon_spent
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.settings import load_settings
from bouquet.experiments.report.run_report import headline
from bouquet.experiments.simulation.run import simulate
from bouquet.server.record.reader import read_run
from bouquet.server.run.build import build_strategy
from bouquet.strategies.base.filters.privacy import PrivacyLedger
from tests.helpers.real_devices import Federation

ON = ["privacy.clip_norm=0.05", "privacy.noise_multiplier=0.001"]
NEED_SCORES = {"dc-pfl", "gradient-loss", "ifca", "hypocluster"}


def settings(method, *changes):
    return load_settings(None, [f"strategy.name={method}", "data.public_fraction=0.2", *ON, *changes])


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_need_scores_are_refused_by_name_where_they_are_withheld(method):
    if method not in NEED_SCORES:
        assert build_strategy(settings(method)).filter_of(PrivacyLedger) is not None
        return
    with pytest.raises(BouquetError, match=f"privacy.scores = 'withhold' does not fit '{method}': .* With 'send'"):
        build_strategy(settings(method))
    assert build_strategy(settings(method, "privacy.scores=send")).filter_of(PrivacyLedger) is not None


def test_options_that_need_no_scores_are_taken():
    assert build_strategy(settings("dc-pfl", "strategy.fixed_gamma=0.8")).filter_of(PrivacyLedger) is not None


def test_a_model_that_cannot_be_noised_is_refused_before_the_run():
    with pytest.raises(BouquetError, match=r"running statistic.*model.norm = 'group'"):
        build_strategy(settings("fedavg", "model.name=resnet18"))
    assert (
        build_strategy(settings("fedavg", "model.name=resnet18", "model.norm=group")).filter_of(PrivacyLedger)
        is not None
    )


@pytest.mark.parametrize("method", sorted(set(METHODS) - NEED_SCORES))
def test_every_other_method_trains_without_scores(method, tmp_path):
    """Three rounds of real devices that send noised models and no scores; each release is counted."""
    public = ["data.public_fraction=0.2"] if method == "fedtsdp" else []
    federation = Federation(tmp_path, f"strategy.name={method}", *ON, *public)
    federation.play(1, 2, 3)
    strategy = federation.strategy
    assert strategy.train_round.failures == {}
    assert len(strategy.train_round.replies) == 4
    assert all(set(r.metrics) <= {"group", "state-lost", "num-examples"} for r in strategy.train_round.replies.received)
    releases = {"standalone": 0, "feddane": 6}.get(method, 3)
    assert strategy.filter_of(PrivacyLedger).releases == (
        {f"client-{part}": releases for part in range(4)} if releases else {}
    )
    json.dumps(strategy.record(strategy.state), allow_nan=False)


# --- the ledger -------------------------------------------------------------------------------------------------------


class Said:
    """A message with content."""

    def __init__(self, **config):
        self.content = RecordDict({protocol.CLIENT: ConfigRecord(config), protocol.METRICS: MetricRecord({"n": 1})})

    metadata = SimpleNamespace(src_node_id=1)

    def has_content(self):
        return True


def ledger():
    return PrivacyLedger(load_settings(None, ["privacy.clip_norm=1", "privacy.noise_multiplier=4"]).privacy)


def test_the_ledger_follows_the_device_and_never_counts_back():
    found = ledger()
    for said in (1, 2, 2, 7, 1):  # answered again; three that were lost on the way; a device that lost its state
        found.arrived("a", Arrival.of(Said(**{"privacy-releases": said})))
    assert found.releases == {"a": 7}
    for nonsense in (0, -3, 2.5, "9", True, 10**12, [4]):
        found.arrived("a", Arrival.of(Said(**{"privacy-releases": nonsense})))
    assert found.releases == {"a": 7}
    assert found.by_client() == {"a": pytest.approx(epsilon_spent(7, 4.0, 1e-5), abs=1e-5)}


def test_without_noise_there_is_no_epsilon():
    found = PrivacyLedger(load_settings(None, ["privacy.clip_norm=1", "privacy.noise_multiplier=0"]).privacy, {"a": 1})
    assert found.by_client() == {"a": None}
    assert found.summary()["epsilon_most"] is None


def test_a_model_of_a_device_that_does_not_clip_is_refused(tmp_path):
    """A stock ClientApp, or an older release."""
    federation = Federation(tmp_path, "strategy.name=fedavg", *ON)
    honest = federation.grid.handlers[2]

    def forgets(message):
        reply = honest(message)
        if message.metadata.message_type == "train":
            del reply.content.config_records[protocol.CLIENT]["privacy-releases"]
        return reply

    federation.grid.handlers[2] = forgets
    federation.play(1)
    assert "does not say that the device clipped and noised" in federation.strategy.train_round.failures["client-0"]
    assert federation.strategy.filter_of(PrivacyLedger).releases["client-0"] == 1  # it has left the device all the same


def test_record_report_and_resume_have_what_was_spent(tmp_path):
    changes = ["strategy.name=fedavg", "data.clients=3", "data.samples_per_client=30", "model.hidden=[8]"]
    changes += ["train.local_epochs=1", "simulation.engine=inline", "privacy.clip_norm=1", "privacy.noise_multiplier=4"]
    simulate(load_settings(None, [*changes, "run.rounds=2"]), tmp_path / "run")
    summary = simulate(load_settings(None, [*changes, "run.rounds=4"]), tmp_path / "run", resume=True)
    spent = round(epsilon_spent(4, 4.0, 1e-5), 6)  # μ = √4 · 2 / 4 = 1
    assert 4 < spent < 5
    assert summary["privacy"]["epsilon"] == dict.fromkeys(("client-0", "client-1", "client-2"), spent)
    assert (summary["privacy"]["epsilon_most"], summary["privacy"]["protects"]) == (spent, "all that is sent")
    assert summary["accuracy_macro"] is None
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert lines[0]["epsilon"]["client-0"] == round(epsilon_spent(1, 4.0, 1e-5), 6)
    assert ("privacy spent, at most", f"ε = {spent:.3g} at δ = 1e-05") in headline(read_run(tmp_path / "run"))
    whole = simulate(load_settings(None, [*changes, "run.rounds=4"]), tmp_path / "whole")
    assert {**whole, "seconds": 0} == {**summary, "seconds": 0}
