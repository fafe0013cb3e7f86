import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.fesem.strategy import FeSEM
from bouquet.strategies.registry import create_strategy, hyper_parameters, strategy_class


@pytest.mark.parametrize("name", METHODS)
def test_every_name_builds_with_its_defaults(name):
    strategy = create_strategy(name, {}, seed=3, fraction_train=0.5)
    assert isinstance(strategy, MethodStrategy)
    assert (strategy.seed, strategy.fraction_train) == (3, 0.5)
    assert strategy.__class__.__doc__
    assert "sampling" not in hyper_parameters(strategy_class(name))


def test_options_are_read_as_their_types():
    strategy = create_strategy("fesem", {"num_clusters": "3"})
    assert (strategy.num_clusters, strategy.matching) == (3, False)
    assert create_strategy("fesem-ma", {}).matching is True
    assert create_strategy("bouquet.strategies.fesem.strategy:FeSEM", {"num_clusters": "auto"}).num_clusters == "auto"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bla", {}, "Unknown strategy 'bla'; there are fesem"),
        ("nowhere.at_all:X", {}, "'nowhere.at_all:X' cannot be imported"),
        ("bouquet.strategies.fesem.strategy:Nothing", {}, "cannot be imported"),
        ("bouquet.strategies.base.groups:Groups", {}, "is not a subclass of bouquet.MethodStrategy"),
        ("fesem", {"clusters": 3}, "Unknown setting strategy.clusters; nearest is num_clusters"),
        ("fesem-ma", {"matching": False}, "Unknown setting strategy.matching"),
        ("standalone", {"x": 1}, "are: none"),
        ("fesem", {"num_clusters": "many"}, "Setting strategy.num_clusters = 'many'"),
        ("fesem", {"num_clusters": 0}, "num_clusters = 0"),
    ],
)
def test_what_is_wrong_is_named(name, options, message):
    with pytest.raises(BouquetError, match=message):
        create_strategy(name, options)


def test_a_strategy_of_ones_own():
    assert strategy_class("bouquet.strategies.fesem.strategy:FeSEM") is FeSEM


def test_the_facts_of_a_method_that_no_option_decides_are_its_classs():
    kept = {name for name in METHODS if strategy_class(name).models_on_devices_only}
    assert kept == {"fedper", "standalone"}
    assert {name for name in METHODS if strategy_class(name).clusters_chosen_on == "–"} == {
        *("ditto", "per-fedavg", "feddane", "fedper", "fedavg"),
        *("fedprox", "fedsgd", "feddist", "feddws", "standalone"),
    }


@pytest.mark.parametrize(
    ("name", "options", "tested", "trainings", "clusters"),
    [
        ("fedavg", {}, "received", "1", 1),
        ("fesem", {"num_clusters": 3}, "received", "1", 3),
        ("fesem", {"num_clusters": "auto"}, "received", "1", 1),
        ("fedac", {}, "personal", "1", 1),
        ("fedac", {"tested": "center", "tuning": "off", "num_clusters": 3}, "received", "1", 3),
        ("gradient-loss", {"local_update": "step"}, "received", "a step on a mini-batch", 1),
        ("per-fedavg", {}, "received, then adapted by gradient steps", "2", 1),
    ],
)
def test_and_those_that_an_option_decides_are_its_objects(name, options, tested, trainings, clusters):
    strategy = create_strategy(name, options)
    assert (strategy.tested_model, strategy.expected_clusters) == (tested, clusters)
    assert strategy.trainings.startswith(trainings)
