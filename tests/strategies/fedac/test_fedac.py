"""FedAC: what a device is sent, the steps of a round, checkpoints and whole runs."""

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, STANDARD
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.fedac import strategy as fedac_strategy
from bouquet.strategies.fedac.state import FedACState, embedding_layers
from bouquet.strategies.fedac.strategy import GLOBAL_EMBEDDING, FedAC
from tests.helpers.fedac_replies import FOUR, fixed, replies, started

# --- what a device is sent ---------------------------------------------------------------------------------------


def test_the_first_clusters_are_k_means_over_the_directions_of_the_reduced_models():
    state = started(fixed())
    # relative to the mean (5, 2) the directions are (∓5, ∓1) / √26
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.centers.tolist() == [[0, 2], [10, 2]]
    assert state.global_embedding.tolist() == [5, 0]


def test_a_device_is_sent_its_center_the_global_embedding_and_both_pulls():
    strategy = fixed(proximal_weight=0.3, embedding_weight=0.7)
    plan = strategy.plan(started(strategy), 2, ["a", "c", "new"])
    assert plan["a"].models[ARRAYS].vector.tolist() == [0, 2]
    assert plan["c"].models[ARRAYS].vector.tolist() == [10, 2]
    assert plan["new"].models[ARRAYS].vector.tolist() == [5, 2]
    assert [plan[client].newcomer for client in ("a", "c", "new")] == [False, False, True]
    for instruction in plan.values():
        assert (instruction.start, instruction.upload, instruction.procedure) == ("personal", None, STANDARD)
        assert instruction.models[GLOBAL_EMBEDDING].layers == ("embed",)
        assert instruction.models[GLOBAL_EMBEDDING].vector[0] == 5
        assert [(term.anchor, term.weight) for term in instruction.proximal] == [(ARRAYS, 0.3), (GLOBAL_EMBEDDING, 0.7)]


def test_without_the_global_embedding_nothing_of_it_is_sent():
    strategy = fixed(embedding_weight=0.0)
    instruction = strategy.plan(started(strategy), 2, ["a"])["a"]
    assert list(instruction.models) == [ARRAYS]
    assert [term.anchor for term in instruction.proximal] == [ARRAYS]


@pytest.mark.parametrize(("tested", "start"), [("personal", "personal"), ("center", "received")])
def test_to_be_tested_a_device_is_sent_one_model_at_most(tested, start):
    strategy = fixed(tested=tested)
    instruction = strategy.plan_evaluate(started(strategy), 2, ["a"])["a"]
    assert (list(instruction.models), instruction.start, instruction.upload) == ([ARRAYS], start, ())


def test_a_model_of_which_one_layer_is_trained_is_refused_with_what_to_do():
    layout = ParameterLayout.of({"head.weight": np.zeros((2, 2), dtype=np.float32)})
    with pytest.raises(BouquetError, match=r"Only one layer of the model is trained \(head\).*model\.frozen"):
        embedding_layers(layout)


# --- the steps of a round ----------------------------------------------------------------------------------------

MOVED = {"a": (1, 1), "b": (9, 3), "c": (9, 1), "d": (11, 3)}


def test_m_step_then_e_step_by_hand():
    strategy = fixed()
    state = strategy.update(started(strategy), 2, replies(MOVED))
    # M: the means of a, b and of c, d. E, relative to (5, 2): the centers are (0, 0), like nobody, and (5, 0);
    # b at (4, 1) is like the second one, a at (-4, -1) is not
    assert state.centers.tolist() == [[5, 2], [10, 2]]
    assert state.assignment == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert state.moved == 1
    assert state.global_embedding.tolist() == [7.5, 0]
    state = strategy.update(state, 3, replies(MOVED))
    np.testing.assert_allclose(state.centers, [[1, 1], [29 / 3, 7 / 3]], rtol=1e-6)
    # ρ: a is at its center; b, c, d are √(4/9 + 4/9), √(4/9 + 16/9) and √(16/9 + 4/9) from theirs
    between = np.hypot(26 / 3, 4 / 3)
    expected = (np.sqrt(8) + 2 * np.sqrt(20)) / 9 / between
    np.testing.assert_allclose(strategy.record(state)["ratios"], [0, expected], atol=1e-6)


