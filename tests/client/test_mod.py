"""bouquet.client.mod.around a plain Flower ClientApp: each method is as with Bouquet's own ClientApp, or refused."""

import numpy as np
import pytest

from bouquet.client.mod import around, penalty
from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.protocol.capabilities import TRAINING
from tests.helpers.stock_app import DEVICES, grid_of, initial, own_app, play, stock_app, training_loss
from tests.test_stock_clients import made

OPEN = [name for name in METHODS if TRAINING not in made(name).device_needs()]
SHUT = [name for name in METHODS if name not in OPEN]


def whole():
    """All that can be offered around a plain app."""
    return around(stock_app(penalty), training_loss=training_loss, adds_penalty=True)


@pytest.mark.parametrize("name", OPEN)
def test_it_is_as_with_bouquets_own_client_app(name, tmp_path):
    results = []
    for app in (whole(), own_app(tmp_path)):
        strategy = made(name)
        play(strategy, app, 4)
        assert strategy.train_round.failures == {}
        losses = [metrics["test-loss"] for _, metrics in sorted(strategy.evaluate_round.scores.items())]
        results.append((strategy.centers(strategy.state), losses, strategy.assignment(strategy.state)))
    (centers, losses, assignment), (own_centers, own_losses, own_assignment) = results
    assert list(assignment.values()) == list(own_assignment.values())
    np.testing.assert_allclose(centers, own_centers, atol=2e-4)
    np.testing.assert_allclose(losses, own_losses, atol=2e-3)


@pytest.mark.parametrize("name", SHUT)
def test_what_trains_in_ways_of_its_own_is_refused(name):
    asked = []
    with pytest.raises(BouquetError, match="what to do: take Bouquet's own ClientApp"):
        play(made(name), whole(), 2, asked)
    assert set(asked) == {"query.identify"}


def test_a_loop_that_says_it_adds_the_penalty_and_does_not_is_an_error():
    strategy = made("fedprox")
    play(strategy, around(stock_app(), adds_penalty=True), 1)
    failures = strategy.train_round.failures
    assert len(failures) == DEVICES
    assert all("penalty(model) to its loss (adds_penalty), and did not" in why for why in failures.values())


def test_a_device_that_lost_all_it_kept_is_sent_the_initial_model_again():
    strategy, grid = made("fedper"), grid_of(whole())
    strategy.start(grid, initial(), num_rounds=2, timeout=60)
    grid.handlers[10] = grid_of(whole()).handlers[10]  # as after a restart of its SuperNode
    strategy.start(grid, initial(), num_rounds=1, timeout=60)
    assert "no longer has the model that the run began with" in strategy.train_round.failures["client-0"]
    strategy.start(grid, initial(), num_rounds=1, timeout=60)
    assert strategy.train_round.failures == {}


def test_the_penalty_of_a_training_without_terms_is_zero():
    import torch

    assert penalty(torch.nn.Linear(1, 1)).item() == 0.0
