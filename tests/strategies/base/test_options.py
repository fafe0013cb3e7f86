"""The check of options: which values fit, and what the error names."""

import math
import re

import pytest

from bouquet.common.errors import BouquetError
from bouquet.strategies import (
    DCPFL,
    FLHC,
    Ditto,
    FedAC,
    FedAvg,
    FedTSDP,
    FeSEM,
    GradientLoss,
)
from bouquet.strategies.registry import hyper_parameters


@pytest.mark.parametrize(
    ("kind", "option", "value", "allowed"),
    [
        (FeSEM, "weighting", "samples", "'uniform' or 'examples'"),
        (FeSEM, "num_clusters", "four", "'auto'"),
        (FeSEM, "num_clusters", 0, "greater than or equal to 1; or input should be 'auto'"),
        (FedAC, "num_clusters", 16, "at most 15, where it is tuned"),
        (FedAC, "embedding_weight", math.nan, "finite number"),
        (FedTSDP, "dampening", 1.1, "less than or equal to 1"),
        (DCPFL, "validation_fraction", 1.0, "less than 1"),
        (GradientLoss, "choice_batches", 0, "greater than or equal to 1; or input should be 'all'"),
        (FLHC, "warmup_rounds", -1, "greater than or equal to 0"),
        (Ditto, "proximal_weight", -1, "greater than or equal to 0"),
        (FedAvg, "fraction_train", 1.5, "less than or equal to 1"),
        (FedAvg, "min_replies", 0, "a whole number from 1 (so many replies), or a number with a point above 0"),
        (FedAvg, "min_replies", 1.5, "a whole number from 1 (so many replies), or a number with a point above 0"),
        (FedAvg, "round_timeout", 0, "greater than 0"),
    ],
)
def test_a_strategy_in_anybodys_server_app_checks_its_options_itself(kind, option, value, allowed):
    with pytest.raises(BouquetError, match=f"^{re.escape(f'{option} = {value!r}: ')}.*{re.escape(allowed)}"):
        kind(**{option: value})


def test_none_is_an_option_that_is_not_set():
    assert FedTSDP(sampling_gain=None).sampling_gain is None


def test_a_method_with_a_constructor_of_its_own_may_stand_on_one_without():
    class Mine(FeSEM):
        def __init__(self, share: float = 0.5, **sampling):
            super().__init__(num_clusters=3, **sampling)
            self.share = share

    mine = Mine(share=0.2, seed=7, fraction_train=0.5)
    assert (mine.num_clusters, mine.share, mine.seed, mine.fraction_train) == (3, 0.2, 7, 0.5)
    assert {"share": (float, 0.5)} == hyper_parameters(Mine)
    with pytest.raises(BouquetError, match=r"^fraction_train = 2: input should be less than or equal to 1\.$"):
        Mine(fraction_train=2)
