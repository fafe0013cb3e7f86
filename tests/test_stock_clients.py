"""Every method with a plain Flower ClientApp: refused by name before anything is trained, or right."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.protocol.capabilities import TRAINING
from bouquet.strategies.base.replies import PublicData
from bouquet.strategies.registry import create_strategy, hyper_parameters, strategy_class
from tests.helpers.stock_app import DEVICES, grid_of, initial, own_app, play, stock_app

PLAIN = {"fesem": {"proximal_weight": 0.0}, "fesem-ma": {"proximal_weight": 0.0}, "fedprox": {"proximal_mu": 0.0}}
FEW_ROUNDS = {"num_clusters": 2, "warmup_rounds": 1, "restarts": 3}


def made(name, **options):
    few = {key: value for key, value in FEW_ROUNDS.items() if key in hyper_parameters(strategy_class(name))}
    strategy = create_strategy(name, {**few, **options}, seed=1, wait_timeout=60.0, min_train_nodes=DEVICES)
    strategy.public = PublicData(8, lambda models, chosen: softmax(20 * models[:, chosen[:, None] + range(10)], axis=2))
    return strategy


CASES = [(name, {}) for name in METHODS] + [*PLAIN.items()]
NEEDY = [(name, options) for name, options in CASES if made(name, **options).device_needs()]


@pytest.mark.parametrize(("name", "options"), NEEDY)
def test_it_is_refused_by_name_before_anything_is_trained(name, options):
    strategy, asked = made(name, **options), []
    with pytest.raises(BouquetError) as refused:
        play(strategy, stock_app(), 3, asked)
    assert set(asked) == {"query.identify"}
    assert str(refused.value).startswith(type(strategy).__name__)
    assert 'clientapp = "bouquet.client.app:app"' in str(refused.value)
    assert "No query function registered with name 'identify'" in str(refused.value)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case not in NEEDY])
def test_it_is_as_with_bouquets_own_client_app(name, options, tmp_path):
    results = []
    for app in (stock_app(), own_app(tmp_path)):
        strategy = made(name, **options)
        play(strategy, app, 4)
        assert strategy.train_round.failures == {}
        losses = [metrics["test-loss"] for metrics in strategy.evaluate_round.scores.values()]
        labels = [cluster for _, cluster in sorted(strategy.assignment(strategy.state).items())]
        results.append((strategy.centers(strategy.state), sorted(losses), labels))
    (stock_centers, stock_losses, stock_labels), (own_centers, own_losses, own_labels) = results
    assert stock_labels == own_labels
    np.testing.assert_allclose(stock_centers, own_centers, atol=1e-4)
    np.testing.assert_allclose(stock_losses, own_losses, atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_the_table_of_methods_says_so(name):
    table = (Path(__file__).parents[1] / "docs" / "methods.md").read_text().partition("\n## ")[0]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{name}` |")]
    said = row.rstrip(" |").rpartition("| ")[2]
    options = {key: float(value) for key, value in re.findall(r"`(\w+) = (\d+)`", said)}
    assert said in ("yes", "no", "around") or options
    assert bool(made(name, **options).device_needs()) == (said in ("no", "around"))
    assert bool(made(name).device_needs()) == (said != "yes")
    assert (TRAINING not in made(name).device_needs()) == (said == "yes" or said.endswith("around"))


def test_of_devices_of_both_kinds_those_that_offer_it_train(tmp_path):
    strategy, grid, plain = made("ditto"), grid_of(own_app(tmp_path)), grid_of(stock_app()).handlers
    strategy.min_train_nodes = strategy.min_evaluate_nodes = 1
    grid.handlers[10] = plain[10]
    strategy.start(grid, initial(), num_rounds=1, timeout=60)
    assert strategy.train_round.replies.clients == tuple(f"client-{i}" for i in range(1, DEVICES))
    assert list(strategy.train_round.failures) == ["node-10"]
    assert "cannot do what the method needs: keeping a model" in strategy.train_round.failures["node-10"]
    grid.handlers[20] = plain[11]  # one that comes later
    strategy.start(grid, initial(), num_rounds=1, timeout=60)
    assert list(strategy.train_round.failures) == ["node-10", "node-20"]
    assert len(strategy.train_round.replies) == DEVICES - 1


def test_a_method_of_ones_own_that_does_not_declare_what_it_needs_is_told(tmp_path):
    class Undeclared(type(made("standalone"))):
        def device_needs(self):
            return {}

    asked = []
    with pytest.raises(BouquetError, match="Undeclared plans an instruction that a plain Flower ClientApp cannot"):
        play(Undeclared(), stock_app(), 1, asked)
    assert asked == []
