import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from bouquet.common.errors import BouquetError
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base.sampling import fewest_replies
from bouquet.strategies.baselines.fedavg import FedAvg
from bouquet.strategies.gradient_loss.strategy import GradientLoss


def plus(amount):
    return lambda start, received: start + amount


def spoiled(start, received):
    return np.full_like(start, np.nan)


def test_replies_become_rows_in_order_of_clients(layout, scripted, play):
    grid = InlineGrid({5: scripted("b", plus(2)), 6: scripted("a", plus(4))})
    strategy = FedAvg(identify=True)
    play(strategy, grid, range(1, 2))
    assert strategy.train_round.replies.clients == ("a", "b")
    assert strategy.train_round.replies.W[:, 0].tolist() == [4, 2]
    assert strategy.centers(strategy.state)[0].tolist() == [3] * layout.dim
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0}


def test_a_bad_reply_is_named_and_the_round_goes_on(scripted, play):
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", spoiled), 3: scripted("c", plus(3))})
    strategy = FedAvg(identify=True)
    play(strategy, grid, range(1, 2))
    assert strategy.train_round.replies.clients == ("a", "c")
    assert strategy.train_round.failures == {"b": "Tensor 'first.weight' holds values that are not finite."}
    assert strategy.centers(strategy.state)[0, 0] == 2


def test_too_few_replies_leave_the_models_as_they_were(scripted, play):
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", spoiled)})
    strategy = FedAvg(identify=True, min_replies=2)
    play(strategy, grid, range(1, 3))
    assert strategy.centers(strategy.state)[0].tolist() == [0] * 8
    assert strategy.train_round.warnings == [
        "1 usable replies, fewer than min_replies = 2: the models stay as they were."
    ]


@pytest.mark.parametrize(("share", "needed"), [(0.6, 2), (0.7, 3), (1.0, 3)])
def test_min_replies_as_a_share_of_those_asked(share, needed, scripted, play):
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(3)), 3: scripted("c", spoiled)})
    strategy = FedAvg(identify=True, min_replies=share)
    play(strategy, grid, range(1, 2))
    center = strategy.centers(strategy.state)[0, 0]
    if needed == 2:
        assert (center, strategy.train_round.warnings) == (2, [])
    else:
        said = f"2 usable replies, fewer than min_replies = {share} of 3 (3): the models stay as they were."
        assert (center, strategy.train_round.warnings) == (0, [said])


def test_a_share_is_rounded_up_and_is_at_least_one_reply():
    assert [fewest_replies(share, asked) for share, asked in ((0.5, 4), (0.5, 5), (0.01, 5), (1.0, 7))] == [2, 3, 1, 7]
    assert fewest_replies(0.7, 10) == 7  # 0.7 × 10 is 7.000000000000001
    assert fewest_replies(3, 2) == 3


def test_warnings_are_those_of_the_round(scripted, play):
    """GradientLoss notices in the first round that its models are equal, because the initial one is constant."""
    strategy = GradientLoss(num_clusters=2, identify=True)
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(1))})
    play(strategy, grid, range(1, 2))
    assert strategy.train_round.warnings[0] == "Some of the 2 initial models are equal: no device can tell them apart."
    play(strategy, grid, range(2, 3))
    assert not any("equal" in text for text in strategy.train_round.warnings)


def test_a_device_that_came_back_under_another_node_is_the_client_it_was(scripted, play):
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(1))})
    strategy = FedAvg(identify=True)
    play(strategy, grid, range(1, 2))
    # Restarted without a key: a new node id, while the old one still counts as connected.
    grid.handlers[3] = grid.handlers[2]
    grid.handlers[2] = lambda message: pytest.fail("the old node was sent a message")
    play(strategy, grid, range(2, 3))
    assert strategy.train_round.replies.clients == ("a", "b")


def test_a_device_is_who_the_server_knows_it_to_be_whatever_it_says(scripted, play):
    """With keys, identity is the key's name: a device cannot take another's place by calling itself so."""
    strategy = FedAvg(identify=True)
    strategy.names = lambda node, said: {1: "garden", 2: "window"}.get(node)
    grid = InlineGrid({1: scripted("window", plus(1)), 2: scripted("window", spoiled), 3: scripted("guest", plus(2))})
    play(strategy, grid, range(1, 2))
    assert strategy.train_round.replies.clients == ("garden", "guest")
    assert list(strategy.train_round.failures) == ["window"]
    assert dict(strategy.node_names) == {1: "garden", 2: "window", 3: "guest"}


