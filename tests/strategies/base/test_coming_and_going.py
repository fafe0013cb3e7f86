"""A device that joins in mid-run, and one that was away, of every method; the table is in docs/coming-and-going.md.

Six real devices in two groups with different labels. ``client-5`` is not there in rounds 1 and 2; ``client-0`` is not
in rounds 5 and 6. What each method measures a newcomer by is tested beside it.
"""

import numpy as np
import pytest

from bouquet.client.context import ClientContext
from bouquet.common import protocol
from bouquet.common.methods import METHODS
from bouquet.strategies.baselines.cfl import CFL
from tests.helpers.real_devices import Federation

DATA = ("data.partition=label-permuted", "data.groups=2", "data.clients=6", "data.samples_per_client=60")
TRAINING = ("train.local_epochs=3", "train.momentum=0.9")
TWO = ["strategy.num_clusters=2"]
OPTIONS = {
    **dict.fromkeys(("fesem", "fesem-ma", "anchored", "clusterfl", "cgpfl", "robust-tkm", "fedgroup"), TWO),
    **dict.fromkeys(("gradient-loss", "ifca", "hypocluster"), TWO),
    "fl-hc": [*TWO, "strategy.warmup_rounds=1"],
    "fedac": [*TWO, "strategy.tuning=off"],
    "dc-pfl": ["strategy.discrepancy_rounds=1", "strategy.fixed_gamma=0.8"],
    "cfl": [],
    "fedtsdp": ["data.public_fraction=0.2"],  # trained so little, its clients are one cluster
}
CHOOSE = {"gradient-loss", "ifca", "hypocluster"}  # the device itself does, anew in each round
CLUSTERED = set(OPTIONS) - {"fedtsdp"} - CHOOSE
NEW, AWAY = "client-5", "client-0"


class Schedule:
    """Rounds of a federation whose nodes are there or not."""

    def __init__(self, folder, method):
        changes = (f"strategy.name={method}", *DATA, *TRAINING, *OPTIONS.get(method, []))
        self.federation = Federation(folder, *changes)
        self.handlers = dict(self.federation.grid.handlers)
        self.strategy = self.federation.strategy

    def play(self, round_, *without):
        """A round; the replies by client. Nobody who is there fails."""
        grid = self.federation.grid
        grid.handlers = {n: h for n, h in self.handlers.items() if f"client-{n - 2}" not in without}
        self.federation.play(round_)
        assert self.strategy.train_round.failures == {}
        assert np.isfinite(self.strategy.centers(self.strategy.state)).all()
        replies = {reply.client: reply for reply in self.strategy.train_round.replies.received}
        assert set(replies) == {f"client-{part}" for part in range(6)} - set(without)
        return replies

    @property
    def clusters(self):
        return self.strategy.assignment(self.strategy.state)


@pytest.mark.parametrize("method", METHODS)
def test_a_newcomer_finds_its_cluster_and_a_returning_device_keeps_its_own(method, tmp_path, monkeypatch):
    monkeypatch.setattr(CFL, "settled", 1.1)  # so that it divides in few rounds
    monkeypatch.setattr(CFL, "in_conflict", 0.01)
    schedule = Schedule(tmp_path, method)
    schedule.play(1, NEW)
    schedule.play(2, NEW)
    assert NEW not in schedule.clusters
    schedule.play(3)
    schedule.play(4)
    before = schedule.clusters
    assert set(before) == {f"client-{part}" for part in range(6)}
    if method in CLUSTERED:  # where the devices of its group are
        assert before["client-1"] == before["client-3"] == before[NEW] != before[AWAY]
        assert before[AWAY] == before["client-2"] == before["client-4"]
    schedule.play(5, AWAY)
    schedule.play(6, AWAY)
    assert schedule.clusters[AWAY] == before[AWAY]
    kept = ClientContext(schedule.federation.settings, schedule.federation.contexts[2], tmp_path).state.recall("r", 7)
    assert kept.round == 4
    returned = schedule.play(7)[AWAY]
    assert returned.metrics.get(protocol.STATE_LOST, 0) == 0
    if method not in CHOOSE:
        assert schedule.clusters[AWAY] == before[AWAY]
