import numpy as np
import pytest

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.strategy import FeSEM, FeSEMMA
from tests.helpers.points import FOUR, POINT, replies


def start(strategy, rows=None, layout=POINT, initial=None):
    state = strategy.initial_state(layout, np.zeros(layout.dim, dtype=np.float32) if initial is None else initial)
    return strategy.update(state, 1, replies(rows or FOUR, layout=layout))


def test_first_clustering_is_k_means_over_the_clients_models():
    state = start(FeSEM(num_clusters=2))
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.centers.tolist() == [[0, 1], [10, 1]]
    assert state.intra_distance == 1.0


def test_e_step_and_m_step_by_hand():
    strategy = FeSEM(num_clusters=2)
    state = start(strategy)
    # b is now nearer to the center (10, 1): Eq. 8 moves it, Eq. 9 takes plain means
    state = strategy.update(state, 2, replies({"a": (1, 1), "b": (7, 1), "c": (9, 1), "d": (11, 1)}))
    assert state.assignment == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert state.centers.tolist() == [[1, 1], [9, 1]]
    assert state.moved == 1


UNEQUAL = {"a": 30, "b": 10, "c": 1, "d": 3}


@pytest.mark.parametrize(
    ("weighting", "centers"), [("examples", [[0, 0.5], [10, 1.5]]), ("uniform", [[0, 1], [10, 1]])]
)
def test_the_first_centers_are_weighted_as_the_later_ones(weighting, centers):
    strategy = FeSEM(num_clusters=2, weighting=weighting)
    state = strategy.initial_state(POINT, np.zeros(2, dtype=np.float32))
    state = strategy.update(state, 1, replies(FOUR, UNEQUAL))
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.centers.tolist() == centers
    assert state.examples == {}
    np.testing.assert_allclose(strategy.update(state, 2, replies(FOUR, UNEQUAL)).centers, centers)


def test_where_k_is_found_clients_weigh_by_their_samples():
    strategy = FeSEM()
    state = strategy.initial_state(POINT, np.zeros(2, dtype=np.float32))
    state = strategy.update(state, 1, replies(FOUR, UNEQUAL))
    points, samples = np.array([FOUR[client] for client in UNEQUAL]), np.array([*UNEQUAL.values()])
    np.testing.assert_allclose(state.centers[0], samples @ points / samples.sum(), rtol=1e-6)


def test_partial_participation_keeps_the_others_assignment_and_an_empty_center():
    strategy = FeSEM(num_clusters=2)
    state = strategy.update(start(strategy), 2, replies({"a": (2, 2)}))
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.centers.tolist() == [[2, 2], [10, 1]]


def test_each_client_is_sent_its_own_center_and_a_newcomer_the_mean():
    strategy = FeSEM(num_clusters=2, proximal_weight=0.5)
    plan = strategy.plan(start(strategy), 2, ["a", "c", "new"])
    assert plan["a"].models[ARRAYS].vector.tolist() == [0, 1]
    assert plan["c"].models[ARRAYS].vector.tolist() == [10, 1]
    assert plan["new"].models[ARRAYS].vector.tolist() == [5, 1]
    # λ/m · ‖·‖² of Eq. 7 is (2 λ/m) / 2 · ‖·‖² on the wire
    assert plan["a"].proximal[0].weight == 1.0


def test_the_papers_weight_before_the_loss_by_hand():
    """n = 10, 30, 20, 20: α = 1/8, 3/8, 1/4, 1/4, so that λ/m = 0.05 counts 8, 8/3 and 4 times; on the wire twice."""
    strategy = FeSEM(num_clusters=2, proximal_weight=0.05, weighted_loss=True)
    first = strategy.plan(strategy.initial_state(POINT, np.zeros(2, dtype=np.float32)), 1, ["a"])
    assert first["a"].proximal[0].weight == pytest.approx(0.1)  # no n is known yet
    state = strategy.initial_state(POINT, np.zeros(2, dtype=np.float32))
    state = strategy.update(state, 1, replies(FOUR, examples={"a": 10, "b": 30, "c": 20, "d": 20}))
    plan = strategy.plan(state, 2, ["a", "b", "c", "new"])
    weights = [plan[client].proximal[0].weight for client in ("a", "b", "c", "new")]
    assert weights == pytest.approx([0.8, 0.8 / 3, 0.4, 0.4])
    assert load_state(FeSEMState, *dump_state(state)).sizes == state.sizes
    assert start(FeSEM(num_clusters=2)).sizes == {}


