"""What the server does about replies that are well-formed and bad."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, Instruction
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import CFL, FLHC, FedAC, FedAvg, FedDWS, FedPer, FeSEM
from bouquet.strategies.base.protection import MOST_WEIGHT, Protection
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.mathematics.robust import Aggregation


def plus(amount):
    return lambda start, received: start + np.float32(amount)


def test_an_absurd_update_is_refused_and_the_round_goes_on(scripted, play):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(1e8))}
    strategy = FedAvg(identify=True)
    play(strategy, InlineGrid(clients), range(1, 3))
    assert strategy.centers(strategy.state).tolist() == [[2.0] * 8]
    assert "more than 1000 times the median" in strategy.train_round.failures["x"]


def test_an_update_of_a_hundred_times_the_others_is_limited_if_asked_for(scripted, play):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abc", 1)} | {9: scripted("x", plus(100.0))}
    for limit, expected in ((None, 103 / 4), (2.0, 5 / 4)):
        strategy = FedAvg(identify=True)
        strategy.protection = Protection(limit_norm=limit)
        play(strategy, InlineGrid(dict(clients)), range(1, 2))
        np.testing.assert_allclose(strategy.centers(strategy.state), np.full((1, 8), expected), rtol=1e-6)
    assert strategy.train_round.limited == {"x": 0.02}


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
@pytest.mark.parametrize("kind", [FedAvg, FeSEM])
def test_a_minority_does_not_move_a_center_however_many_samples_it_claims(scripted, play, rule, kind):
    many = {protocol.NUM_EXAMPLES: 10**8}
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(-50.0), many)}
    strategy = kind(identify=True) if kind is FedAvg else kind(num_clusters=1, identify=True)
    strategy.protection = Protection(Aggregation(rule))
    play(strategy, InlineGrid(clients), range(1, 3))
    np.testing.assert_allclose(strategy.centers(strategy.state), np.full((1, 8), 2.0))


class OwnMean(FedAvg):
    """A method of one's own that passes over the rule."""

    def update(self, state, round_, replies):
        return replace(state, centers=replies.W.mean(axis=0, keepdims=True))


@pytest.mark.parametrize(
    ("kind", "protection", "said"),
    [
        (OwnMean, Protection(Aggregation("median")), True),
        (OwnMean, Protection(limit_norm=2.0), True),
        (OwnMean, Protection(), False),
        (FedAvg, Protection(Aggregation("median")), False),
    ],
)
def test_a_method_that_passes_over_the_rule_is_named_once(scripted, play, kind, protection, said):
    strategy = kind(identify=True)
    strategy.protection = protection
    heard = []
    for number in range(1, 6):
        play(strategy, InlineGrid({i: scripted(name, plus(1.0)) for i, name in enumerate("abc", 1)}), [number])
        said_now = strategy.train_round.warnings
        heard.append([text for text in said_now if "has not taken a mean by self.aggregation" in text])
    assert [bool(each) for each in heard] == [False, False, said, False, False]


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_nor_the_embedding_that_all_clusters_of_fedac_share(scripted, play, rule):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(100.0))}
    embedding = {}
    for aggregation in (Aggregation(rule), Aggregation()):
        strategy = FedAC(num_clusters=2, tuning="off", identify=True)
        strategy.protection = Protection(aggregation)
        play(strategy, InlineGrid(dict(clients)), range(1, 2))
        embedding[aggregation.rule] = strategy.state.global_embedding[:6].tolist()
    assert embedding == {rule: [1.0] * 6, "mean": [pytest.approx(104 / 5)] * 6}


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_nor_what_cfl_takes_for_settled(scripted, play, rule):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(100.0))}
    strategy = CFL(identify=True)
    strategy.protection = Protection(Aggregation(rule))
    play(strategy, InlineGrid(clients), range(1, 2))
    assert strategy.state.last[0]["mean_norm"] == pytest.approx(8**0.5)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_nor_the_direction_that_newcomers_find_a_cluster_by(rule):
    strategy = FLHC(num_clusters=1)
    strategy.protection = Protection(Aggregation(rule))
    updates = np.ones((5, 8), dtype=np.float32)
    updates[2, :4] = -100
    assert strategy.direction(updates).tolist() == [1.0] * 8


METHODS = [
    FedAvg(identify=True),
    FedDWS(identify=True),
    FeSEM(num_clusters=1, weighting="examples", identify=True),
    CFL(identify=True),
    FedPer(identify=True),
    FLHC(num_clusters=1, warmup_rounds=1, identify=True),
]


