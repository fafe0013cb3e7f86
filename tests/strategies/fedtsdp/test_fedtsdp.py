"""FedTSDP on four layers of one weight each, whose first weight decides what a model says of the public samples."""

import json
from functools import partial

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, FALLBACK, STATE_LOST
from bouquet.strategies.base.replies import PublicData
from bouquet.strategies.fedtsdp.hopkins import entropy
from bouquet.strategies.fedtsdp.strategy import FedTSDP
from tests.helpers import points

FOUR = ParameterLayout.of({f"l{i}.weight": np.zeros(1, dtype=np.float32) for i in range(1, 5)})
ALWAYS, NEVER = 0.0, 1.0  # thresholds that H is above, or not
SAMPLES = 100


def say(W, indices):
    """Class 0 with probability σ(w_1), on every sample; a model without a finite first weight says nothing."""
    assert len(W) > 0
    with np.errstate(over="ignore"):
        first = 1 / (1 + np.exp(-W[:, :1].astype(np.float64)))
    first[np.abs(W[:, :1]) > 1e6] = np.nan
    return np.repeat(np.stack([first, 1 - first], axis=2), len(indices), axis=1)


def strategy(threshold=ALWAYS, layout=FOUR, **options):
    made = FedTSDP(hopkins_threshold=threshold, **options)
    made.public = PublicData(SAMPLES, say)
    made.layout = layout
    return made


replies = partial(points.replies, layout=FOUR)


def start(made):
    return made.initial_state(FOUR, np.zeros(4, dtype=np.float32))


# a and b say class 0, c and d class 1; c and d are far apart in their other weights, a and b near; e is between
ROWS = {"a": (9, 0, 0, 0), "b": (9, 0, 0, 1), "c": (-9, 0, 0, 0), "d": (-9, 0, 8, 0), "e": (0, 0, 0, 0)}


def test_below_the_threshold_one_cluster_goes_on_with_the_weighted_mean():
    made = strategy(NEVER)
    state = made.update(start(made), 1, replies(ROWS, {"a": 30, "b": 10, "c": 20, "d": 20, "e": 20})).state
    assert state.assignment == dict.fromkeys("abcde", 0)
    np.testing.assert_allclose(state.centers, [[0, 0, 1.6, 0.1]], atol=1e-6)
    assert state.shared_layers == 4
    assert not state.observed.clustered
    assert entropy(state.weights) == pytest.approx(np.log(SAMPLES))


def test_two_stages_by_hand():
    made = strategy()
    state = made.update(start(made), 1, replies(ROWS, {"a": 30})).state
    assert state.stage_one == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}
    assert state.assignment == state.stage_two == {"a": 0, "b": 0, "c": 1, "d": 2, "e": 3}
    assert state.centers.tolist() == [[9, 0, 0, 0.25], [-9, 0, 0, 0], [-9, 0, 8, 0], [0, 0, 0, 0]]
    assert state.shared_layers == pytest.approx(3.92)
    assert state.weights.sum() == pytest.approx(1)
    assert (state.weights > 0.9 / 64).sum() == 64


@pytest.mark.parametrize(
    ("stages", "found"),
    [("one", {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}), ("two", {"a": 0, "b": 0, "c": 1, "d": 2, "e": 3})],
)
def test_each_stage_alone(stages, found):
    made = strategy(stages=stages)
    assert made.update(start(made), 1, replies(ROWS)).state.assignment == found


def test_stage_two_alone_does_not_look_at_outputs():
    made = strategy(stages="two", eps_weights=10.0)
    assert made.update(start(made), 1, replies(ROWS)).state.assignment == dict.fromkeys("abcde", 0)


def test_clusters_hold_until_the_next_clustering_and_absent_ones_keep_their_center():
    made = strategy()
    state = made.update(start(made), 1, replies(ROWS)).state
    made.hopkins_threshold = NEVER
    # a says what c says, but no clustering takes place
    later = made.update(state, 2, replies({"a": (-9, 0, 0, 0), "b": (9, 0, 0, 0)})).state
    assert later.assignment == state.assignment
    assert later.centers[0].tolist() == [0, 0, 0, 0]
    assert later.centers[1:].tolist() == state.centers[1:].tolist()


