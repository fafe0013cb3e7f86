from dataclasses import replace

import pytest
from flwr.app import Error, Message, RecordDict

from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import exchange as module
from bouquet.strategies.base.exchange import Patience, exchange, replies_to


def messages(*nodes):
    return [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]


def echo(message):
    return Message(RecordDict(), reply_to=message)


def unavailable(message):
    return Message(Error(5, "Node unavailable."), reply_to=message)


class SuperLinkGrid(InlineGrid):
    """Errors are said by the SuperLink, in a node's place."""

    def pull_messages(self, message_ids):
        for reply in super().pull_messages(message_ids):
            if reply.has_error():
                reply.metadata.__dict__["_src_node_id"] = 1
            yield reply


def test_all_answer():
    grid = InlineGrid({1: echo, 2: echo})
    replies, silent = exchange(grid, messages(1, 2), Patience(timeout=5))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2]
    assert silent == {}


def test_nothing_to_send():
    assert exchange(InlineGrid({}), [], Patience()) == ([], {})


def test_one_that_never_answers_costs_the_timeout_and_is_named():
    grid = InlineGrid({1: echo, 2: lambda message: None})
    replies, silent = exchange(grid, messages(1, 2), Patience(timeout=0.2))
    assert len(replies) == 1
    assert silent == {2: "No reply within 0 s."}


def test_a_straggler_gets_a_multiple_of_the_time_that_half_took():
    grid = InlineGrid({1: echo, 2: echo, 3: lambda message: None})
    patience = Patience(timeout=3600, straggler_factor=2, straggler_grace=0.1)
    replies, silent = exchange(grid, messages(1, 2, 3), patience)
    assert len(replies) == 2
    assert list(silent) == [3]


def test_half_is_of_those_who_can_answer():
    """Of seven, four are not there and one is gone at once: of the two that are left, one is half."""
    grid = SuperLinkGrid({1: echo, 2: lambda message: None, 3: unavailable})
    patience = Patience(timeout=60, straggler_factor=2, straggler_grace=0.1)
    replies, silent = exchange(grid, messages(*range(1, 8)), patience)
    assert [reply.metadata.src_node_id for reply in replies] == [1]
    assert silent[2].startswith("No reply within ")  # twice the time that the half took
    assert silent[3] == "Node unavailable."
    assert len(silent) == 6


def test_a_late_answer_within_the_patience_counts():
    grid = InlineGrid({1: echo, 2: echo}, delays={2: 0.3})
    replies, _ = exchange(grid, messages(1, 2), Patience(timeout=3600, straggler_factor=2, straggler_grace=30))
    assert len(replies) == 2


@pytest.mark.parametrize(("half_after", "expected"), [(None, 600), (10.0, 50), (1.0, 30), (200.0, 600)])
def test_the_deadline(half_after, expected):
    patience = Patience(timeout=600, straggler_factor=5, straggler_grace=30)
    assert patience.deadline(half_after) == expected


def test_who_is_asked_alone_holds_all_up_by_more_than_most_took_to_train():
    training = Patience(timeout=600, straggler_factor=5, straggler_grace=30, shares={9: 0.25})
    question = replace(training, timeout=120, question=True)
    assert (training.deadline(None, 9), question.deadline(None, 9), question.deadline(None, 1)) == (600, 30, 120)
    late = [question.is_late(seconds, None, is_alone=True) for seconds in (4.0, 6.0)]
    training.usual[:] = [20.0]
    late += [question.is_late(seconds, None, is_alone=True) for seconds in (6.0, 21.0)]
    assert late == [False, True, False, True]
    assert not training.is_late(500.0, None, is_alone=True)  # one device alone trains as long as it takes
    assert not question.is_late(60.0, None)  # others have not answered either


def test_who_answers_late_and_alone_is_noted_and_training_says_what_is_usual():
    question = Patience(timeout=60, straggler_factor=5, straggler_grace=0.3, question=True)
    exchange(InlineGrid({1: echo}, delays={1: 0.1}), messages(1), question)
    assert question.waited_for == {1}
    training = replace(question, question=False)
    exchange(InlineGrid({1: echo, 2: echo}, delays={1: 0.4}), messages(1, 2), training)
    assert len(question.usual) == 1


def test_without_a_factor_who_is_there_at_once_does_not_shorten_it():
    assert Patience(timeout=600).deadline(0.0) == 600


def test_a_node_that_is_not_there_is_named_at_once():
    replies, silent = exchange(InlineGrid({1: echo}), messages(1, 9), Patience(timeout=3600))
    assert len(replies) == 1
    assert silent == {9: module.UNDELIVERED}


def test_a_node_that_disconnects_is_given_up_after_two_looks(monkeypatch):
    monkeypatch.setattr(module, "PRESENCE_CHECK", 0.05)
    grid = InlineGrid({1: echo, 2: lambda message: grid.handlers.pop(2) and None})
    replies, silent = exchange(grid, messages(1, 2), Patience(timeout=3600))
    assert len(replies) == 1
    assert silent == {2: "The device lost its connection, or was switched off, before it replied."}


def test_a_node_that_one_look_does_not_see_is_waited_for(monkeypatch):
    """As between two of its heartbeats."""
    monkeypatch.setattr(module, "PRESENCE_CHECK", 0.0)
    looks = []

    class Blinking(InlineGrid):
        def get_node_ids(self):
            looks.append(len(looks))
            return [] if len(looks) == 1 else [1]

        def pull_messages(self, message_ids):
            return super().pull_messages(message_ids) if len(looks) > 2 else []

    replies, silent = exchange(Blinking({1: echo}), messages(1), Patience(timeout=3600))
    assert (len(replies), silent) == (1, {})


def test_a_reply_that_comes_twice_counts_once():
    class Twice(InlineGrid):
        def pull_messages(self, message_ids):
            return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]

    replies, silent = exchange(Twice({1: echo, 2: echo}), messages(1, 2), Patience(timeout=5))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2]
    assert silent == {}


def test_an_error_that_the_superlink_reports_is_blamed_on_the_node():
    replies, silent = exchange(SuperLinkGrid({2: unavailable}), messages(2), Patience(timeout=5))
    assert replies == []
    assert silent == {2: "Node unavailable."}


def test_a_reply_is_handed_on_before_the_next_one_is_made():
    made, silent = [], {}

    def handler(message):
        made.append(message.metadata.dst_node_id)
        return echo(message)

    grid = InlineGrid(dict.fromkeys(range(1, 40), handler))
    for count, _ in enumerate(replies_to(grid, messages(*range(1, 40)), Patience(), silent), 1):
        assert len(made) == count
    assert len(made) == 39
    assert silent == {}


def test_several_messages_can_be_answered_by_one_call():
    sizes = []

    def together(work):
        sizes.append(len(work))
        return [do() for do in work]

    grid = InlineGrid(dict.fromkeys(range(1, 8), echo), together=together, at_once=3)
    replies, _ = exchange(grid, messages(*range(1, 8)), Patience())
    assert sorted(reply.metadata.src_node_id for reply in replies) == list(range(1, 8))
    assert sizes == [3, 3, 1]
