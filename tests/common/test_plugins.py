"""Data sets of the user's own, named as ``module:function`` or ``./file.py:function``."""

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from bouquet.client.data.loading import load_partition
from bouquet.common.data.catalog import dataset_info
from bouquet.common.data.datasets import load_dataset
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import model_shape
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import load_settings

DATA = """
    import numpy as np
    from bouquet.common.data.datasets import Dataset
    from bouquet.common.data.catalog import DatasetInfo, described
    from bouquet.common.errors import BouquetError

    SMALL = DatasetInfo(input_shape=(1, 2, 2), num_classes=2, scale=255.0)

    @described(SMALL)
    def squares(data_dir):
        y = np.arange(40) % 2
        x = np.full((40, 1, 2, 2), 100, dtype=np.uint8) + y[:, None, None, None].astype(np.uint8)
        return Dataset("squares", x, y, owners=np.arange(40) // 10)

    @described(SMALL)
    def where(data_dir):
        raise BouquetError(f"nothing in {data_dir}")

    def bare(data_dir):
        return squares(data_dir)

    @described(SMALL)
    def broken(data_dir):
        raise KeyError("x")

    @described(SMALL)
    def number(data_dir):
        return 3

    @described(DatasetInfo(input_shape=(1, 4, 4), num_classes=2))
    def other_shape(data_dir):
        return squares(data_dir)

    @described(SMALL)
    def bad_labels(data_dir):
        return Dataset("squares", np.zeros((2, 1, 2, 2)), np.array([0.5, 1]))

    @described(SMALL)
    def lists(data_dir):
        return Dataset("squares", [[1]], [0])
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_data_for_test.py").write_text(textwrap.dedent(DATA))
    monkeypatch.syspath_prepend(tmp_path)


def own(name):
    return f"own_data_for_test:{name}"


def test_a_data_set_of_ones_own_is_described_without_loading_and_then_loaded():
    assert dataset_info(own("squares")).num_classes == 2
    chosen = load_settings(None, [f"data.dataset={own('squares')}", "data.classes=['low', 'high']"])
    assert model_shape(chosen) == ((1, 2, 2), 2)
    assert ModelCard.of(chosen).classes == ("low", "high")
    data = load_dataset(own("squares"))
    assert (data.name, len(data.y), data.info.scale) == (own("squares"), 40, 255)
    assert data.scaled(np.array([0, 1]))[:, 0, 0, 0].tolist() == pytest.approx([100 / 255, 101 / 255])


def test_it_is_given_the_data_folder(tmp_path):
    with pytest.raises(BouquetError, match="nothing in None"):
        load_dataset(own("where"))
    with pytest.raises(BouquetError, match=f"nothing in {tmp_path}"):
        load_dataset(own("where"), tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "Data set 'own_data_for_test:nowhere' cannot be imported"),
        ("bare", "does not say what it holds: decorate the function with bouquet.common.data.datasets.described"),
        ("broken", "Data set 'own_data_for_test:broken' failed: KeyError: 'x'"),
        ("number", "returned a int; it must return a Dataset"),
        ("other_shape", r"samples of shape \(40, 1, 2, 2\)"),
        ("bad_labels", r"labels are float64 of shape \(2,\)"),
        ("lists", "'list' object has no attribute 'ndim'"),
    ],
)
def test_a_data_set_that_does_not_work_is_named(name, message):
    with pytest.raises(BouquetError, match=message):
        load_dataset(own(name))  # which looks at its description first


def test_a_module_that_lies_in_this_folder_is_said_to(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(filter(None, sys.path)))  # pytest looks in this folder, bouquet does not
    Path("beside.py").write_text(textwrap.dedent(DATA))
    with pytest.raises(BouquetError, match=r"'beside'\. Python .* put PYTHONPATH=\. before the command"):
        load_dataset("beside:squares")
    with pytest.raises(BouquetError, match=r"No module named 'nowhere'\.$"):
        load_dataset("nowhere:squares")


def test_it_may_be_named_by_the_path_of_its_file(tmp_path):
    part = load_partition(f"{tmp_path / 'own_data_for_test.py'}:squares", "natural", 2, 4, seed=0)
    assert (len(part.train_y), len(part.test_y)) == (8, 2)
    assert part.input_shape == (1, 2, 2)