def test_reclustering_takes_the_absent_along():
    made = strategy()
    state = made.update(start(made), 1, replies(ROWS)).state
    state = made.update(state, 2, replies({"b": (-9, 0, 0, 0), "c": (-9, 0, 0, 0), "d": (9, 0, 8, 0)})).state
    # b and c are together now, a goes where b went; nobody of e's cluster was there, so that it goes on as it was
    assert state.assignment == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 2}
    assert state.centers.tolist() == [[-9, 0, 0, 0], [9, 0, 8, 0], [0, 0, 0, 0]]


def test_patience_waits_for_rounds_in_a_row():
    made = strategy(patience=2)
    state = made.update(start(made), 1, replies(ROWS)).state
    assert (state.above, state.observed.clustered, len(state.centers)) == (1, False, 1)
    made.hopkins_threshold = NEVER
    state = made.update(state, 2, replies(ROWS)).state
    assert state.above == 0
    made.hopkins_threshold = ALWAYS
    for round_, clusters in ((3, 1), (4, 4), (5, 4)):
        state = made.update(state, round_, replies(ROWS)).state
        assert len(state.centers) == clusters
    assert state.shared_layers == pytest.approx(4 * 0.98**2)


def test_it_sends_shared_layers_down_and_asks_for_the_whole_model():
    made = strategy()
    state = made.update(start(made), 1, replies(ROWS)).state
    for round_ in range(2, 8):
        assert made.plan(state, round_, ["a"])["a"].models[ARRAYS].layers == FOUR.layers
        state = made.update(state, round_, replies(ROWS)).state
    assert state.shared_layers == pytest.approx(4 * 0.98**7)  # the first below 3.5
    instruction = made.plan(state, 8, ["a"])["a"]
    assert instruction.models[ARRAYS].layers == ("l1", "l2", "l3")
    assert instruction.models[ARRAYS].vector.tolist() == [9, 0, 0, 0.5]
    assert instruction.upload is None
    assert set(instruction.models) == {ARRAYS}
    assert not instruction.newcomer


def test_a_newcomer_is_sent_everything_and_joins_whom_it_resembles():
    made = strategy()
    made.hopkins_threshold = NEVER
    first = made.plan(start(made), 1, ["a"])["a"]
    assert first.newcomer
    assert first.models[ARRAYS].layers is None
    made.hopkins_threshold = ALWAYS
    state = made.update(start(made), 1, replies(ROWS)).state
    made.hopkins_threshold = NEVER
    sent = made.plan(state, 2, ["new"])["new"].models[ARRAYS]
    # the mean over clients, not over clusters: a, b count together twice
    np.testing.assert_allclose(sent.vector, np.mean(list(ROWS.values()), axis=0), rtol=1e-6)
    state = made.update(state, 2, replies({**ROWS, "new": (-8, 0, 8, 2)}, {"new": 10})).state
    assert state.assignment["new"] == state.assignment["c"]  # c and d are equally like it; the lower cluster
    # one that comes when nobody else is there has nobody to be compared with
    assert made.update(state, 3, replies({"newer": (1, 1, 1, 1)})).state.assignment == state.assignment


def shrunken(made):
    """A state with two personal layers, after a round in which all of `ROWS` replied."""
    made.dampening = 0.6
    state = made.update(start(made), 1, replies(ROWS)).state
    made.hopkins_threshold = NEVER
    return state


def test_who_did_not_reply_is_sent_spare_layers_until_it_does():
    made = strategy()
    state = made.prepare(shrunken(made), 2, list(ROWS), None)
    assert set(made.plan(state, 2, ["e"])["e"].models) == {ARRAYS}
    state = made.update(state, 2, replies({name: ROWS[name] for name in "abcd"})).state
    state = made.prepare(state, 3, ["a"], None)  # a sample without e does not forget that e owes a reply
    state = made.prepare(made.update(state, 3, replies({"a": ROWS["a"]})).state, 4, list(ROWS), None)
    plan = made.plan(state, 4, ["a", "e"])
    assert set(plan["a"].models) == {ARRAYS}
    assert plan["e"].models[ARRAYS].layers == ("l1", "l2")
    assert plan["e"].models[FALLBACK].layers == ("l3", "l4")
    # it had lost its layers and began with the spare ones: its model counts
    moved = made.update(state, 4, replies({"e": (1, 1, 1, 1)}, **{STATE_LOST: {"e": 1}})).state
    assert moved.centers[3].tolist() == [1, 1, 1, 1]
    assert moved.observed.state_lost == ["e"]
    assert set(made.plan(moved, 5, ["e"])["e"].models) == {ARRAYS}


