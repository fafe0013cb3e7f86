"""A device of a run without an end works after enough of its samples are new, and rests."""

import numpy as np
import pytest

from bouquet.client.data.loading import ClientData
from bouquet.client.data.new_samples import MEMORY, ROUNDS, rests, worked
from bouquet.client.state.store import FolderStore
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings

RAW = np.random.default_rng(0).normal(50, 20, (80, 3))


def photos(start, stop):
    x = np.arange(start, stop, dtype=np.uint8)[:, None, None, None]
    y = np.zeros(len(x), dtype=np.int64)
    return ClientData(x[2:], y[2:], x[:2], y[:2], 2)


def table(start, stop):
    """Scaled by what is in it, as a table that grows is."""
    raw = RAW[start:stop]
    scaling = Scaling(tuple(raw.mean(0)), tuple(raw.std(0)), (0.0,), (1.0,))
    x = scaling.inputs(raw)
    return ClientData(x[2:], x[2:, :1], x[:2], x[:2, :1], 0, scaling=scaling)


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


@pytest.mark.parametrize("data", [photos, table])
def test_it_works_in_ten_rounds_and_then_when_enough_is_new(store, data):
    for round_ in range(5, 5 + ROUNDS):
        assert rests(store, 7, data(0, 30), 10, 1000.0) is None
        worked(store, 7, data(0, 30), 10, 1000.0, round_)
    assert str(rests(store, 7, data(0, 39), 10, 1000.0)) == "9 of 10 new samples (server.new_samples)"
    assert rests(store, 7, data(0, 40), 10, 1000.0) is None
    assert rests(store, 7, data(20, 40), 10, 1000.0) is None  # as many as before, of which half are new
    assert rests(store, 8, data(0, 30), 10, 1000.0) is None  # another run
    for round_ in range(20, 20 + ROUNDS):
        assert rests(store, 7, data(0, 40), 10, 1000.0) is None
        worked(store, 7, data(0, 40), 10, 1000.0, round_)
    assert rests(store, 7, data(0, 40), 10, 1000.0)


def test_what_is_new_while_it_works_counts(store):
    for round_ in range(1, ROUNDS):
        worked(store, 7, photos(0, 30), 10, 1000.0, round_)
    worked(store, 7, photos(0, 40), 10, 1000.0, ROUNDS)
    assert rests(store, 7, photos(0, 40), 10, 1000.0) is None


def test_a_device_that_keeps_fewer_samples_works_when_all_are_new(store):
    for round_ in range(1, ROUNDS + 1):
        worked(store, 7, photos(0, 8), 10, 1000.0, round_)
    assert str(rests(store, 7, photos(7, 15), 10, 1000.0)) == "7 of 8 new samples (server.new_samples)"
    assert rests(store, 7, photos(8, 16), 10, 1000.0) is None
    worked(store, 7, photos(8, 16), 10, 1000.0, 20)
    assert rests(store, 7, photos(8, 16), 10, 1000.0) is None  # it has begun anew


def test_rows_that_are_equal_count_one_by_one(store):
    def door(rows):  # open or shut
        x = (np.arange(rows, dtype=np.float32) % 2)[:, None]
        return ClientData(x[2:], x[2:, 0], x[:2], x[:2, 0], 2)

    for round_ in range(1, ROUNDS + 1):
        worked(store, 7, door(30), 10, 1000.0, round_)
    assert str(rests(store, 7, door(39), 10, 1000.0)) == "9 of 10 new samples (server.new_samples)"
    assert rests(store, 7, door(40), 10, 1000.0) is None


def test_the_longer_it_rests_the_more_rarely_it_is_asked(store):
    for round_ in range(1, ROUNDS + 1):
        worked(store, 7, photos(0, 30), 10, 1000.0, round_)
    assert [rests(store, 7, photos(0, 30), 10, now).seconds for now in (1000.0, 1600.0)] == [0, 60]
    assert rests(store, 7, photos(0, 30), 10, 400.0).seconds == 60  # by a clock that was set back


def test_what_it_remembers_may_be_damaged(store):
    store.write(MEMORY, b'{"run": 7, "last": ')
    assert rests(store, 7, photos(0, 30), 10, 1000.0) is None


def test_rounds_without_an_end_are_a_word(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nrounds = "endless"\n')
    for settings in (load_settings(tmp_path / "run.toml"), load_settings(None, ["run.rounds=endless"])):
        assert settings.run.is_endless
        assert type(settings).from_json(settings.model_dump_json()).run.is_endless  # as devices are told
    with pytest.raises(BouquetError, match=r"run\.rounds"):
        load_settings(None, ["run.rounds=forever"])
