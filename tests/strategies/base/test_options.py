"""The check of options: which values fit, and what the error names."""

import math

import pytest

from bouquet.common.errors import BouquetError
from bouquet.strategies import CFL, DCPFL, FedAC, FedAvg, FedDist, FedTSDP, FeSEM, GradientLoss
from bouquet.strategies.base.options import (
    Above0,
    Above0To1,
    Count,
    Share,
    Weight,
    Weighting,
    check_options,
    counts,
    one_of,
)
from bouquet.strategies.registry import hyper_parameters


@pytest.mark.parametrize(
    ("kind", "fitting", "unfit"),
    [
        (Count, [1, 50], [0, -1, 2.5]),
        (Weight, [0, 0.1, 10.0], [-0.1, math.inf, math.nan]),
        (Share, [0.0, 0.5, 1.0], [-0.1, 1.1, math.nan]),
        (Above0, [0.1, 3.5], [0.0, -1.0, math.nan]),
        (Above0To1, [0.1, 1.0], [0.0, 1.1, math.nan]),
    ],
)
def test_values_at_the_edges_of_what_is_allowed(kind, fitting, unfit):
    allowed = kind.__metadata__[0]
    assert all(map(allowed.fits, fitting))
    assert not any(map(allowed.fits, unfit))


def test_the_error_names_the_first_option_that_does_not_fit_its_value_and_what_does():
    check_options(*counts(rounds=3, patience=None))
    with pytest.raises(BouquetError, match=r"^ratio = 1\.5: a number from 0 to 1\.$"):
        check_options(
            *counts(rounds=3), ("ratio", 1.5, "a number from 0 to 1", False), ("kind", "x", "'a' or 'b'", False)
        )


def test_a_text_that_is_none_of_those_allowed_is_named_with_them():
    check_options(*one_of(Weighting, weighting="examples"))
    with pytest.raises(BouquetError, match=r"^weighting = 'samples': one of uniform, examples\.$"):
        check_options(*one_of(Weighting, weighting="samples"))


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (FeSEM, {"weighting": "samples"}),
        (FeSEM, {"num_clusters": "four"}),
        (FedDist, {"weighting": "samples"}),
        (FedTSDP, {"stages": "three"}),
        (DCPFL, {"scaling": "none"}),
        (DCPFL, {"discrepancy": "l2"}),
        (FedAC, {"similarity": "cosine"}),
        (FedAC, {"tuning": "auto"}),
        (FedAC, {"tested": "both"}),
        (CFL, {"stationary_norm": 0.0}),
        (CFL, {"conflict_norm": -1.0}),
        (CFL, {"min_separation": 1.5}),
        (GradientLoss, {"choice_batches": 0}),
        (GradientLoss, {"choice_batches": "some"}),
        (GradientLoss, {"batch_loss": "median"}),
        (FedAvg, {"fraction_train": 1.5}),
        (FedAvg, {"min_train_nodes": 0}),
        (FedAvg, {"min_replies": 0}),
        (FedAvg, {"min_replies": 1.5}),
        (FedAvg, {"round_timeout": 0}),
    ],
)
def test_a_strategy_in_anybodys_server_app_checks_its_options_itself(kind, option):
    *_, name = option
    with pytest.raises(BouquetError, match=f"^{name} = "):
        kind(**option)


def test_the_type_of_a_field_says_what_it_may_be():
    assert FedTSDP(sampling_gain=None).sampling_gain is None
    with pytest.raises(BouquetError, match=r"^observe_rounds = 0: a whole number from 1\.$"):
        DCPFL(observe_rounds=0)
    with pytest.raises(BouquetError, match=r"^dampening = 1\.5: a number above 0, at most 1\.$"):
        FedTSDP(dampening=1.5)
    with pytest.raises(BouquetError, match=r"^round_timeout = 0: a number above 0\.$"):
        FedTSDP(round_timeout=0)


def test_a_method_with_a_constructor_of_its_own_may_stand_on_one_without():
    class Mine(FeSEM):
        def __init__(self, share: float = 0.5, **sampling):
            super().__init__(num_clusters=3, **sampling)
            self.share = share

    mine = Mine(share=0.2, seed=7, fraction_train=0.5)
    assert (mine.num_clusters, mine.share, mine.seed, mine.fraction_train) == (3, 0.2, 7, 0.5)
    assert {"share": (float, 0.5)} == hyper_parameters(Mine)
    with pytest.raises(BouquetError, match=r"^fraction_train = 2: a number from 0 to 1\.$"):
        Mine(fraction_train=2)