def test_with_fewer_clients_than_clusters_one_model_goes_on():
    strategy = FeSEM(num_clusters=3)
    state = start(strategy, {"a": (0, 0), "c": (10, 0)})
    assert state.assignment == {}
    assert state.centers.tolist() == [[5, 0]]
    assert strategy.update(state, 2, replies(FOUR)).centers.shape == (3, 2)


def gathering(strategy, *rounds):
    """The state after rounds in which clients of `FOUR` took part, and the common model that was sent in each."""
    state, sent = strategy.initial_state(POINT, np.zeros(2, dtype=np.float32)), []
    for round_, clients in enumerate(rounds, start=1):
        plan = strategy.plan(state, round_, clients)
        sent.append([plan[client].models[ARRAYS].vector.tolist() for client in clients])
        state = strategy.update(state, round_, replies({client: FOUR[client] for client in clients}))
    return state, sent


def test_first_models_are_gathered_over_rounds_from_one_common_model():
    strategy = FeSEM(num_clusters=3, fraction_train=0.3)
    state, sent = gathering(strategy, "a", "c", "a")
    assert sent == [[[0, 0]]] * 3
    assert state.assignment == {}
    state, _ = gathering(strategy, "a", "c")
    assert state.centers.tolist() == [[5, 0]]  # of the models gathered so far: what an evaluation tests
    assert strategy.plan_evaluate(state, 2, "a")["a"].models[ARRAYS].vector.tolist() == [5, 0]
    state, _ = gathering(strategy, "a", "c", "bd")
    assert sorted(state.assignment) == ["a", "b", "c", "d"]
    assert sorted(state.centers.tolist()) in ([[0, 0], [0, 2], [10, 1]], [[0, 1], [10, 0], [10, 2]])
    assert (state.gathered, state.origin) == ({}, None)


def test_the_common_model_goes_on_when_fewer_clients_than_clusters_are_known():
    strategy = FeSEM(num_clusters=3)
    _, sent = gathering(strategy, "ac", "ac", "ac", "ac")
    assert [models[0] for models in sent] == [[0, 0], [0, 0], [5, 0], [5, 0]]
    state, sent = gathering(strategy, "ac", "ac", "ac", "abc")
    assert len(state.centers) == 3


def test_a_client_in_the_wrong_cluster_stays_when_it_moves_little_else_it_leaves():
    """The E-step sees only where a client ended: one that starts from the wrong center must go more than half way."""
    strategy = FeSEM(num_clusters=2)
    state = start(strategy)
    wrong = FeSEMState(state.centers, {**state.assignment, "a": 1})
    little = strategy.update(wrong, 2, replies({"a": (6, 1), "b": (0, 1), "c": (10, 1), "d": (10, 1)}))
    assert little.assignment["a"] == 1
    assert little.moved == 0
    far = strategy.update(wrong, 2, replies({"a": (4, 1), "b": (0, 1), "c": (10, 1), "d": (10, 1)}))
    assert far.assignment["a"] == 0
    assert far.moved == 1


def test_matched_averaging_does_not_care_for_the_order_of_hidden_units():
    layout = ParameterLayout.of(
        {"first.weight": np.zeros((3, 2)), "first.bias": np.zeros(3), "last.weight": np.zeros((2, 3))}
    )
    generator = np.random.default_rng(0)
    initial = generator.normal(size=layout.dim).astype(np.float32)
    rows = {f"c{i}": generator.normal(size=layout.dim) + 20 * (i % 2) for i in range(4)}
    arrays = layout.unflatten(np.asarray(rows["c1"], dtype=np.float32))
    order = [2, 0, 1]
    permuted = layout.flatten(
        {
            "first.weight": arrays["first.weight"][order],
            "first.bias": arrays["first.bias"][order],
            "last.weight": arrays["last.weight"][:, order],
        }
    )
    centers = []
    for c1 in (rows["c1"], permuted):
        strategy = FeSEMMA(num_clusters=2)
        state = start(strategy, {**rows, "c1": c1}, layout, initial)
        centers.append(strategy.update(state, 2, replies({**rows, "c1": c1}, layout=layout)))
        assert centers[-1].assignment == state.assignment  # nobody moves: the pairs are 20 apart
    np.testing.assert_allclose(centers[0].centers, centers[1].centers, rtol=1e-5)
    assert centers[0].assignment == centers[1].assignment
