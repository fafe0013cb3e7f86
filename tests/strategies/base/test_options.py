"""The check of options: which values fit, and what the error names."""

import math

import pytest

from common.errors import BouquetError
from strategies import DCPFL, FedAC, FedAvg, FedBABU, FedDist, FedTSDP, FeSEM
from strategies.base.options import Weighting, above_0, above_0_to_1, check_options, counts, one_of, shares, weights


@pytest.mark.parametrize(
    ("kind", "fitting", "unfit"),
    [
        (counts, [1, 50], [0, -1, 2.5]),
        (weights, [0, 0.1, 10.0], [-0.1, math.inf, math.nan]),
        (shares, [0.0, 0.5, 1.0], [-0.1, 1.1, math.nan]),
        (above_0, [0.1, 3.5], [0.0, -1.0, math.nan]),
        (above_0_to_1, [0.1, 1.0], [0.0, 1.1, math.nan]),
    ],
)
def test_values_at_the_edges_of_what_is_allowed(kind, fitting, unfit):
    assert all(fits for value in [*fitting, None] for *_, fits in kind(option=value))
    assert not any(fits for value in unfit for *_, fits in kind(option=value))


def test_the_error_names_the_first_option_that_does_not_fit_its_value_and_what_does():
    check_options(*counts(rounds=3), *shares(ratio=0.5))
    with pytest.raises(BouquetError, match=r"^ratio = 1\.5: a number from 0 to 1\.$"):
        check_options(*counts(rounds=3), *shares(ratio=1.5), ("kind", "x", "'a' or 'b'", False))


def test_a_text_that_is_none_of_those_allowed_is_named_with_them():
    check_options(*one_of(Weighting, weighting="examples"))
    with pytest.raises(BouquetError, match=r"^weighting = 'samples': one of uniform, examples\.$"):
        check_options(*one_of(Weighting, weighting="samples"))


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (FeSEM, {"weighting": "samples"}),
        (FeSEM, {"selection": "loss"}),
        (FeSEM, {"num_clusters": "four"}),
        (FeSEM, {"num_clusters": "auto", "candidates": ()}),
        (FedDist, {"weighting": "samples"}),
        (FedBABU, {"fine_tuned": "body"}),
        (FedTSDP, {"stages": "three"}),
        (DCPFL, {"scaling": "none"}),
        (DCPFL, {"discrepancy": "l2"}),
        (FedAC, {"similarity": "cosine"}),
        (FedAC, {"tuning": "auto"}),
        (FedAC, {"tested": "both"}),
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