def test_a_device_known_by_its_key_takes_part_though_it_is_slow_to_say_who_it_is(scripted, play):
    strategy = FedAvg(identify=True, round_timeout=0.3)
    strategy.names = lambda node, said: {1: "garden", 2: "window"}[node]
    trains = scripted("window", plus(3))
    slow = {2: lambda message: None if message.metadata.message_type == "query.identify" else trains(message)}
    play(strategy, InlineGrid({1: scripted("garden", plus(1)), **slow}), range(1, 2))
    assert strategy.train_round.replies.clients == ("garden", "window")


def test_sampling_is_a_function_of_seed_and_round(scripted, initial):
    def sampled(seed, round_):
        grid = InlineGrid({i: scripted(f"c{i}", plus(0)) for i in range(1, 11)})
        strategy = FedAvg(identify=True, fraction_train=0.3, seed=seed)
        messages = strategy.configure_train(round_, initial, ConfigRecord(), grid)
        return sorted(message.metadata.dst_node_id for message in messages)

    assert len(sampled(0, 1)) == 3
    assert sampled(0, 1) == sampled(0, 1)
    assert len({tuple(sampled(seed, round_)) for seed in range(3) for round_ in range(1, 4)}) > 3


def test_waiting_for_nodes_ends(initial):
    strategy = FedAvg(wait_timeout=0.1)
    with pytest.raises(BouquetError, match="Only 0 of the 2 nodes"):
        strategy.configure_train(1, initial, ConfigRecord(), InlineGrid({}))


def test_evaluation_collects_every_clients_metrics(scripted, play, initial):
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(1))})
    strategy = FedAvg(identify=True)
    play(strategy, grid, range(1, 2))
    messages = strategy.configure_evaluate(1, initial, ConfigRecord(), grid)
    mean = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert set(strategy.evaluate_round.scores) == {"a", "b"}
    assert mean["accuracy"] == 0.5


def test_flowers_own_loop_runs_it(scripted, initial):
    grid = InlineGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(3))})
    result = FedAvg().start(grid, initial, num_rounds=2, timeout=5)
    assert isinstance(result.arrays, ArrayRecord)
    assert result.arrays["last.weight"].numpy().tolist() == [[4.0, 4.0]]
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 0.5


def test_nothing_is_sampled_when_the_fraction_is_zero(initial):
    strategy = FedAvg(fraction_train=0.0, fraction_evaluate=0.0)
    assert strategy.configure_train(1, initial, ConfigRecord(), InlineGrid({})) == []
    assert strategy.configure_evaluate(1, initial, ConfigRecord(), InlineGrid({})) == []


def test_before_the_first_round_there_is_no_model():
    with pytest.raises(BouquetError, match="no model before the first round"):
        FedAvg().arrays()
    with pytest.raises(BouquetError, match="no state before the first round"):
        FedAvg().checkpoint()
    with pytest.raises(BouquetError, match="configure_train"):
        FedAvg().aggregate_train(1, [])


def test_an_attribute_that_would_hide_a_hook_is_refused_by_name():
    class Own(FedAvg):
        def __init__(self, **sampling):
            super().__init__(**sampling)
            self.similarity = "cosine"  # no hook has these names
            self.patience = 3
            self.record = True

    with pytest.raises(BouquetError, match=r"Own\.record cannot be set: 'record' is a hook"):
        Own()


def test_of_two_nodes_that_reply_as_one_the_first_counts_and_the_other_is_told(scripted, play):
    """Without keys a node is what it says that it is."""
    handlers = {1: scripted("a", plus(1.0)), 2: scripted("b", plus(1.0)), 9: scripted("a", plus(-50.0))}
    strategy = FedAvg()
    play(strategy, InlineGrid(handlers), range(1, 2))
    assert strategy.train_round.replies.clients == ("a", "b")
    assert strategy.centers(strategy.state).tolist() == [[1.0] * 8]
    assert strategy.train_round.failures == {"a": "Another node replied as 'a' in this round; the first one counts."}
