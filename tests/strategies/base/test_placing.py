"""Devices that are new, or whose data have changed, are asked which cluster's model fits them."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from bouquet.client.context import ClientContext
from bouquet.common import protocol
from bouquet.common.protocol import ClientReply
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.strategies.base.exchange import Patience, exchange
from bouquet.strategies.base.filters.placing import Placing
from bouquet.strategies.base.groups import Groups
from bouquet.strategies.fesem.strategy import FeSEM
from tests.helpers.points import POINT
from tests.helpers.real_devices import Federation

DATA = ("data.partition=label-permuted", "data.groups=2", "data.clients=6", "data.samples_per_client=60")
TRAINING = ("model.hidden=[64]", "train.local_epochs=3", "train.momentum=0.9", "strategy.num_clusters=2")
NEW = 7  # the node of client-5


def heard(losses, *rounds, clusters=None, count=1):
    """The filter after rounds of what each device lost, with so many clusters; what is said of the last one."""
    for values in rounds:
        metrics = {client: {} if loss is None else {"loss": loss} for client, loss in values.items()}
        replies = [ClientReply(client, 1, np.zeros(2, np.float32), (), 1, said, {}) for client, said in metrics.items()]
        counted, said = losses.judge(replies, clusters or {}, np.zeros((count, 2), np.float32))
    return {reply.client for reply, counts in zip(replies, counted, strict=True) if not counts}, said


@pytest.mark.parametrize(
    ("before", "loss", "jumps"),
    [
        ([2.3, 1.0], 2.8, False),  # against the largest of the last three
        ([2.3, 1.0], 3.0, True),
        ([9.0, 1.0, 0.8, 0.6], 1.4, True),  # of which the 9 is none
        ([1e-6], 1e-3, False),
        ([], 5.0, False),
        ([0.5, None], 2.0, True),  # one that does not say it, or was away
    ],
)
def test_a_loss_jumps_where_it_is_far_above_its_own_last_ones(before, loss, jumps):
    losses = Placing()
    heard(losses, *({"a": one, "b": 1.0} for one in [*before, loss]))
    assert losses.changed == ({"a"} if jumps else set())


def test_after_a_jump_the_losses_before_count_no_more_and_a_checkpoint_has_them():
    losses = Placing()
    heard(losses, {"a": 0.5}, {"a": 3.0}, {"a": 0.4}, count=2)
    again = Placing()
    again.load(*losses.dump())
    assert again.changed == {"a"}
    old = Placing()
    old.load({}, {"losses": {}, "changed": ["a"]})  # of an earlier release
    assert (old.changed, old.rest) == ({"a"}, 0)
    assert "jumped on a (0.400 → 1.000)" in heard(again, {"a": 1.0}, count=2)[1]


def test_after_a_division_the_first_loss_is_compared_with_others_of_the_cluster():
    losses = Placing()
    heard(losses, {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0, "e": 2.0, "f": 2.0})
    after = {"clusters": {"a": 0, "b": 0, "c": 0, "d": 0, "e": 0, "f": 1}, "count": 2}
    # Nobody of the cluster has told a loss of its new model; what f's model gives says nothing of it.
    assert heard(losses, {"b": 1.8, "f": 0.5}, **after) == (set(), "")
    assert heard(losses, {"c": 0.8}, {"d": 0.7}, {"b": 0.6}, **after) == (set(), "")
    # The limit is of b, c and d, as they came last: 0.8 · 1.25 + 0.05.
    assert heard(losses, {"e": 1.0}, **after) == (set(), "")
    assert heard(losses, {"a": 1.4, "new": 9.0}, **after)[0] == {"a"}  # with its own one before, 2.0, it would not
    losses.questions(["a"], {"a"}, np.zeros((2, 2), np.float32))
    assert losses.changed == set()
    # Who was asked stays and learns, though no model fits it. Who comes to another cluster is compared with its others.
    assert heard(losses, {"a": 1.4}, {"a": 1.5}, **after)[0] == set()
    assert heard(losses, {"b": 0.7}, **{**after, "clusters": {**after["clusters"], "b": 1}})[0] == {"b"}


def test_one_model_that_swings_between_kinds_is_said_once():
    losses = Placing()
    said = [heard(losses, {"a": loss})[1] for loss in (1.0, 4.0, 1.0, 4.0, 1.0, 4.0)]
    assert [bool(text) for text in said] == [False, True, False, False, False, False]


class Fleet(Federation):
    """Two groups of three devices with other labels, of which some are there."""

    def __init__(self, folder, *changes):
        super().__init__(folder, *DATA, *TRAINING, "strategy.name=fesem", *changes)
        self.handlers = dict(self.grid.handlers)

    def there(self, *without):
        self.grid.handlers = {node: handler for node, handler in self.handlers.items() if node not in without}

    def accuracy(self, client):
        """Of what the client was sent in the last round."""
        replies = self.strategy.train_round.replies
        return next(one.metrics["accuracy"] for one in replies.received if one.client == client)


def test_a_newcomer_has_its_cluster_and_a_model_that_fits_before_its_first_training(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.there(NEW)
    fleet.play(*range(1, 9))
    sent = len(fleet.strategy.train_round.preliminary)
    fleet.there()
    fleet.play(9)
    now, clusters = fleet.strategy.train_round, fleet.strategy.assignment(fleet.strategy.state)
    assert (sent, len(now.preliminary)) == (0, 2)  # one question and its answer: nobody else was asked
    assert clusters["client-5"] == clusters["client-1"] != clusters["client-0"]
    assert fleet.accuracy("client-5") >= 0.5
    assert now.failures == {}


@pytest.mark.parametrize("method", ["fesem", "anchored"])
def test_devices_whose_data_change_move_after_one_round_which_does_not_count(method, tmp_path):
    fleet = Fleet(tmp_path, "data.drift=[[9, 0.67]]", f"strategy.name={method}")
    fleet.play(*range(1, 9))
    before = fleet.strategy.assignment(fleet.strategy.state)
    fleet.play(9)
    said = fleet.strategy.train_round.warnings
    assert len(said) == 1
    assert all(f"client-{i} (" in said[0] for i in range(4)), said
    assert not any(f"client-{i} (" in said[0] for i in (4, 5)), said
    state = fleet.strategy.state
    assert fleet.strategy.assignment(state) == before
    trained = {reply.client: reply.vector for reply in fleet.strategy.train_round.replies.received}
    for same in ("client-4", "client-5"):  # the only ones left of their clusters
        np.testing.assert_allclose(state.centers[before[same]], trained[same], rtol=1e-6)
    fleet.play(10)
    moved = fleet.strategy.assignment(fleet.strategy.state)
    assert {client for client in before if moved[client] != before[client]} == {f"client-{i}" for i in range(4)}
    assert min(fleet.accuracy(client) for client in before) >= 0.5
    assert len(fleet.strategy.train_round.preliminary) == 8
    fleet.play(11)
    assert fleet.strategy.assignment(fleet.strategy.state) == moved
    assert fleet.strategy.train_round.preliminary == []


def test_where_few_train_and_several_changed_all_are_asked_in_the_next_round(tmp_path):
    fleet = Fleet(tmp_path, "data.drift=[[17, 0.67]]", "server.fraction_train=0.5")
    fleet.play(*range(1, 17))
    before = fleet.strategy.assignment(fleet.strategy.state)
    fleet.play(17)
    trained = {reply.client for reply in fleet.strategy.train_round.replies.received}
    turned = {f"client-{part}" for part in range(4)}
    assert turned - trained
    assert "As several changed at once, so do the 3 that did not train" in fleet.strategy.train_round.warnings[-1]
    fleet.play(18)
    after = fleet.strategy.assignment(fleet.strategy.state)
    assert {client for client in before if after[client] != before[client]} == turned
    assert turned - {reply.client for reply in fleet.strategy.train_round.replies.received}  # also who was not to train


def test_who_is_asked_because_others_changed_and_stays_keeps_what_it_has(tmp_path):
    fleet = Fleet(tmp_path, "strategy.name=anchored")
    fleet.play(*range(1, 7))
    strategy, state = fleet.strategy, fleet.strategy.state
    known = {client: np.ones(1, np.float16) for client in state.assignment}
    wrong = {**state.assignment, "client-2": 1 - state.assignment["client-2"]}
    strategy.state = replace(state, assignment=wrong, groups=Groups(directions=known))
    placing = strategy.filter_of(Placing)
    placing.changed, placing.beside = {"client-1"}, {f"client-{i}" for i in (1, 2, 3)}
    asked = fleet.grid.handlers
    fleet.there(4)  # client-2 is away, and asked when it is back
    fleet.play(7)
    assert len(strategy.train_round.preliminary) == 4
    assert {client for client, one in strategy.train_round.planned.values() if one.newcomer} == {"client-1"}
    assert strategy.state.groups.directions.keys() == known.keys() - {"client-1"}
    assert placing.beside == {"client-2"}
    placing.load(*placing.dump())
    fleet.grid.handlers = asked
    fleet.play(8)
    assert {client for client, one in strategy.train_round.planned.values() if one.newcomer} == {"client-2"}
    assert strategy.assignment(strategy.state) == state.assignment
    assert strategy.state.groups.directions.keys() == known.keys() - {"client-1", "client-2"}
    assert placing.beside == set()


def test_who_moves_while_it_is_not_to_train_begins_anew_later(tmp_path):
    fleet = Fleet(tmp_path, "strategy.name=anchored", "server.fraction_train=0.5")
    fleet.play(*range(1, 17))
    strategy, placing = fleet.strategy, fleet.strategy.filter_of(Placing)
    placing.changed = set(strategy.state.assignment)
    waiting, round_ = {*placing.changed}, 17
    while waiting:
        fleet.play(round_)
        trained = {reply.client for reply in strategy.train_round.replies.received}
        for client, sent in strategy.train_round.planned.values():
            if client in trained:
                assert sent.newcomer == (sent.start == "received") == (client in waiting)
        waiting -= trained
        assert placing.anew == waiting
        placing.load(*placing.dump())
        round_ += 1
    assert round_ > 18


def test_what_doubles_on_one_device_or_on_few_of_many_concerns_nobody_else():
    names = [f"d{i}" for i in range(12)]
    for doubled, of, asked in ((1, 12, False), (2, 12, False), (3, 12, True), (2, 9, False), (2, 8, True)):  # a quarter
        clusters, before = dict.fromkeys([*names, "away"], 0), dict.fromkeys(names[:of], 1.0)
        losses = Placing()
        heard(losses, before, {**before, **dict.fromkeys(names[:doubled], 2.1)}, clusters=clusters, count=2)
        assert ("away" in losses.beside) == asked
    before = dict.fromkeys(names, 1.0)
    losses = Placing()  # two of three whose losses are known: newcomers say nothing of a change
    heard(losses, dict.fromkeys("abc", 1.0), {"a": 2.1, "b": 2.1, "c": 1.0, **before}, clusters=clusters, count=2)
    assert "away" in losses.beside
    losses = Placing()
    heard(losses, {"a": 1.0, "b": 1.0}, {"a": 2.1, "b": 1.0}, clusters=clusters, count=2)  # one, though it is half
    assert losses.beside == set()
    losses = Placing()
    heard(losses, before, {**before, **dict.fromkeys(names[:6], 1.9)}, clusters=clusters, count=2)
    assert (losses.changed, losses.beside) == ({*names[:6]}, set())
    losses = Placing()
    heard(losses, before, dict.fromkeys(names, 9.0), clusters=clusters)  # one model for all: nothing to choose
    assert (losses.changed, losses.beside) == ({*names}, set())


def test_a_doubted_device_is_asked_at_most_once_in_five_rounds():
    losses, asked = Placing(), []
    for round_ in range(13):
        losses.doubt(["a"] if round_ != 7 else ["a", "b"])
        questions = losses.questions(["a", "b"], ["a", "b"], np.zeros((2, 2), np.float32))
        asked += [(round_, client) for client in questions]
        again = Placing()
        again.load(*losses.dump())
        losses = again
    assert asked == [(0, "a"), (5, "a"), (7, "b"), (10, "a")]


def test_the_fleet_is_asked_at_most_once_in_ten_rounds_whatever_devices_say():
    losses, asked = Placing(), []
    for round_ in range(0, 48, 2):
        heard(losses, {"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 9.0}, clusters={"a": 0, "b": 1, "away": 1}, count=2)
        asked += [round_] if "away" in losses.beside else []
        losses.questions(["a", "b", "away"], ["a", "b", "away"], np.zeros((2, 2), np.float32))
        again = Placing()
        again.load(*losses.dump())
        losses = again
    assert asked == [0, 10, 20, 30, 40]


def test_the_data_of_a_round_are_another_part_and_the_name_stays(tmp_path):
    fleet = Fleet(tmp_path, "data.drift=[[2, 0.5]]")
    nodes = [ClientContext(fleet.settings, fleet.contexts[2], tmp_path, round=r) for r in (0, 1, 2)]
    next_one = ClientContext(fleet.settings, fleet.contexts[3], tmp_path)
    assert {node.client for node in nodes} == {"client-0"}
    assert nodes[0].data is nodes[1].data
    assert nodes[2].data is next_one.data
    assert nodes[2].data.group != nodes[1].data.group


def test_one_that_cannot_say_it_is_sent_the_mean_as_before_and_fails_nothing():
    strategy = FeSEM(num_clusters=2, identify=True, min_train_nodes=1, min_available_nodes=1)
    strategy.round_patience = Patience(0.3)
    strategy.filters.append(Placing())
    seen = []
    goals = {"a": (0, 0), "b": (0, 2), "c": (10, 0), "new": (10, 2)}
    handlers = {
        node: scripted_client(
            name, POINT, lambda w, received, goal=goal: (w + goal) / 2, seen=seen if node == 5 else None
        )
        for node, (name, goal) in enumerate(goals.items(), 2)
    }
    grid = InlineGrid({node: handler for node, handler in handlers.items() if node != 5})
    initial = protocol.to_record(POINT, np.zeros(2, np.float32))
    for round_ in range(1, 6):
        if round_ == 5:
            grid.handlers = handlers
        messages = list(strategy.configure_train(round_, initial, ConfigRecord(), grid))
        replies, _ = exchange(grid, messages, strategy.round_patience)
        strategy.aggregate_train(round_, replies)
    assert [received.procedure for received in seen] == ["choose", "standard"]
    assert strategy.train_round.failures == {}
    assert strategy.state.assignment["new"] == strategy.state.assignment["c"]


def test_a_device_that_turns_right_after_a_division_is_asked_and_moves(tmp_path):
    fleet = Fleet(tmp_path, "data.drift=[[5, 0.67]]")
    fleet.play(1)  # the common model: what it lost there is as much as a model of the other cluster will
    before = fleet.strategy.assignment(fleet.strategy.state)
    fleet.there(2, 3)
    fleet.play(2, 3, 4)
    fleet.there()
    fleet.play(5)
    assert {"client-0", "client-1"} <= fleet.strategy.filter_of(Placing).changed
    assert not {"client-4", "client-5"} & fleet.strategy.filter_of(Placing).changed
    fleet.play(6)
    after = fleet.strategy.assignment(fleet.strategy.state)
    assert {client for client in before if after[client] != before[client]} == {f"client-{i}" for i in range(4)}
