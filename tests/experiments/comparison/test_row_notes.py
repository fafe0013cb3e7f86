"""What a table says of its rows."""

import pytest

from bouquet.common.settings import Settings
from bouquet.experiments.comparison.row_notes import budget_text
from bouquet.strategies.registry import create_strategy


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fedavg", {}, "3 rounds of 2 epochs, batch 16"),
        ("gradient-loss", {"local_update": "epochs"}, "3 rounds of 2 epochs, batch 16"),
        ("gradient-loss", {"local_update": "step"}, "3 rounds, batch 16"),
        ("fedsgd", {}, "3 rounds, batch 16"),
    ],
)
def test_a_method_that_takes_a_step_has_no_epochs(name, options, said):
    settings = Settings.model_validate({"run": {"rounds": 3}, "train": {"local_epochs": 2, "batch_size": 16}})
    assert budget_text([settings], create_strategy(name, options).trainings) == said
