"""A device that does not run the server's app is sent no model, but is asked again until it does."""

import itertools

import pytest
from flwr.app import ConfigRecord, Error, Message
from flwr.common.constant import ErrorCode

from bouquet.common import protocol
from bouquet.common.protocol.error_replies import OwnerRefusal, refusal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import FedAvg
from bouquet.strategies.base.exchange import exchange

WHY = "This device runs only the code of its own installation (bouquet-fl 0.2.0), and the server's differs."
TERMS = "This device's owner sends nothing without noise."
KILLED = "The process that worked on it was ended by SIGKILL (out of memory?)."


class Device:
    """One whose SuperNode refuses the app while it ``refuses``; it says nothing at all while it is ``silent``."""

    def __init__(self, trains):
        self.trains, self.refuses, self.silent, self.crashes = trains, True, False, 0
        self.terms = ()  # types of the messages that its owner does not allow
        self.got = []  # types of the messages, since last looked at

    def __call__(self, message):
        self.got.append(message.metadata.message_type)
        if self.silent:
            return None
        if self.crashes:
            self.crashes -= 1
            return Message(Error(ErrorCode.CLIENT_APP_CRASHED, KILLED), reply_to=message)
        if message.metadata.message_type in self.terms:
            told = {protocol.REFUSES: TERMS}
            is_asked = message.metadata.message_type == protocol.IDENTIFY
            return protocol.reply(message, "x", {}, None, told) if is_asked else refusal(message, OwnerRefusal(TERMS))
        return Message(Error(ErrorCode.INVALID_FAB, WHY), reply_to=message) if self.refuses else self.trains(message)

    def since(self):
        got, self.got = self.got, []
        return got


@pytest.fixture
def fleet(scripted):
    def make(**options):
        device = Device(scripted("x", lambda start, _: start + 4))
        grid = InlineGrid({1: scripted("a", lambda start, _: start + 1), 9: device})
        return FedAvg(round_timeout=0.1, **options), grid, device

    return make


def by_key(node, said):
    return {1: "a", 9: "x"}[node]


@pytest.mark.parametrize("names", [by_key, None])
def test_it_is_named_asked_again_and_comes_back(fleet, play, names):
    strategy, grid, device = fleet(identify=True)
    strategy.names = names
    play(strategy, grid, range(1, 4))
    assert device.since() == [protocol.IDENTIFY] * 3
    assert strategy.train_round.failures == {"x" if names else "node-9": f"The device reported: {WHY}"}
    assert strategy.train_round.replies.clients == ("a",)
    device.refuses = False
    play(strategy, grid, range(4, 6))
    assert device.since() == [protocol.IDENTIFY, "train", "train"]
    assert (strategy.train_round.failures, strategy.train_round.replies.clients) == ({}, ("a", "x"))


def test_silent_since_it_is_sent_nothing_and_asked_ever_more_rarely(fleet, play):
    strategy, grid, device = fleet(identify=True)
    strategy.names = by_key
    play(strategy, grid, range(1, 2))
    device.since()
    device.silent = True
    asked = []
    for round_ in range(2, 25):
        play(strategy, grid, range(round_, round_ + 1))
        asked += [round_] * len(got := device.since())
        assert set(got) <= {protocol.IDENTIFY}
        assert strategy.train_round.failures == {"x": f"The device reported: {WHY}"}
    assert asked == [2, 3, 5, 9, 17]
    device.refuses = device.silent = False
    play(strategy, grid, range(25, 34))
    assert strategy.train_round.replies.clients == ("a", "x")


@pytest.mark.parametrize(
    "turns",
    [["refuses", "silent"], ["tells", "refuses", "silent"], ["crashes", "crashes", "silent"]],
    ids=["refused and silent", "it says who it is, is sent a model, refuses and is silent", "killed and silent"],
)
def test_what_it_says_between_two_silences_does_not_make_it_asked_more_often(fleet, play, turns):
    strategy, grid, device = fleet(identify=True)
    strategy.names = by_key
    turn, silences = itertools.cycle(turns), []

    def hog(message):
        what = next(turn)
        if what == "silent":
            silences.append(round_)  # which costs the round all the time that it has for questions
            return None
        codes = {"refuses": ErrorCode.INVALID_FAB, "crashes": ErrorCode.CLIENT_APP_CRASHED}
        return (
            protocol.reply(message, "x", {}) if what == "tells" else Message(Error(codes[what], WHY), reply_to=message)
        )

    grid.handlers[9] = hog
    for round_ in range(1, 61):
        play(strategy, grid, range(round_, round_ + 1))
        assert "a" in strategy.train_round.replies.clients
    assert len(silences) < 12, silences  # of sixty rounds; as often as it liked, every second one
    grid.handlers[9] = device
    device.refuses = False
    for round_ in range(61, 78):
        play(strategy, grid, range(round_, round_ + 1))
    assert strategy.train_round.replies.clients == ("a", "x")
    device.refuses = True
    play(strategy, grid, range(78, 79))
    device.since()
    device.silent = True
    play(strategy, grid, range(79, 81))
    assert device.since() == [protocol.IDENTIFY] * 2  # forgiven, since it trained


