"""A client whose replies are refused again and again, or that rounds wait for, is left out for a while."""

import numpy as np
import pytest
from flwr.app import Error, Message

from bouquet.common import protocol
from bouquet.common.protocol.error_replies import UNREADABLE_ERROR, refusal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.experiments.simulation.timed_grid import TimedGrid
from bouquet.strategies import FedAvg
from bouquet.strategies.base.exchange import Patience
from bouquet.strategies.base.exclusion import Exclusion
from bouquet.strategies.base.method import Outcome


def left_out(exclusion, rounds):
    return [round_ for round_ in rounds if exclusion.reason("x", round_)]


def test_three_refusals_in_a_row_cost_five_rounds_and_the_next_ten():
    exclusion = Exclusion()
    for round_ in (1, 2):
        exclusion.note(round_, ["x"], ["a"])
    exclusion.note(3, [], ["a", "x"])  # one that counts forgives
    for round_ in (4, 5, 6):
        assert exclusion.reason("x", round_) is None
        exclusion.note(round_, ["x"], ["a"])
    assert left_out(exclusion, range(7, 20)) == [7, 8, 9, 10, 11]
    exclusion.note(12, ["x"], ["a"])
    assert left_out(exclusion, range(13, 40)) == list(range(13, 23))
    exclusion.note(23, [], ["x"])
    for round_ in (24, 25):
        exclusion.note(round_, ["x"], [])
    assert exclusion.reason("x", 26) is None
    assert exclusion.reason("a", 8) is None


def test_it_is_not_asked_and_named_and_comes_back(scripted, play):
    seen, broken = [], {"is": True}

    def sometimes(start, received):
        return np.full_like(start, np.nan) if broken["is"] else start + 1

    clients = {
        1: scripted("a", lambda start, _: start + 1),
        2: scripted("b", lambda start, _: start + 1),
        9: scripted("x", sometimes, seen=seen),
    }
    strategy, grid = FedAvg(identify=True), InlineGrid(clients)
    play(strategy, grid, range(1, 5))
    assert [received.round for received in seen] == [1, 2, 3]
    why = "Its replies were refused 3 times in a row; it is left out up to round 8. The last: "
    assert strategy.train_round.failures["x"].startswith(why)
    assert strategy.train_round.failures["x"].endswith("holds values that are not finite.")
    broken["is"] = False
    play(strategy, grid, range(5, 10))
    assert [received.round for received in seen] == [1, 2, 3, 9]
    assert strategy.train_round.failures == {}
    assert strategy.centers(strategy.state).tolist() == [[9.0] * 8]


def test_a_device_that_says_itself_that_it_cannot_is_asked_again(scripted, play):
    asked = []

    def refusing(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, "x", {})
        asked.append(1)
        return refusal(message, "The disk is full.")

    clients = {1: scripted("a", lambda start, _: start + 1), 2: scripted("b", lambda start, _: start + 1), 9: refusing}
    play(FedAvg(identify=True), InlineGrid(clients), range(1, 6))
    assert len(asked) == 5


def test_one_that_sends_what_is_no_message_is_refused_and_has_not_failed(scripted, play):
    asked = []

    def garbage(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, "x", {})
        asked.append(1)
        return Message(Error(UNREADABLE_ERROR, "The reply cannot be read."), reply_to=message)

    clients = {1: scripted("a", lambda start, _: start + 1), 2: scripted("b", lambda start, _: start + 1), 9: garbage}
    play(FedAvg(identify=True), InlineGrid(clients), range(1, 6))
    assert len(asked) == 3


def test_what_a_method_refuses_of_a_reply_counts_as_well(scripted, play):
    class Choosy(FedAvg):
        def update(self, state, round_, replies):
            return Outcome(state, {"x": "It makes no sense."} if "x" in replies.clients else {})

    seen = []
    clients = {i: scripted(name, lambda start, _: start + 1) for i, name in enumerate("ab", 1)}
    clients[9] = scripted("x", lambda start, _: start, seen=seen)
    play(Choosy(identify=True), InlineGrid(clients), range(1, 6))
    assert [received.round for received in seen] == [1, 2, 3]


def test_one_that_says_so_again_is_asked_ever_more_rarely_and_is_back_when_mended(scripted, play):
    asked, broken = [], {"is": True}
    honest = scripted("x", lambda start, _: start + 1)

    def failing(message):
        if message.metadata.message_type != protocol.IDENTIFY:
            asked.append(message.content["config"][protocol.ROUND])
            if broken["is"]:
                return refusal(message, "The disk is full.")
        return honest(message)

    clients = {1: scripted("a", lambda start, _: start + 1), 2: scripted("b", lambda start, _: start + 1), 9: failing}
    strategy, grid = FedAvg(identify=True), InlineGrid(clients)
    play(strategy, grid, range(1, 26))
    assert asked == [1, 2, 3, 4, 5, 7, 10, 15, 20, 25]
    play(strategy, grid, range(26, 27))
    why = "It reported an error 10 times in a row; it is left out up to round 29."
    assert strategy.train_round.failures == {"x": f"{why} The last: The device reported: The disk is full."}
    broken["is"] = False
    play(strategy, grid, range(27, 35))
    assert asked[10:] == [30, 31, 32, 33, 34]
    broken["is"] = True  # and all is forgotten
    play(strategy, grid, range(35, 40))
    assert asked[15:] == [35, 36, 37, 38, 39]