def test_l2_distance_in_place_of_the_cosine():
    strategy = fixed(similarity="l2")
    state = started(strategy)
    assert (state.assignment, state.directions) == ({"a": 0, "b": 0, "c": 1, "d": 1}, None)
    state = strategy.update(state, 2, replies({"a": (4, 2), "b": (8, 2), "c": (10, 2), "d": (10, 2)}))
    # M: (6, 2) and (10, 2); E: b is 2 from both, and a tie goes to the lower
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    state = strategy.update(state, 3, replies({"a": (4, 2), "b": (8, 2), "c": (8, 2), "d": (10, 2)}))
    assert state.centers.tolist() == [[6, 2], [9, 2]]
    assert state.assignment == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert strategy.record(state)["ratios"] == []


def test_absent_clients_are_clustered_by_their_last_p_numbers():
    strategy = fixed()
    state = strategy.update(started(strategy), 2, replies({"c": (10, 2)}))
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.centers.tolist() == [[0, 2], [10, 2]]  # without a model in this round a center stays
    # the centers change sides: a, b and c follow this round's models, d its last p numbers
    state = strategy.update(state, 3, replies({"a": (9, 2), "b": (9, 2), "c": (0, 2)}))
    assert state.centers.tolist() == [[9, 2], [0, 2]]
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 0}


def test_a_cluster_that_loses_all_its_members_keeps_its_center_while_k_is_fixed():
    strategy = fixed()
    state = started(strategy)
    everybody = {"a": (10, 2), "b": (12, 2), "c": (11, 2), "d": (11, 2)}
    state = strategy.update(state, 2, replies(everybody))
    assert set(state.assignment.values()) == {0}  # both centers point the same way, and a tie goes to the lower
    state = strategy.update(state, 3, replies(everybody))
    assert state.centers.tolist() == [[11, 2], [11, 2]]
    assert strategy.record(state)["ratios"] == [None, None]


def test_a_newcomer_joins_the_most_similar_cluster_and_brings_a_new_map():
    strategy = fixed()
    state = started(strategy)
    state = strategy.update(state, 2, replies(FOUR))
    assert state.map_round == 1
    state = strategy.update(state, 3, replies({**FOUR, "new": (8, 2)}))
    assert state.map_round == 3
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1, "new": 1}
    assert state.centers.tolist() == [[0, 2], [10, 2]]  # it was in no cluster when the means were taken
    assert state.global_embedding[0] == pytest.approx(5.6)


def test_an_old_map_is_made_anew_of_the_models_that_came_and_what_it_holds_of_others(monkeypatch):
    monkeypatch.setattr(fedac_strategy, "MAP_ROUNDS", 3)
    strategy = fixed()
    state = started(strategy)
    rounds = []
    for round_ in range(2, 9):
        few = {"a": (0, 1), "c": (10, 1)}
        state = strategy.update(state, round_, replies(few if round_ == 4 else FOUR))
        rounds.append(state.map_round)
        between = np.linalg.norm(np.subtract(state.reduced["b"], state.reduced["d"]))
        assert between == pytest.approx(10, abs=1e-5)  # b and d were absent in round 4
    assert rounds == [1, 1, 4, 4, 4, 7, 7]
    np.testing.assert_allclose(state.map_mean, [5, 2], atol=1e-5)


def test_one_that_waits_for_enough_clients():
    strategy = fixed(num_clusters=3)
    state = started(strategy, {"a": (0, 2), "c": (10, 2)})
    assert (state.assignment, state.centers.tolist()) == ({}, [[5, 2]])
    assert len(strategy.update(state, 2, replies(FOUR)).centers) == 3
    alone = FedAC()
    state = started(alone, {"a": (0, 2)})
    assert (state.assignment, state.low_rank) == ({}, None)


def test_with_one_device_a_round_the_clusters_are_found_all_the_same():
    strategy = fixed(num_clusters=2)
    state = started(strategy, {"a": (0, 2)})
    for round_, row in enumerate(({"b": (10, 2)}, {"c": (0, 3)}, {"d": (10, 3)}), start=2):
        state = strategy.update(state, round_, replies(row))
        state = load_state(FedACState, *dump_state(state))
    clusters = state.assignment
    assert clusters.keys() == set("abcd")
    assert clusters["a"] == clusters["c"] != clusters["b"] == clusters["d"]
    assert state.gathered == {}