@pytest.mark.parametrize("strategy", METHODS, ids=lambda strategy: type(strategy).__name__)
def test_a_claim_of_many_samples_does_not_reverse_nineteen_others(scripted, play, strategy):
    strategy.protection = Protection(limit_norm=2.0)
    many = {protocol.NUM_EXAMPLES: 10**9}
    clients = {i: scripted(f"c{i:02}", plus(1.0)) for i in range(1, 20)} | {99: scripted("x", plus(-50.0), many)}
    play(strategy, InlineGrid(clients), range(1, 3))
    # In each round nineteen steps of 1, and one of weight 3 that is shortened to -2; FeSEM's first weighs all alike.
    step = (19 - 2 * MOST_WEIGHT) / (19 + MOST_WEIGHT)
    step *= getattr(strategy, "step_size", 1.0)
    assert strategy.centers(strategy.state)[0][:6].min() >= 2 * step - 1e-4


def test_those_that_were_sent_nothing_make_no_others_update_absurd():
    """Of most a method may ask for no model: the median is that of those who moved."""
    layout = ParameterLayout.of({"w": np.zeros(4, dtype=np.float32)})
    received = tuple(ClientReply(f"c{i}", i, np.ones(4, dtype=np.float32), ("w",), 1, {}, {}) for i in range(8))
    start = Instruction({protocol.ARRAYS: protocol.Payload(np.zeros(4, dtype=np.float32))})
    screened = Protection().screen(Replies(layout, received, dict.fromkeys(("c0", "c1", "c2"), start)), {})
    assert (screened.replies.clients, screened.refused) == (tuple(f"c{i}" for i in range(8)), {})


def test_by_default_a_device_weighs_what_it_says():
    weights = np.array([1, 10**9])
    assert Protection().aggregation.weights(weights) is weights
    assert Protection(limit_norm=1.0).aggregation.weights(weights).tolist() == [1, MOST_WEIGHT]
    assert Protection(Aggregation("median")).aggregation.most_weight == MOST_WEIGHT


norms = st.floats(1e-3, 1e6)
samples = st.integers(1, 10**9)


