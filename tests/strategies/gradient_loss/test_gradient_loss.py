import numpy as np
import pytest
from flwr.app import Message

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.wire.flower import speak_as_server
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.strategy import GradientLoss
from bouquet.strategies.gradient_loss.wire import Choice
from bouquet.strategies.registry import create_strategy
from tests.helpers.choosing_devices import CENTERS, POINT, asked, begin, fresh, replies, steps


def test_each_cluster_becomes_the_plain_mean_of_its_members():
    strategy = GradientLoss(num_clusters=2)
    state = strategy.update(begin(strategy), 1, replies({"a": ((1, 0), 0), "b": ((3, 2), 0), "c": ((8, 9), 1)})).state
    assert state.centers.tolist() == [[2, 1], [8, 9]]
    assert state.previous.tolist() == CENTERS.tolist()
    assert state.assignment == {"a": 0, "b": 0, "c": 1}
    assert (state.version, state.last["members"], state.last["empty"]) == (1, [2, 1], 0)


def test_all_models_go_to_all_devices_and_the_step_to_one_that_cannot_compute_it():
    strategy = GradientLoss(num_clusters=2, gradient_weight=0.3)
    first = strategy.plan(begin(strategy), 1, ["a", "b"])
    assert asked(first["a"]) == {"0", "1"}
    assert steps(first["a"]) == {}  # nothing has moved yet
    state = strategy.update(begin(strategy), 1, replies({"a": ((1, 0), 0), "b": ((8, 9), 1)})).state
    plan = strategy.plan(state, 2, ["a", "b", "late"])
    assert steps(plan["a"]) == steps(plan["b"]) == {}
    assert steps(plan["late"]) == {"step-0": [1, 0], "step-1": [-2, -1]}
    assert plan["late"].models["center-1"].vector.tolist() == [8, 9]
    config = plan["a"].config
    assert (config["gradient-weight"], config["centers-version"], config["similarity"]) == (0.3, 1, "cosine")


def test_a_device_that_missed_a_round_is_sent_the_step():
    strategy = GradientLoss(num_clusters=2)
    both = {"a": ((1, 0), 0), "b": ((8, 9), 1)}
    state = strategy.update(begin(strategy), 1, replies(both)).state
    state = strategy.update(state, 2, replies({"b": ((8, 9), 1), "c": ((2, 0), 0)})).state
    plan = strategy.plan(state, 3, ["a", "b", "c"])
    assert {c: bool(steps(instruction)) for c, instruction in plan.items()} == {"a": True, "b": False, "c": False}


def test_an_empty_cluster_stays_as_it_was_and_one_device_is_told_to_train_it():
    strategy = GradientLoss(num_clusters=3, seed=5)
    centers = [[0, 0], [10, 10], [20, 20]]
    state = strategy.update(begin(strategy, centers), 1, replies(dict.fromkeys("abcd", ((1, 1), 0)))).state
    assert state.centers.tolist() == [[1, 1], [10, 10], [20, 20]]
    assert state.last["empty"] == 2
    plan = strategy.plan(state, 2, list("abcd"))
    told = {i.config["told-cluster"]: c for c, i in plan.items() if "told-cluster" in i.config}
    assert set(told) == {1, 2}
    assert len(set(told.values())) == 2
    assert asked(plan[told[1]]) == {"0", "1", "2"}
    assert strategy.plan(state, 2, list("dcba")).keys() == plan.keys()
    assert {c: dict(i.config) for c, i in strategy.plan(state, 2, list("dcba")).items()} == {
        c: dict(i.config) for c, i in plan.items()
    }
    drawn = set()
    for round_ in range(2, 40):
        chosen = strategy.plan(state, round_, list("abcd"))
        drawn |= {c for c, i in chosen.items() if i.config.get("told-cluster") == 1}
    assert drawn == set("abcd")  # at random


def test_no_more_than_half_of_the_devices_are_told():
    strategy = GradientLoss(num_clusters=5)
    centers = [[10 * k, 10 * k] for k in range(5)]
    state = strategy.update(begin(strategy, centers), 1, replies(dict.fromkeys("abcd", ((1, 1), 0)))).state
    for clients, told in (("abcd", 2), ("abc", 1), ("ab", 1), ("a", 0)):
        plan = strategy.plan(state, 2, list(clients))
        assert sum("told-cluster" in instruction.config for instruction in plan.values()) == told


def test_an_empty_cluster_may_be_left_alone_as_by_the_authors_of_ifca():
    strategy = GradientLoss(num_clusters=2, empty_cluster="leave")
    state = strategy.update(begin(strategy), 1, replies(dict.fromkeys("ab", ((1, 1), 0)))).state
    assert all("told-cluster" not in i.config for i in strategy.plan(state, 2, list("ab")).values())


