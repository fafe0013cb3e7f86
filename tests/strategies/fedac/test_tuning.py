import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.strategies.fedac import tuning
from bouquet.strategies.fedac.tuning import RULES, Change, ratios


@pytest.fixture
def thresholds(monkeypatch):
    def of(split_above, merge_below):
        monkeypatch.setattr(tuning, "SPLIT_ABOVE", split_above)
        monkeypatch.setattr(tuning, "MERGE_BELOW", merge_below)

    return of


def tune(rows, labels, centers=None, num_clusters=None, rule="silhouette", most=12):
    rows, labels = np.asarray(rows, dtype=float), np.asarray(labels)
    count = num_clusters or int(labels.max()) + 1
    if centers is None:
        centers = np.full((count, rows.shape[1]), 99.0)
        for k in np.unique(labels):
            centers[k] = rows[labels == k].mean(axis=0)
    return RULES[rule](rows, labels, np.asarray(centers, dtype=float), most, 0)


def planted(groups=6, members=5, dims=10, noise=0.1, seed=0):
    generator = np.random.default_rng(seed)
    truth = np.arange(groups * members) % groups
    return np.eye(dims)[truth] + noise * generator.normal(size=(len(truth), dims)), truth


def same_grouping(labels, truth):
    return len(set(zip(labels.tolist(), truth.tolist(), strict=True))) == len(set(truth)) == len(set(labels.tolist()))