@given(
    st.lists(st.tuples(norms, samples), min_size=1, max_size=12), norms, samples, st.sampled_from([0.5, 1.0, 2.0, 5.0])
)
@example([(30.0, 1)], 166211.0, 3, 1.0)  # what is left of such an update keeps its digits
def test_how_far_one_device_moves_the_mean(honest, norm, claimed, limit):
    """By c / (c + ⌊n / 2⌋) · L times the median norm, which is no more than that of an honest member."""
    layout = ParameterLayout.of({"w": np.zeros(4, dtype=np.float32)})
    rng = np.random.default_rng(len(honest))
    directions = rng.normal(size=(len(honest) + 1, 4))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    updates = (directions * np.array([*(size for size, _ in honest), norm])[:, None]).astype(np.float32)
    weights = [*(weight for _, weight in honest), claimed]
    start = Instruction({protocol.ARRAYS: protocol.Payload(np.zeros(4, dtype=np.float32))})
    received = tuple(
        ClientReply(f"c{i:02}", i, update, ("w",), weight, {}, {})
        for i, (update, weight) in enumerate(zip(updates, weights, strict=True))
    )
    names = [reply.client for reply in received]
    protection = Protection(limit_norm=limit)
    screened = protection.screen(Replies(layout, received, dict.fromkeys(names, start)), dict.fromkeys(names, 0))
    if len(screened.replies) < len(received):
        return  # an absurd one is refused
    W, counted = screened.replies.W.astype(np.float64), screened.replies.num_examples
    without = W.copy()
    without[-1] = 0
    moved = np.linalg.norm(protection.aggregation.center(W, counted) - protection.aggregation.center(without, counted))
    n = len(received)
    sizes = np.linalg.norm(updates, axis=1)
    median = np.median(sizes) if n > 2 else sizes.min()
    assert median <= sizes[:-1].max() * (1 + 1e-6)
    assert moved <= MOST_WEIGHT / (MOST_WEIGHT + n // 2) * limit * median * (1 + 1e-4)


@given(st.lists(st.tuples(st.integers(0, 2), samples), min_size=1, max_size=20))
def test_nor_has_anyone_more_of_a_clusters_weight_than_that(members):
    clusters = np.array([cluster for cluster, _ in members])
    weights = Protection(limit_norm=1.0).aggregation.weights([weight for _, weight in members], clusters)
    for cluster in np.unique(clusters):
        of_cluster = weights[clusters == cluster]
        share = of_cluster.max() / of_cluster.sum()
        assert share <= MOST_WEIGHT / (MOST_WEIGHT + len(of_cluster) // 2) + 1e-12
    assert (weights <= [weight for _, weight in members]).all()


TENSORS = {
    "conv.weight": np.zeros((2, 2), dtype=np.float32),
    "bn.weight": np.zeros(2, dtype=np.float32),
    "bn.running_mean": np.zeros(2, dtype=np.float32),
    "bn.running_var": np.ones(2, dtype=np.float32),
    "bn.num_batches_tracked": np.zeros((), dtype=np.int64),
    "own.scale": np.ones(2, dtype=np.float16),  # a buffer that is none of BatchNorm's
    "head.bias": np.zeros(3, dtype=np.float32),
}
KINDS = ParameterLayout.of(TENSORS, parameters=("conv.weight", "bn.weight", "head.bias"))
PROTECTIONS = [
    Protection(Aggregation(rule), limit) for rule in ("mean", "median", "trimmed-mean", "krum") for limit in (None, 2.0)
][1:]
values = st.one_of(st.sampled_from([1e9, -1e9, 0.0, -1.0]), st.floats(-1e9, 1e9, width=32))


@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda p: f"{p.aggregation.rule}-{p.limit_norm}")
@given(st.data())
def test_no_column_of_any_kind_goes_further_than_the_others_lie_apart(protection, data):
    """Parameters too: of 19 honest ones and one whose every column of one kind, or all, is arbitrary."""
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    start = KINDS.flatten(TENSORS)
    honest = start + rng.uniform(0.5, 1.5, (19, KINDS.dim)).astype(np.float32)
    bad = honest[0].copy()
    attacked = data.draw(st.sampled_from([*KINDS.tensors, None]))
    columns = slice(None) if attacked is None else attacked.columns
    bad[columns] = data.draw(st.lists(values, min_size=len(bad[columns]), max_size=len(bad[columns])))
    rows, names = np.stack([*honest, bad]), [f"c{i:02}" for i in range(20)]
    sent = dict.fromkeys(names, Instruction({protocol.ARRAYS: protocol.Payload(start)}))
    received = tuple(ClientReply(n, i, rows[i], KINDS.layers, 10, {}, {}) for i, n in enumerate(names))
    screened = protection.screen(Replies(KINDS, received, sent, rows), dict.fromkeys(names, 0))
    rule = replace(protection.aggregation, compared=KINDS.parameter_columns)
    center = rule.center(screened.replies.W, screened.replies.num_examples)[0]
    norm = np.linalg.norm((honest - start)[:, KINDS.parameter_columns], axis=1).max()
    beside = ~KINDS.parameter_columns
    assert (np.abs(center - honest.mean(axis=0))[beside] <= 1.0).all()  # all of the honest lie in [0.5, 1.5]
    assert center[KINDS.tensors[3].columns].min() > 0  # a variance
    assert np.linalg.norm((center - start)[KINDS.parameter_columns]) <= 2 * norm
    untouched = [
        row for row in range(len(screened.replies)) if screened.replies.clients[row] not in ("c19", *screened.limited)
    ]
    assert np.abs(screened.replies.W[untouched] - rows[untouched]).max() <= 1.0


def test_where_nobody_is_far_off_nothing_is_copied_or_changed():
    start = KINDS.flatten(TENSORS)
    rows = start + np.random.default_rng(1).uniform(0.5, 1.5, (8, KINDS.dim)).astype(np.float32)
    received = tuple(ClientReply(f"c{i}", i, row, KINDS.layers, 10, {}, {}) for i, row in enumerate(rows))
    replies = Replies(KINDS, received, {}, rows)
    assert Protection(Aggregation("median")).screen(replies, {}).replies is replies


def test_fences_are_of_those_that_sent_the_layer_and_cost_an_honest_zero_nothing():
    start = KINDS.flatten(TENSORS)
    rows = np.stack([start + 5, start + 5.5, start + 6, *[start] * 9]).astype(np.float32)
    layers = [KINDS.layers] * 3 + [("conv", "head")] * 9
    received = tuple(ClientReply(f"c{i:02}", i, row, layers[i], 10, {}, {}) for i, row in enumerate(rows))
    assert Protection(limit_norm=1.0).screen(Replies(KINDS, received, {}), {}).replies.W.tolist() == rows.tolist()


def test_what_is_fenced_and_shortened_is_still_known_to_be_late():
    start = KINDS.flatten(TENSORS)
    rows = np.stack([start + 1, start + 1, start + 1, start + 500]).astype(np.float32)
    received = tuple(ClientReply(f"c{i}", i, row, KINDS.layers, 10, {}, {}) for i, row in enumerate(rows))
    sent = {reply.client: Instruction({protocol.ARRAYS: protocol.Payload(start)}) for reply in received}
    replies = Replies(KINDS, received, sent, rows, late={"c0": 2})
    screened = Protection(Aggregation("median"), limit_norm=1.0).screen(
        replies, {reply.client: 0 for reply in received}
    )
    assert screened.limited
    assert not np.array_equal(screened.replies.W, rows)
    assert screened.replies.late == {"c0": 2}