def test_the_told_device_moves_its_cluster_and_keeps_its_identity():
    strategy = GradientLoss(num_clusters=2)
    state = strategy.update(begin(strategy), 1, replies(dict.fromkeys("ab", ((1, 1), 0)))).state
    told = {choice.TRAINED: 1, choice.TOLD: 1}
    state = strategy.update(state, 2, replies({"a": ((2, 2), 0), "b": ((9, 9), 0, told)})).state
    assert state.centers.tolist() == [[2, 2], [9, 9]]
    assert state.assignment == {"a": 0, "b": 0}
    assert (state.last["told"], state.last["empty"]) == (1, 1)
    # nobody chose it, so somebody is told again
    assert any("told-cluster" in i.config for i in strategy.plan(state, 3, ["a", "b"]).values())


def test_a_cluster_whose_devices_were_not_sampled_is_not_empty():
    strategy = GradientLoss(num_clusters=2)
    state = strategy.update(begin(strategy), 1, replies({"a": ((1, 0), 0), "b": ((8, 9), 1)})).state
    state = strategy.update(state, 2, replies({"a": ((2, 0), 0)})).state
    assert state.assignment == {"a": 0, "b": 1}
    assert state.centers.tolist() == [[2, 0], [8, 9]]
    assert all("told-cluster" not in i.config for i in strategy.plan(state, 3, ["a", "b"]).values())


def test_ifca_sends_no_steps_and_remembers_none():
    strategy = create_strategy("ifca", {"num_clusters": 2})
    state = strategy.update(begin(strategy), 1, replies({"a": ((1, 0), 0), "b": ((8, 9), 1)})).state
    assert state.previous is None
    plan = strategy.plan(state, 2, ["a", "late"])
    assert steps(plan["late"]) == {}
    assert plan["late"].config["gradient-weight"] == 0
    with pytest.raises(BouquetError, match=r"strategy\.gradient_weight"):
        create_strategy("ifca", {"gradient_weight": 0.5})


def test_devices_are_told_by_what_to_judge_which_is_all_local_data_with_ifca():
    def asked(name, **options):
        strategy = create_strategy(name, {"num_clusters": 2, **options})
        return strategy.plan(begin(strategy), 1, ["a"])["a"].config

    assert asked("ifca")["choice-batches"] == choice.ALL_BATCHES
    assert asked("ifca", choice_batches=1)["choice-batches"] == 1
    assert asked("gradient-loss")["choice-batches"] == 1
    assert asked("gradient-loss", choice_batches=3)["choice-batches"] == 3
    assert "batch-loss" not in asked("gradient-loss")
    assert asked("gradient-loss", batch_loss="sum")["batch-loss"] == "sum"
    with pytest.raises(BouquetError, match=r"choice_batches = 0: .* equal to 1; or input should be 'all'"):
        asked("ifca", choice_batches=0)


def test_a_reply_that_names_no_cluster_is_left_out():
    strategy = GradientLoss(num_clusters=2)
    answers = replies({"a": ((1, 0), 0), "b": ((50, 50), 2), "c": ((9, 9), 1), "d": ((50, 50), 0.5)})
    outcome = strategy.update(begin(strategy), 1, answers)
    state = outcome.state
    assert state.centers.tolist() == [[1, 0], [9, 9]]
    assert set(outcome.refused) == {"b", "d"}
    assert "'cluster' is 2" in outcome.refused["b"]
    assert strategy.update(state, 2, replies({"b": ((50, 50), 2)})).state is state


def test_the_initial_models_are_drawn_from_seeds_of_their_own():
    strategy = GradientLoss(num_clusters=3, seed=7)
    seeds = []

    def draw(seed):
        seeds.append(seed)
        return np.array([seed, 1], dtype=np.float32)

    strategy.draw_model = draw
    initial = np.array([3, 4], dtype=np.float32)
    centers = strategy.initial_state(POINT, initial).centers
    assert len({7, *seeds}) == 3
    assert centers.tolist() == [[3, 4], *[[np.float32(seed), 1] for seed in seeds]]
    strategy.draw_model = lambda seed: np.zeros(5, dtype=np.float32)
    with pytest.raises(BouquetError, match="5 parameters"):
        strategy.initial_state(POINT, initial)


def test_messages_hold_whole_models_and_the_question():
    strategy = fresh()
    state = begin(strategy)
    instruction = strategy.plan(state, 1, ["a"])["a"]
    content = protocol.Encoder(POINT).content(instruction, 1, "run", {})
    speak_as_server()
    received = protocol.read_instruction(Message(content, dst_node_id=1, message_type="train"), POINT)
    assert received.procedure == "gradient-loss"
    assert received.upload == POINT.layers
    assert Choice.read(received) == Choice(2, 0, 0.2, local_update="epochs")