def test_a_round_with_too_few_replies_still_knows_who_owes_one():
    made = strategy()
    state = made.prepare(shrunken(made), 2, ["a", "e"], None)
    state = made.prepare(state, 3, ["a"], None)  # no update came between
    assert FALLBACK in made.plan(state, 3, ["e"])["e"].models


def test_one_that_lost_its_layers_unseen_does_not_count_and_is_sent_its_clusters():
    made = strategy()
    state = made.prepare(shrunken(made), 2, list(ROWS), None)
    lost = made.update(state, 2, replies({**ROWS, "a": (0, 0, 0, 0)}, **{STATE_LOST: {"a": 1, "b": 0}})).state
    assert lost.centers[0].tolist() == list(ROWS["b"])
    plan = made.plan(lost, 3, ["a", "b"])
    assert plan["a"].models[ARRAYS].layers == FOUR.layers
    assert plan["b"].models[ARRAYS].layers == ("l1", "l2")
    assert made.update(lost, 3, replies({"a": ROWS["a"]}, **{STATE_LOST: {"a": 0}})).state.lost_layers == []
    # while it does not reply, it is still to be sent everything
    assert made.update(lost, 3, replies({"b": ROWS["b"]})).state.lost_layers == ["a"]
    assert made.update(lost, 3, replies({"b": ROWS["b"]}, **{STATE_LOST: {"b": 1}})).state.centers.tolist() == (
        lost.centers.tolist()
    )


def test_a_model_whose_outputs_are_no_numbers_is_left_out():
    made = strategy()
    state, refused = vars(made.update(start(made), 1, replies({**ROWS, "x": (1e7, 0, 0, 0)}))).values()
    assert "x" not in state.assignment
    assert "diverged" in refused["x"]
    assert len(state.centers) == 4
    unchanged = made.update(state, 2, replies({"x": (1e7, 0, 0, 0)})).state
    assert unchanged.centers.tolist() == state.centers.tolist()


def test_one_reply_has_no_hopkins_statistic():
    made = strategy()
    state = made.update(start(made), 1, replies({"a": ROWS["a"]})).state
    assert state.observed.hopkins is None
    assert state.centers.tolist() == [list(ROWS["a"])]


def test_the_record_is_json_and_says_what_was_seen():
    made = strategy()
    made.state = made.update(start(made), 1, replies(ROWS)).state
    record = json.loads(json.dumps(made.record(made.state)))
    assert 0 < record["hopkins"] < 1
    assert record["hopkins_deviation"] > 0
    assert record["clustered"] is True
    assert record["stage_one"] != record["stage_two"] == made.state.assignment
    assert (record["shared_layers"], record["whole_shared_layers"]) == (pytest.approx(3.92), 4)
    assert np.log(64) < record["sampling_entropy"] < np.log(SAMPLES)
    assert record["distances"][0] == 1
    assert record["distances"][-1] == pytest.approx(np.sqrt(18**2 + 8**2 + 1))
    assert record["divergences"][-1] == pytest.approx(np.log(2), abs=0.01)


def test_it_says_that_it_needs_public_data(layout):
    with pytest.raises(BouquetError, match="attribute `public`"):
        FedTSDP().initial_state(layout, np.zeros(layout.dim, dtype=np.float32))
    made = strategy()
    state = start(made)
    made.public = PublicData(SAMPLES + 1, say)
    with pytest.raises(BouquetError, match="began with 100 public samples, now there are 101"):
        made.update(state, 1, replies(ROWS))
