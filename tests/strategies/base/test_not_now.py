"""A device whose owner does not let it work now: no reply, no failure, no model sent, and asked again in time."""

import pytest

from bouquet.common import protocol
from bouquet.common.protocol.error_replies import NotNow, refusal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies import FedAvg
from bouquet.strategies.base import nodes

WHY = "too hot; again below 60 °C"


class Device:
    """One that says when it is asked who it is, and when it is to train, that it does not work now, or only then."""

    def __init__(self, trains):
        self.trains, self.why, self.seconds, self.stops = trains, WHY, 5.0, False
        self.got = []

    def __call__(self, message):
        kind = message.metadata.message_type
        self.got.append(kind)
        if kind == protocol.IDENTIFY:
            told = {protocol.CONDITIONS: True}
            told |= {protocol.NOT_NOW: self.why, protocol.AGAIN_IN: self.seconds} if self.why else {}
            return protocol.reply(message, "x", {}, None, told)
        if self.why or self.stops:
            return refusal(message, NotNow(self.why or WHY, self.seconds))
        return self.trains(message)

    def since(self):
        got, self.got = self.got, []
        return got


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(nodes.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def fleet(scripted):
    def make(**options):
        device = Device(scripted("x", lambda start, _: start + 4))
        handlers = {number: scripted(f"a{number}", lambda start, _: start + 1) for number in (1, 2, 3)}
        return FedAvg(round_timeout=5, identify=True, **options), InlineGrid({**handlers, 9: device}), device

    return make


def test_it_is_sent_nothing_until_the_time_that_it_said(fleet, play, clock):
    strategy, grid, device = fleet()
    play(strategy, grid, range(1, 4))
    assert device.since() == [protocol.IDENTIFY]
    assert strategy.train_round.failures == {}
    assert {client: found.reason for client, found in strategy.train_round.not_now.items()} == {"x": WHY}
    assert strategy.train_round.replies.clients == ("a1", "a2", "a3")
    device.why = ""
    clock[0] += 4.9
    play(strategy, grid, range(4, 5))
    assert device.since() == []
    clock[0] += 0.1
    play(strategy, grid, range(5, 7))
    assert device.since() == [protocol.IDENTIFY, "train", "train"]
    assert (strategy.train_round.not_now, strategy.train_round.replies.clients) == ({}, ("a1", "a2", "a3", "x"))


@pytest.mark.parametrize(("said", "asked_after"), [(10**6, nodes.LONGEST_REST), (0, nodes.SHORTEST_REST)])
def test_what_it_says_of_the_time_is_bounded(fleet, play, clock, said, asked_after):
    strategy, grid, device = fleet()
    device.seconds = said
    play(strategy, grid, range(1, 2))
    device.since()
    clock[0] += asked_after - 0.01
    play(strategy, grid, range(2, 3))
    assert device.since() == []
    clock[0] += 0.01
    play(strategy, grid, range(3, 4))
    assert device.since() == [protocol.IDENTIFY]


def test_it_stops_in_mid_round_and_that_is_no_failure(fleet, play, clock):
    strategy, grid, device = fleet(min_replies=1.0)
    device.why = ""
    play(strategy, grid, range(1, 2))
    device.stops = True
    play(strategy, grid, range(2, 3))
    assert strategy.train_round.warnings == []  # the share of those asked is that of the three that could
    assert strategy.centers(strategy.state).tolist() == [[(3 * 1 + 4) / 4 + 1] * 8]
    play(strategy, grid, range(3, 9))
    assert (strategy.train_round.failures, list(strategy.train_round.not_now)) == ({}, ["x"])
    assert strategy.exclusion.failures == {}
    assert len(strategy.train_round.replies) == 3
    assert strategy.train_round.warnings == []


def test_where_some_are_chosen_those_with_conditions_are_asked_before(fleet, play, clock):
    """Of four, two are chosen. One becomes too hot after the first round: it is not among them, and two train."""
    strategy, grid, device = fleet(fraction_train=0.5)
    device.why = ""
    play(strategy, grid, range(1, 2))
    device.since()
    device.why = WHY
    for round_ in range(2, 12):
        play(strategy, grid, range(round_, round_ + 1))
        assert len(strategy.train_round.replies) == 2
        assert "train" not in device.since()
        clock[0] += 10


def test_one_that_does_not_answer_when_it_is_asked_again_is_left_alone_for_a_while(clock):
    """A question that nobody answers costs a round as long as that."""
    known = nodes.Nodes(clients={9: "x"}, resting={9: nodes.Resting(WHY, 0.0, ask_at=clock[0])})
    assert known.to_ask([9]) == [9]
    known.learn([9], [], None)
    clock[0] += nodes.IDENTIFY_TIMEOUT - 0.1
    assert known.to_ask([9]) == []
    clock[0] += 0.2
    assert known.to_ask([9]) == [9]
    assert known.among([9]) == {}


def test_its_words_are_bounded_and_stripped(fleet, play):
    strategy, grid, device = fleet()
    device.why = "hot\n\x1b[2Jround 9 ended " + "x" * 5000
    play(strategy, grid, range(1, 2))
    (found,) = strategy.train_round.not_now.values()
    assert found.reason.startswith("hot [2Jround 9 ended xxx")
    assert len(found.reason) <= 300


@pytest.mark.parametrize("reason", ["", "soon", "-3 hot", "1e9 hot", "99999999999 hot"])
def test_an_error_that_says_no_time_is_asked_again_soon(fleet, play, clock, monkeypatch, reason):
    strategy, grid, device = fleet()
    device.why = ""
    play(strategy, grid, range(1, 2))
    monkeypatch.setattr("bouquet.common.protocol.error_replies.not_now_text", lambda _: reason)
    device.stops = True
    play(strategy, grid, range(2, 3))
    assert list(strategy.train_round.not_now) == ["x"]
    device.stops = False
    clock[0] += nodes.SHORTEST_REST
    play(strategy, grid, range(3, 4))
    assert strategy.train_round.not_now == {}
