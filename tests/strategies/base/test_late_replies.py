"""Replies that come after their round: dropped, or taken into the next one where the method can use them."""

import numpy as np
import pytest
from flwr.app import Error, Message

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.run.build import build_strategy
from bouquet.strategies.base.exchange import Patience, exchange
from bouquet.strategies.base.late_replies import LateReplies
from bouquet.strategies.baselines.fedavg import FedAvg
from bouquet.strategies.baselines.fl_hc import FLHC
from bouquet.strategies.fesem.strategy import FeSEM

CANNOT = {"fedsgd", "cfl", "gradient-loss", "ifca", "fedac", "fedtsdp", "dc-pfl", "feddane"}


class SlowGrid(InlineGrid):
    """A grid in which the replies of ``slow`` nodes can be pulled only from the round after on."""

    def __init__(self, handlers, slow=()):
        super().__init__(handlers)
        self.slow, self.round, self.sent = set(slow), 0, {}

    def push_messages(self, messages):
        outgoing = list(messages)
        identifiers = super().push_messages(outgoing)
        for identifier, message in zip(identifiers, outgoing, strict=True):
            if message.metadata.dst_node_id in self.slow and message.metadata.message_type == "train":
                self.sent[identifier] = self.round
        return identifiers

    def pull_messages(self, message_ids):
        return super().pull_messages([i for i in message_ids if self.sent.get(i, -1) < self.round])


def play(strategy, grid, initial, *rounds):
    """As the server's loop does."""
    strategy.round_patience = Patience(0.05)
    for round_ in rounds:
        grid.round = round_
        messages = list(strategy.configure_train(round_, initial, {}, grid))
        replies, silent = exchange(grid, messages, strategy.round_patience)
        strategy.give_up(silent)
        replies += strategy.late.collect(grid)
        strategy.aggregate_train(round_, replies)
        strategy.await_late(messages, {reply.metadata.reply_to_message_id for reply in replies})


def plus(amount):
    return lambda start, received: start + amount


def made(kind=FedAvg, **options):
    strategy = kind(identify=True, **options)
    strategy.late = LateReplies()
    return strategy


def test_a_late_reply_counts_in_the_next_round_and_is_named(scripted, initial):
    grid = SlowGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, slow={2})
    strategy = made()
    play(strategy, grid, initial, 1)
    assert (strategy.train_round.replies.clients, list(strategy.train_round.failures)) == (("a",), ["b"])
    assert strategy.centers(strategy.state)[0, 0] == 1
    play(strategy, grid, initial, 2)
    assert strategy.train_round.came_late == {"b": "taken"}
    assert strategy.train_round.replies.clients == ("a", "b")
    # a trained the model of round 2 (1 + 1), b that of round 1 (0 + 5); its update is counted from where it began.
    assert strategy.train_round.replies.W[:, 0].tolist() == [2, 5]
    assert strategy.train_round.replies.updates[:, 0].tolist() == [1, 5]
    assert strategy.centers(strategy.state)[0, 0] == 3.5


def test_what_superlink_says_in_the_place_of_a_late_reply_is_none(scripted, initial):
    grid = SlowGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, slow={2})
    strategy = made()
    play(strategy, grid, initial, 1)
    grid.handlers[2] = lambda message: Message(Error(5, "The node is gone."), reply_to=message)
    play(strategy, grid, initial, 2)
    assert strategy.train_round.came_late == {}
    assert list(strategy.train_round.failures) == ["b"]  # by this round's message alone
    assert not strategy.exclusion.failures


def test_without_the_setting_it_is_dropped(scripted, initial):
    grid = SlowGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, slow={2})
    strategy = FedAvg(identify=True)
    play(strategy, grid, initial, 1, 2)
    assert (strategy.train_round.came_late, strategy.train_round.replies.clients) == ({}, ("a",))


