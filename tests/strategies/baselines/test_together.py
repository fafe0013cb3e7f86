"""What every small method must stand, on real devices: sampling, a device that vanishes, batch normalisation."""

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


@pytest.mark.parametrize("method", METHODS)
def test_a_model_with_batch_normalisation(method, tmp_path):
    """Its running statistics are learned from the data, stay variances, and the model is tested by them."""
    normalised = (
        "model.name=tests.helpers.real_devices:batch_normalised",
        "model.hidden=[]",
        "data.samples_per_client=80",
    )
    federation = federation_of(method, tmp_path, *normalised, "train.local_epochs=2")
    center = federation.play(1, 2, 3, 4)
    assert federation.strategy.train_round.failures == {}
    tensors = federation.layout.unflatten(center)
    assert np.abs(tensors["norm.running_mean"]).max() > 0.01
    assert (tensors["norm.running_var"] > 0).all()
    assert tensors["norm.num_batches_tracked"] > 0
    assert len(federation.evaluate(4)) == 4
    losses = federation.strategy.train_round.replies.metric("loss")
    assert np.isfinite(losses).all()
    assert losses.mean() < 2.4  # log 10 = 2.3 is chance; statistics that do not fit the weights give far more