@pytest.mark.parametrize("start", [1, 2, 5, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_number_is_found_from_below_and_above(start, seed):
    rows, truth = planted(seed=seed)
    old = (truth + 6 * (np.arange(len(truth)) // 6)) % start  # groups thrown together, or cut in pieces
    tuned = tune(rows, old)
    assert tuned.num_clusters == 6
    assert same_grouping(tuned.labels, truth)
    assert max(tuned.scores, key=tuned.scores.get) == 6
    count = start
    for change in tuned.changes:
        assert change.figure == tuned.scores[6]
        count += 1 if change.kind == "split" else -1
    assert count == 6
    again = tune(rows, tuned.labels)
    assert (again.labels.tolist(), again.changes) == (tuned.labels.tolist(), [])


@pytest.mark.parametrize("start", [1, 2, 5])
def test_one_blob_is_one_cluster(start):
    rows = np.random.default_rng(0).normal(size=(30, 10))
    tuned = tune(rows, np.arange(30) % start)
    assert tuned.num_clusters == 1
    assert [change.kind for change in tuned.changes] == ["merge"] * (start - 1)
    assert all(change.figure < change.against == 0.25 for change in tuned.changes)
    assert tuned.labels.tolist() == [0] * 30


def test_a_bad_grouping_into_the_right_number_is_put_right():
    rows, truth = planted(groups=3)
    wrong = np.where(truth == 2, 1, truth)  # 1 and 2 together
    wrong[np.flatnonzero(truth == 0)[3:]] = 2  # and 0 in two pieces
    tuned = tune(rows, wrong)
    assert same_grouping(tuned.labels, truth)
    assert sorted(change.kind for change in tuned.changes) == ["merge", "split"]


# Unit vectors at 0°, 15°, 90° and 105°, which are .2611 (15°), 1.2175 (75°), 1.4142 (90°) and 1.5867 (105°) apart.
# Two pairs have the silhouette ((1 − .2611 / 1.50045) + (1 − .2611 / 1.31585)) / 2 = .8138, the first one against the
# others (0 − .8016 + .4772 + .4721) / 4 = .0369.
PAIRS = [[np.cos(a), np.sin(a)] for a in np.radians([0, 15, 90, 105])]


@pytest.mark.parametrize(("margin", "labels"), [(0.77, [0, 0, 1, 1]), (0.78, [0, 1, 1, 1])])
def test_a_new_grouping_must_beat_the_present_one_by_the_margin(monkeypatch, margin, labels):
    monkeypatch.setattr(tuning, "MARGIN", margin)
    tuned = tune(PAIRS, [0, 1, 1, 1])
    assert tuned.labels.tolist() == labels
    assert tuned.scores[2] == pytest.approx(0.8138, abs=1e-4)


@pytest.mark.parametrize(("margin", "labels"), [(0.56, [0, 0, 1, 1]), (0.57, [0, 0, 0, 0])])
def test_one_cluster_counts_as_the_least_silhouette(monkeypatch, margin, labels):
    monkeypatch.setattr(tuning, "MARGIN", margin)
    assert tune(PAIRS, [0, 0, 0, 0]).labels.tolist() == labels


def test_survivors_keep_their_order_and_new_clusters_come_last():
    rows, truth = planted(groups=4)
    tuned = tune(rows, np.where(truth == 3, 1, truth))
    assert tuned.parents == [0, 1, 2, 1]
    assert tuned.changes == [Change("split", [1], tuned.scores[4], pytest.approx(0.65, abs=0.15))]


def test_an_empty_cluster_goes_and_a_piece_joins_the_larger_one():
    rows, truth = planted(groups=2)
    old = np.where(truth == 1, 2, 0)  # nobody is in 1
    old[np.flatnonzero(truth == 1)[3:]] = 3
    tuned = tune(rows, old)
    assert tuned.labels.tolist() == truth.tolist()
    assert tuned.parents == [0, 2]
    assert [(change.kind, change.clusters) for change in tuned.changes] == [("merge", [3, 2]), ("removal", [1])]


def test_too_few_clients_to_judge_change_nothing():
    tuned = tune([[1.0, 0.0], [0.9, 0.1]], [0, 1])
    assert (tuned.labels.tolist(), tuned.changes, tuned.scores) == ([0, 1], [], {})


# On a line: cluster 0 at 0 and 2, cluster 1 at 10 and 10, cluster 2 at 13 alone.
LINE, LINE_LABELS = [[0.0, 0.0], [2.0, 0.0], [10.0, 0.0], [10.0, 0.0], [13.0, 0.0]], [0, 0, 1, 1, 2]


def test_ratios_by_hand():
    centers = np.array([[1.0, 0.0], [10.0, 0.0], [13.0, 0.0], [5.0, 0.0]])
    rho = ratios(np.array(LINE), np.array(LINE_LABELS), centers)
    # 1/9, 0/3, 0/3; the last cluster has no members, so it is nobody's neighbour
    np.testing.assert_allclose(rho, [1 / 9, 0, 0, np.nan])
    assert np.isnan(ratios(np.array(LINE), np.zeros(5, dtype=int), centers[:1])).all()


def test_the_papers_rule_splits_a_large_ratio(thresholds):
    thresholds(0.1, 0.0)
    tuned = tune(LINE, LINE_LABELS, rule="ratio")
    assert tuned.changes == [Change("split", [0], pytest.approx(1 / 9), 0.1)]
    assert tuned.labels.tolist() == [0, 3, 1, 1, 2]
    assert tuned.parents == [0, 1, 2, 0]


def test_the_papers_rule_merges_a_small_ratio_into_the_nearest(thresholds):
    thresholds(0.5, 0.05)
    tuned = tune(LINE, LINE_LABELS, rule="ratio")
    # 1 and 2 both have ρ = 0 and each other as neighbours: one merge
    assert [(change.kind, sorted(change.clusters)) for change in tuned.changes] == [("merge", [1, 2])]
    assert tuned.labels.tolist() == [0, 0, 1, 1, 1]


def test_the_papers_rule_does_not_merge_into_a_cluster_that_was_split(thresholds):
    thresholds(0.3, 0.05)
    places = [-1, -1.01, 1, 1.01, 2.5, 2.5, 9, 9.1]
    rows, labels = [[x, 0.0] for x in places], [0, 0, 0, 0, 1, 1, 2, 2]
    tuned = tune(rows, labels, rule="ratio")
    # ρ: 1.005 / 2.5, 0, .05 / 6.55; 0 is nearest to 1, which is free to take in 2
    assert [(change.kind, change.clusters) for change in tuned.changes] == [("split", [0]), ("merge", [2, 1])]
    assert [change.figure for change in tuned.changes] == pytest.approx([0.402, 0.05 / 6.55])
    assert tuned.labels.tolist() == [0, 0, 2, 2, 1, 1, 1, 1]


def test_the_papers_rule_splits_neither_one_client_nor_equal_ones_and_keeps_bounds(thresholds):
    thresholds(0.2, 0.0)
    centers = [[1.0, 0.0], [11.0, 0.0], [14.0, 0.0]]  # off their members: ρ of 1/10, 1/3 and 1/3
    tuned = tune(LINE, LINE_LABELS, rule="ratio", centers=centers)
    assert tuned.changes == []
    thresholds(0.1, 0.0)
    assert tune(LINE, LINE_LABELS, rule="ratio", most=3).changes == []


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_every_client_and_cluster_is_accounted_for(data):
    count = data.draw(st.integers(1, 5))
    n = data.draw(st.integers(1, 12))
    old = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=n, max_size=n)))
    rule = data.draw(st.sampled_from(["silhouette", "ratio"]))
    rows = np.random.default_rng(n).normal(size=(n, 3))
    tuned = tune(rows, old, num_clusters=count, rule=rule, most=5)
    assert set(tuned.labels.tolist()) == set(range(tuned.num_clusters))
    by_kind = {kind: [c.clusters[0] for c in tuned.changes if c.kind == kind] for kind in ("split", "merge", "removal")}
    assert by_kind["removal"] == [k for k in range(count) if k not in old]
    living = sorted(set(range(count)) - set(by_kind["merge"]) - set(by_kind["removal"]))
    if rule == "silhouette":
        assert tuned.parents == living + by_kind["split"]
    for k, parent in enumerate(tuned.parents):
        assert parent in old[tuned.labels == k]