def test_who_replied_to_this_round_too_counts_once_with_the_newer_model(scripted, initial):
    grid = SlowGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, slow={2})
    strategy = made()
    play(strategy, grid, initial, 1)
    grid.slow, grid.sent = set(), dict(grid.sent)
    play(strategy, grid, initial, 2)
    assert strategy.train_round.came_late == {"b": "left: it replied to this round, too"}
    assert strategy.train_round.replies.W[:, 0].tolist() == [2, 6]


def test_after_one_more_round_nobody_waits_for_it(scripted, initial):
    grid = SlowGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, slow={2})
    strategy = made()
    play(strategy, grid, initial, 1)
    first = set(strategy.late.awaited)
    assert len(first) == 1
    grid.sent = dict.fromkeys(first, 9)  # the reply to the first message does not come in round 2 either
    play(strategy, grid, initial, 2)
    assert strategy.train_round.came_late == {}
    assert not first & set(strategy.late.awaited)


def test_a_late_reply_that_is_malformed_is_refused_by_name(scripted, initial):
    spoiled = scripted("b", lambda start, received: np.full_like(start, np.nan))
    grid = SlowGrid({1: scripted("a", plus(1)), 2: spoiled}, slow={2})
    strategy = made()
    play(strategy, grid, initial, 1, 2)
    assert strategy.train_round.replies.clients == ("a",)
    assert strategy.train_round.failures["b"] in (
        "No reply within 0 s.",
        "Tensor 'first.weight' holds values that are not finite.",
    )
    assert strategy.train_round.refused == {"b"}


def test_it_counts_towards_min_replies(scripted, initial):
    grid = SlowGrid({1: scripted("a", plus(1)), 2: scripted("b", plus(5))}, slow={2})
    strategy = made(min_replies=2)
    play(strategy, grid, initial, 1)
    assert strategy.centers(strategy.state)[0, 0] == 0
    play(strategy, grid, initial, 2)
    assert strategy.centers(strategy.state)[0, 0] == 3


def test_a_method_does_not_take_it_while_it_compares_models_of_one_start(scripted, initial):
    """FeSEM before its first clusters, the methods that cluster once before theirs."""
    for kind, options in ((FeSEM, {"num_clusters": 2, "warmup_rounds": 2}), (FLHC, {"warmup_rounds": 2})):
        devices = {node: scripted(name, plus(node)) for node, name in enumerate("abc", 1)}
        grid = SlowGrid(devices, slow={3})
        strategy = made(kind, **options)
        play(strategy, grid, initial, 1, 2)
        assert strategy.train_round.came_late == {"c": "left: at this point the method cannot use it"}
        grid.slow = set()
        play(strategy, grid, initial, 3)
        assert strategy.train_round.replies.clients == ("a", "b", "c")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_cannot_use_it_refuses_the_setting_by_name(method):
    settings = load_settings(None, [f"strategy.name={method}", "server.late_replies=next", "data.public_fraction=0.1"])
    if method in CANNOT:
        with pytest.raises(BouquetError, match=f"late_replies = 'next' does not fit '{method}'.*take 'drop'"):
            build_strategy(settings)
    else:
        assert build_strategy(settings).late == LateReplies()


def test_compressed_a_late_reply_is_read_by_the_copy_that_its_device_was_sent():
    """Nobody else holds that copy: it is kept for one more round, and is not in a checkpoint."""
    from bouquet.common.compression.delta import Copy
    from bouquet.common.parameters.layout import ParameterLayout
    from bouquet.strategies.base.filters.compression import Compression
    from bouquet.strategies.base.method import one_model

    layout = ParameterLayout.of({"a.weight": np.zeros(4, np.float32)})
    compression = Compression("int8", "int8")
    compression.begin(1)
    model = np.arange(4, dtype=np.float32)
    _, received = compression.pack(layout, "slow", one_model(model), is_train=True)
    digest = Copy(received.models["arrays"].vector, layout.layers).digest
    compression.await_late(["slow"])
    assert compression.dump()[0] == {}
    compression.begin(2)
    assert compression.find(digest) is not None
    compression.await_late([])
    compression.begin(3)
    assert compression.find(digest) is None
