"""The check of options: which values fit, and what the error names."""

import math
import re

import pytest

from bouquet.common.errors import BouquetError
from bouquet.strategies import (
    CFL,
    CGPFL,
    DCPFL,
    FLHC,
    ClusterFL,
    Ditto,
    FedAC,
    FedAvg,
    FedTSDP,
    FeSEM,
    GradientLoss,
    HypoCluster,
    PerFedAvg,
)
from bouquet.strategies.base.options import (
    Above0,
    Above0To1,
    Count,
    Share,
    Weight,
    check_options,
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
    check_options(("rounds", 3, "a whole number from 1", True))
    with pytest.raises(BouquetError, match=r"^ratio = 1\.5: a number from 0 to 1\.$"):
        check_options(("ratio", 1.5, "a number from 0 to 1", False), ("kind", "x", "'a' or 'b'", False))


@pytest.mark.parametrize(
    ("kind", "option", "value", "allowed"),
    [
        (FeSEM, "weighting", "samples", "one of uniform, examples"),
        (FeSEM, "num_clusters", "four", "a whole number from 1, or 'auto'"),
        (FeSEM, "num_clusters", 0, "a whole number from 1, or 'auto'"),
        (FeSEM, "proximal_weight", -1.0, "a number from 0"),
        (FedTSDP, "stages", "three", "one of both, one, two"),
        (FedTSDP, "patience", 0, "a whole number from 1"),
        (FedTSDP, "eps_weights", 0.0, "a number above 0"),
        (FedTSDP, "dampening", 1.1, "a number above 0, at most 1"),
        (FedTSDP, "hopkins_threshold", -0.1, "a number from 0 to 1"),
        (FedTSDP, "sampling_gain", -1.0, "a number from 0"),
        (DCPFL, "scaling", "none", "one of model, layer"),
        (DCPFL, "discrepancy", "l2", "one of l1, l1-own, cosine"),
        (DCPFL, "observe_rounds", 0, "a whole number from 1"),
        (DCPFL, "slow_ratio", 1.5, "a number from 0 to 1"),
        (DCPFL, "fixed_gamma", -0.1, "a number from 0 to 1"),
        (DCPFL, "validation_fraction", 1.0, "a number from 0, below 1"),
        (FedAC, "similarity", "cosine", "one of low-rank, l2"),
        (FedAC, "tuning", "auto", "one of silhouette, ratio, off"),
        (FedAC, "tested", "both", "one of personal, center"),
        (FedAC, "num_clusters", 0, "a whole number from 1"),
        (FedAC, "num_clusters", 16, "at most 15, where it is tuned"),
        (FedAC, "proximal_weight", -1.0, "a number from 0"),
        (FedAC, "embedding_weight", math.nan, "a number from 0"),
        (FedAC, "pca_dim", 0, "a whole number from 1"),
        (CFL, "stationary_norm", 0.0, "a number above 0"),
        (CFL, "conflict_norm", -1.0, "a number above 0"),
        (CFL, "min_separation", 1.5, "a number from 0 to 1"),
        (GradientLoss, "num_clusters", 0, "a whole number from 1, or 'auto'"),
        (GradientLoss, "gradient_weight", 1.5, "a number from 0 to 1"),
        (GradientLoss, "similarity", "taxicab", "one of cosine, euclidean"),
        (GradientLoss, "local_update", "half", "one of step, epochs"),
        (GradientLoss, "choice_batches", 0, "a whole number from 1, or 'all'"),
        (GradientLoss, "choice_batches", "some", "a whole number from 1, or 'all'"),
        (GradientLoss, "batch_loss", "median", "one of mean, sum"),
        (GradientLoss, "empty_cluster", "told", "one of tell, leave"),
        (FLHC, "num_clusters", 0, "a whole number from 1"),
        (FLHC, "warmup_rounds", -1, "a whole number from 0"),
        (ClusterFL, "num_clusters", 0, "a whole number from 1"),
        (CGPFL, "num_clusters", 0, "a whole number from 1, or 'auto'"),
        (HypoCluster, "num_clusters", 0, "a whole number from 1"),
        (Ditto, "proximal_weight", -1, "a number from 0"),
        (PerFedAvg, "adaptation_rate", 0, "a number above 0"),
        (FedAvg, "fraction_train", 1.5, "a number from 0 to 1"),
        (FedAvg, "min_train_nodes", 0, "a whole number from 1"),
        (FedAvg, "min_replies", 0, "a whole number from 1, or a share above 0, at most 1.0"),
        (FedAvg, "min_replies", 1.5, "a whole number from 1, or a share above 0, at most 1.0"),
        (FedAvg, "round_timeout", 0, "a number above 0"),
    ],
)
def test_a_strategy_in_anybodys_server_app_checks_its_options_itself(kind, option, value, allowed):
    with pytest.raises(BouquetError, match=f"^{re.escape(f'{option} = {value!r}: {allowed}.')}$"):
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
    with pytest.raises(BouquetError, match=r"^fraction_train = 2: a number from 0 to 1\.$"):
        Mine(fraction_train=2)
