"""``data.test_samples``: fresh samples to test on, which no client trains on, as the client sees its own."""

import textwrap

import numpy as np
import pytest

from bouquet.client.data.loading import load_partition
from bouquet.common.data import partition_rules
from bouquet.common.data.datasets import load_dataset
from bouquet.common.errors import BouquetError

# Samples say who they are: the first pixel is their number, the second their label; the others tell a turn.
DATA = """
    import numpy as np
    from bouquet.common.data.datasets import Dataset
    from bouquet.common.data.catalog import DatasetInfo, described

    def images(first, y):
        x = np.zeros((len(y), 1, 3, 3), dtype=np.float32)
        x[:, 0, 0, 0], x[:, 0, 0, 1], x[:, 0, 2, 2] = first + np.arange(len(y)), y, -1
        return x

    @described(DatasetInfo(input_shape=(1, 3, 3), num_classes=4))
    def numbered(data_dir):
        y, test_y = np.arange(1200) * 7 % 10 % 4, np.repeat(np.arange(4), 60)
        return Dataset("numbered", images(0, y), y, test_x=images(10_000, test_y), test_y=test_y)

    @described(DatasetInfo(input_shape=(1, 3, 3), num_classes=4))
    def recorded(data_dir):
        y = np.arange(1200) // 5 % 4  # stretches of five windows, twenty a person
        return Dataset("recorded", images(0, y), y, owners=np.arange(1200) // 100, segments=np.arange(1200) // 5)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "numbered_for_test.py"
    path.write_text(textwrap.dedent(DATA))
    return path


def part(file, number, rule="iid", clients=6, samples=30, data="numbered", **options):
    given = {"samples_per_client": 20, "test_samples": samples, **options}
    return load_partition(f"{file}:{data}", rule, number, clients, 3, **given)


def numbers(x):
    """Who the samples are, and the labels that they had; of images that are not turned."""
    return x[:, 0, 0, 0].astype(int), x[:, 0, 0, 1].astype(int)


def test_they_are_of_the_test_part_once_each_and_what_is_trained_on_is_as_without(file):
    tested = []
    for client in range(6):
        fresh, split = part(file, client), part(file, client, samples=None)
        assert np.array_equal(fresh.train_x, split.train_x)
        who, labels = numbers(fresh.test_x)
        assert who.min() >= 10_000
        assert len(set(who)) == len(who) == 30
        assert labels.tolist() == fresh.test_y.tolist()
        assert np.array_equal(fresh.test_x, part(file, client).test_x)
        tested.append(tuple(who))
    assert len(set(tested)) == 6, "each client has its own"


def test_the_mix_is_what_the_samples_were_drawn_from_not_the_few_that_were(file, monkeypatch):
    y = np.arange(1200) * 7 % 10 % 4
    one_client = np.bincount(y, minlength=4) / 1200  # all of them are its part, which is cut to twenty
    for samples in (30, 31, 97):
        counts = np.bincount(part(file, 0, clients=1, samples=samples).test_y, minlength=4)
        assert counts.sum() == samples
        assert (np.abs(counts - one_client * samples) < 1).all()
    monkeypatch.setattr(partition_rules, "PRIMARY_SHARE", (0.6, 0.6))
    monkeypatch.setattr(partition_rules, "SECONDARY_SHARE", (0.3, 0.3))
    counts = np.bincount(part(file, 1, "dominant", samples=40, groups=2).test_y, minlength=4)
    assert sorted(counts) == [2, 2, 12, 24]  # its shares, of which twenty samples hold one and one


def test_of_an_owner_they_are_its_others_of_no_stretch_that_is_trained_on(file):
    for cap, most in ((20, 60), (None, 20)):
        for client in range(6):
            own = part(file, client, "natural", samples=1000, data="recorded", samples_per_client=cap)
            trained, tested = numbers(own.train_x)[0], numbers(own.test_x)[0]
            assert set(trained // 100) == set(tested // 100)
            assert not set(trained // 5) & set(tested // 5)
            assert set(tested // 5) | set(trained // 5) == set(
                range(trained[0] // 100 * 20, trained[0] // 100 * 20 + 20)
            )
            assert len(tested) <= most
    assert len(part(file, 2, "natural", samples=7, data="recorded").test_y) == 7


def test_data_without_a_test_part_hold_one_out_or_are_refused(file):
    digits = {"samples_per_client": 30, "test_samples": 90}
    with pytest.raises(
        BouquetError, match=r"data\.test_samples = 90: data set 'digits' has no test part .*public_frac"
    ):
        load_partition("digits", "iid", 0, 4, 0, **digits)
    with pytest.raises(BouquetError, match="recorded' has no test part"):
        part(file, 0, data="recorded")
    parts = [load_partition("digits", "iid", i, 4, 0, public_fraction=0.2, **digits) for i in range(4)]
    assert {len(one.test_y) for one in parts} == {90}
    every = {one.tobytes() for client in range(4) for one in _whole(client)}
    held = {one.tobytes() for p in parts for one in p.test_x}
    assert not held & every
    digit = load_dataset("digits")
    assert held <= {one.tobytes() for one in digit.standardised(digit.scaled(np.arange(1797)))}


def _whole(client):
    own = load_partition("digits", "iid", client, 4, 0, public_fraction=0.2)
    return np.concatenate([own.train_x, own.test_x])


@pytest.mark.parametrize(("data", "rule"), [("numbered", "iid"), ("recorded", "natural"), ("recorded", "iid")])
def test_what_is_reserved_nobody_trains_on_under_any_seed(file, data, rule):
    tested, own = set(), set()
    for seed in range(4):
        options = {"samples_per_client": 20, "reserved_fraction": 0.25}
        for number in range(6):
            part = load_partition(f"{file}:{data}", rule, number, 6, seed, test_samples=15, **options)
            split = load_partition(f"{file}:{data}", rule, number, 6, seed, **options)
            assert np.array_equal(part.train_x, split.train_x)
            assert len(part.test_y) == 15
            tested |= set(numbers(part.test_x)[0].tolist())
            own |= set(numbers(split.test_x)[0].tolist()) | set(numbers(split.train_x)[0].tolist())
            if rule == "natural":  # an owner is tested on its own
                assert {n // 100 for n in numbers(part.test_x)[0]} == {n // 100 for n in numbers(part.train_x)[0]}
    assert max(tested) < 10_000, "not of the official test part"
    assert len(tested) > 100
    assert not tested & own
    if data == "recorded":
        assert not {n // 5 for n in tested} & {n // 5 for n in own}, "whole stretches"
