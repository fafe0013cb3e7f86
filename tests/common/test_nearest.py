"""What is offered for a name that is none: the nearest three, whatever the case, by every edge that takes names."""

import pytest

from bouquet.common.data.catalog import dataset_info
from bouquet.common.errors import BouquetError
from bouquet.common.model.architectures import build_model
from bouquet.common.nearest import nearest
from bouquet.common.settings import load_settings
from bouquet.experiments.comparison.measures import parse_metric
from bouquet.strategies.registry import create_strategy


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FedAvgg", "nearest are fedavg, per-fedavg"),
        ("FEDAVG", "nearest is fedavg"),
        ("fed", "nearest are fedavg, fedprox, per-fedavg"),
        ("local_update", "nearest is local-update"),
        ("zzz", "there are fedavg, fedprox, ditto, per-fedavg, local-update"),
    ],
)
def test_the_nearest_three_or_all(name, said):
    assert nearest(name, ["fedavg", "fedprox", "ditto", "per-fedavg", "local-update"]).startswith(said)
    assert nearest("x", []) == "there are none"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: create_strategy("FedAvg", {}), "Unknown strategy 'FedAvg'; nearest is fedavg,"),
        (lambda: create_strategy("fesem", {"clusters": 4}), "Unknown setting strategy.clusters; nearest is num_cl"),
        (lambda: dataset_info("MNIST"), "Unknown data set 'MNIST'; nearest is mnist. "),
        (lambda: build_model("ResNet-18", (3, 8, 8), 2, 0), "Unknown model 'ResNet-18'; nearest is resnet18,"),
        (lambda: load_settings(None, ["train.learn_rate=1"]), "'train.learn_rate'; nearest are learning_rate,"),
        (lambda: load_settings(None, ["local_epochs=1"]), "Unknown setting 'local_epochs'; nearest is train.local_e"),
        (lambda: load_settings(None, ["train.rounds=1"]), "Unknown setting 'train.rounds'; nearest is run.rounds"),
        (lambda: load_settings(None, ["data.partition=Rotate"]), "data.partition = 'Rotate': nearest is rotated."),
        (lambda: parse_metric("acuracy_micro_"), "Unknown metric 'acuracy_micro_'; nearest are accuracy_micro,"),
    ],
)
def test_each_edge_offers_what_is_near(wrong, said):
    with pytest.raises(BouquetError, match=said):
        wrong()


def test_a_number_or_auto_says_both():
    with pytest.raises(BouquetError, match=r"num_clusters = 'four': .*integer.*; or .*'auto'"):
        create_strategy("fesem", {"num_clusters": "four"})