def test_errors_between_refused_replies_do_not_forgive_them():
    exclusion = Exclusion()
    for round_ in range(1, 6):
        exclusion.note(round_, ["x"] if round_ % 2 else [], ["a"], [] if round_ % 2 else ["x"])
    assert left_out(exclusion, range(6, 20)) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("in_time", [0, 1, 2, 15, 16, 17, 40])
def test_one_device_holds_up_one_round_in_sixteen_at_most(in_time):
    exclusion, held_up, turn, shares = Exclusion(), 0, 0, []
    for round_ in range(1, 3201):
        if exclusion.reason("x", round_):
            continue
        is_late = turn % (in_time + 1) == 0
        turn += 1
        if is_late:
            held_up += 1
            shares.append(exclusion.share("x"))
        exclusion.note(round_, [], ["a", "x"], waited_for=["x"] if is_late else [])
    assert held_up <= 3200 / 16 + 3
    if in_time < 3:
        assert sum(shares) <= 2 + 0.25 * held_up
    assert exclusion.share("a") == 1


def test_replies_in_time_make_up_for_a_round_that_was_held_up():
    exclusion = Exclusion()
    for round_ in (1, 2):
        exclusion.note(round_, [], ["x"], waited_for=["x"])
    assert exclusion.share("x") == 0.25
    for round_ in range(3, 36):
        exclusion.note(round_, [], ["x"])
    assert exclusion.share("x") == 1
    for round_ in (36, 37):
        exclusion.note(round_, [], ["x"], waited_for=["x"])
    assert exclusion.reason("x", 38) is None
    assert Exclusion(**vars(exclusion)).share("x") == 0.25


def test_silence_is_asked_ever_more_rarely(scripted, play):
    asked = []

    def silent(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, "x", {})
        asked.append(message.content["config"][protocol.ROUND])
        return None

    clients = {i: scripted(name, lambda start, _: start + 1) for i, name in enumerate("ab", 1)} | {9: silent}
    strategy, grid = FedAvg(identify=True), InlineGrid(clients)
    strategy.round_patience = Patience(timeout=0.01)
    play(strategy, grid, range(1, 70))
    assert asked == [1, 2, 3, 20, 53]
    why = "Rounds were held up by it again and again; it is left out up to round 117. The last: No reply within 0 s."
    assert strategy.train_round.failures == {"x": why}


def test_who_answers_long_after_the_others_is_waited_for_ever_less(scripted, play):
    honest = {i: scripted(name, lambda start, _: start + 1) for i, name in enumerate("abc", 1)}
    grid = TimedGrid(honest | {9: scripted("x", lambda start, _: start + 1)}, speeds=(1000, 1000, 1000, 25))  # .4 s
    strategy = FedAvg(identify=True)
    strategy.round_patience = Patience(timeout=60, straggler_factor=5, straggler_grace=0.6)
    play(strategy, grid, range(1, 2))
    held_up = strategy.exclusion.held_up
    assert (strategy.train_round.failures, held_up) == ({}, {"x": 16})  # it counted, and so does the wait
    play(strategy, grid, range(2, 4))
    assert strategy.train_round.failures["x"] == "No reply within 0 s."
    play(strategy, grid, range(4, 5))
    why = "Rounds were held up by it again and again; it is left out up to round 19"
    assert strategy.train_round.failures["x"].startswith(why)


def test_who_takes_its_time_to_say_who_it_is_is_soon_not_asked(scripted, play):
    asked = []

    def dawdles(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            asked.append(len(asked))
            grid.now += 1.5  # holds up the others, who train for less
            return Message(Error(7, "no"), reply_to=message)
        return trains(message)

    trains = scripted("x", lambda start, _: start + 1)
    honest = {i: scripted(name, lambda start, _: start + 1) for i, name in enumerate("ab", 1)}
    strategy, grid = FedAvg(identify=True), TimedGrid({**honest, 9: dawdles}, speeds=(1000,))
    strategy.names = lambda node, said: {1: "a", 2: "b", 9: "x"}[node]
    strategy.round_patience = Patience(timeout=60, straggler_factor=5, straggler_grace=2)
    play(strategy, grid, range(1, 8))
    assert len(asked) == 4  # with all others, and three times alone
    assert strategy.train_round.replies.clients == ("a", "b")


def test_who_is_slow_among_others_that_are_holds_up_nobody(scripted, play):
    clients = {i: scripted(name, lambda start, _: start + 1) for i, name in enumerate("abcdef", 1)}
    strategy, grid = FedAvg(identify=True), TimedGrid(clients, speeds=(1000, 1000, 1000, 30, 30, 30))
    strategy.round_patience = Patience(timeout=60, straggler_factor=5, straggler_grace=0.6)
    play(strategy, grid, range(1, 3))
    assert (strategy.train_round.failures, strategy.exclusion.held_up) == ({}, {})
