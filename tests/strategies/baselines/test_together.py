"""What every small method must stand, on real devices: sampling, a device that vanishes."""

import numpy as np
import pytest

from tests.helpers.real_devices import Federation

METHODS = ("fedsgd", "feddane", "feddist", "feddws", "per-fedavg", "anchored")
# Rates at which a few rounds of each method move its model well.
OPTIONS = {"anchored": ["strategy.num_clusters=2"]}


def federation_of(method, folder, *changes):
    return Federation(folder, f"strategy.name={method}", *OPTIONS.get(method, []), *changes)


def clients(federation):
    return set(federation.strategy.train_round.replies.clients)


@pytest.mark.parametrize("method", METHODS)
def test_half_of_the_devices_train_in_a_round(method, tmp_path):
    federation = federation_of(method, tmp_path, "server.fraction_train=0.5")
    seen = []
    for round_ in range(1, 5):
        federation.play(round_)
        assert federation.strategy.train_round.failures == {}
        assert len(clients(federation)) == 2
        seen.append(clients(federation))
    assert len(set().union(*seen)) > 2
    found = federation.evaluate(4)
    assert (len(found), federation.strategy.train_round.failures) == (4, {})


@pytest.mark.parametrize("method", METHODS)
def test_a_device_vanishes_in_the_middle_of_a_round_and_comes_back(method, tmp_path):
    federation = federation_of(method, tmp_path)
    before = federation.play(1)
    federation.silent = {3}
    without = federation.play(2)
    assert set(federation.strategy.train_round.failures) == {"client-1"}
    assert clients(federation) == {"client-0", "client-2", "client-3"}
    assert np.isfinite(without).all()
    assert not np.array_equal(before, without)
    federation.silent = set()
    federation.play(3)
    assert (len(clients(federation)), federation.strategy.train_round.failures) == (4, {})