@pytest.mark.parametrize("names", [by_key, None])
def test_one_that_was_killed_while_it_said_who_it_is_is_asked_again_at_once(fleet, play, names):
    strategy, grid, device = fleet(identify=True)
    strategy.names = names
    device.refuses, device.crashes = False, 1
    play(strategy, grid, range(1, 2))
    assert device.since() == [protocol.IDENTIFY, protocol.IDENTIFY, "train"]
    assert (strategy.train_round.failures, strategy.train_round.replies.clients) == ({}, ("a", "x"))


def test_one_killed_each_time_is_asked_each_round_and_never_taken_for_another(fleet, play):
    strategy, grid, device = fleet(identify=True)
    device.refuses, device.crashes = False, 4
    play(strategy, grid, range(1, 3))
    assert device.since() == [protocol.IDENTIFY] * 4
    assert strategy.train_round.failures == {"node-9": f"The device reported: {KILLED}"}
    play(strategy, grid, range(3, 4))
    assert device.since() == [protocol.IDENTIFY, "train"]
    assert (strategy.train_round.failures, strategy.train_round.replies.clients) == ({}, ("a", "x"))


@pytest.mark.parametrize(
    ("terms", "sent"),
    [((protocol.IDENTIFY, "train"), [protocol.IDENTIFY] * 2), (("train",), [protocol.IDENTIFY, "train"] * 2)],
    ids=["it says so when it is asked who it is", "it says so when it is asked to train"],
)
def test_one_whose_owner_refuses_the_run_is_sent_hardly_anything(fleet, play, terms, sent):
    strategy, grid, device = fleet(identify=True)
    device.refuses, device.terms = False, terms
    for round_ in range(1, 17):
        play(strategy, grid, range(round_, round_ + 1))
        assert strategy.train_round.failures == {"x": f"The device reported: {TERMS}"}
    assert device.since() == sent  # in rounds 1 and 9
    device.terms = ()  # restarted, and its owner allows more
    play(strategy, grid, range(17, 18))
    assert (strategy.train_round.failures, strategy.train_round.replies.clients) == ({}, ("a", "x"))


def test_no_model_for_the_test_either(fleet, play, initial):
    strategy, grid, device = fleet(identify=True)
    play(strategy, grid, range(1, 2))
    strategy.train_round.failures = {}
    messages = list(strategy.configure_evaluate(1, initial, ConfigRecord(), grid))
    strategy.aggregate_evaluate(1, exchange(grid, messages, strategy.round_patience)[0])
    assert set(device.since()) == {protocol.IDENTIFY}
    assert (list(strategy.evaluate_round.scores), list(strategy.evaluate_round.failures)) == (["a"], ["node-9"])


def test_an_app_refused_later_stops_the_models_too_but_not_its_new_nodes(fleet, scripted, play):
    """A run that goes on with another release: the device had answered before."""
    strategy, grid, device = fleet(identify=True)
    device.refuses = False
    play(strategy, grid, range(1, 2))
    device.refuses = True
    play(strategy, grid, range(2, 4))
    assert device.since() == [protocol.IDENTIFY, "train", "train", protocol.IDENTIFY]
    assert strategy.train_round.failures == {"x": f"The device reported: {WHY}"}  # by the name that it gave before
    grid.handlers[10] = scripted("x", lambda start, _: start + 4)  # restarted without a key, the old one still there
    play(strategy, grid, range(4, 5))
    assert (strategy.train_round.failures, strategy.train_round.replies.clients) == ({}, ("a", "x"))


def test_where_nobody_is_asked_who_it_is_the_model_itself_asks(fleet, play):
    strategy, grid, device = fleet()
    play(strategy, grid, range(1, 4))
    assert device.since() == ["train"] * 3
    device.refuses = False
    play(strategy, grid, range(4, 5))
    assert strategy.train_round.replies.clients == ("a", "x")


def test_where_all_refuse_nobody_is_sent_anything_and_each_is_named(fleet, play):
    strategy, grid, device = fleet(identify=True)
    strategy.names = by_key
    grid.handlers[1] = device
    play(strategy, grid, range(1, 3))
    assert set(device.since()) == {protocol.IDENTIFY}
    assert strategy.train_round.failures == dict.fromkeys(("a", "x"), f"The device reported: {WHY}")
    assert not strategy.train_round.replies


def test_who_refuses_is_asked_once_a_round_and_not_while_the_round_is_waited_for(fleet):
    """A server waits a night for owners, and looks five times a second."""
    strategy, grid, device = fleet(identify=True)
    strategy.who_can(grid, [1, 9])
    device.since()
    for look in range(50):
        strategy.who_can(grid, [1, 9], again=look > 0)
    assert device.since() == [protocol.IDENTIFY]
