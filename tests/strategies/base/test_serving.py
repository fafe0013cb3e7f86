"""The devices' vote on what they answer with, by hand."""

import numpy as np
import pytest

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, Instruction
from bouquet.strategies.base.filters.filter import OutgoingInstruction
from bouquet.strategies.base.filters.serving import FleetVote


def reply(client, counted):
    config = {} if counted is None else {"serving": 100 * counted}
    return ClientReply(client, 1, np.zeros(2, dtype=np.float32), (), 1, {}, config)


def heard(*rounds):
    """A vote after rounds of what each device counted."""
    vote = FleetVote()
    for number, counts in enumerate(rounds, 1):
        vote.begin(number)
        for client, counted in counts.items():
            vote.incoming(reply(client, counted))
    return vote


def told(vote, trains=True):
    layout = ParameterLayout.of({"only": np.zeros(2, dtype=np.float32)})
    return vote.outgoing(OutgoingInstruction(layout, "a", trains, Instruction(config={"other": 1}))).instruction.config


def test_nobody_is_asked_in_the_first_round_and_until_one_counts_it_is_the_mixture():
    assert told(heard({})) == {"other": 1}
    assert told(heard({}), trains=False) == {"other": 1, "serve": "mixture"}
    assert told(heard({"a": None}, {"a": 0.5})) == {"other": 1, "serve": "mixture"}


@pytest.mark.parametrize(
    ("counts", "takes"), [({"a": 1, "b": 1, "c": -1}, "received"), ({"a": -1}, "mixture"), ({"a": 0}, "received")]
)
def test_the_mixture_is_taken_where_it_errs_less(counts, takes):
    assert told(heard({}, counts)) == {"other": 1, "serve": takes}


def test_one_device_has_one_vote_whatever_it_says():
    assert heard({"liar": -(10**9), "a": 1, "b": 1}).choice == "received"
    assert heard({"liar": -(10**9), "other": -(10**9), "a": 1}).choice == "mixture"


def test_a_device_counts_once_in_a_round_however_many_messages_it_has():
    vote = heard({"a": 1})
    for _ in range(50):
        vote.incoming(reply("a", -100))
    assert vote.sums == {"a": 1.0}
    vote.begin(2)
    vote.incoming(reply("a", -1))
    assert vote.sums["a"] == pytest.approx(-0.1)


def test_what_was_counted_long_ago_counts_for_little():
    assert heard({"a": -3}, {"a": 1}, {"a": 1}).choice == "mixture"
    assert heard({"a": -3}, *[{"a": 1}] * 4).choice == "received"
    assert heard({"liar": -(10**9), "a": 1}, *[{"a": 1}] * 120).sums.keys() == {"a"}


def test_it_goes_on_after_a_restart():
    vote, again = heard({"a": -3, "b": 1}), FleetVote()
    again.load(*vote.dump())
    again.begin(2)
    again.begin(2)  # nobody answered, and the round begins again
    assert again.sums == {"a": -2.7, "b": 0.9}


def test_what_was_counted_of_other_clusters_is_forgotten():
    clusters = [1, 1, 4, 4]
    vote = FleetVote(lambda: clusters.pop(0))
    for number, counted in enumerate([-3, -3, 1], 1):
        vote.begin(number)
        vote.incoming(reply("a", counted))
    assert vote.sums == {"a": 1.0}
    vote.begin(4)
    assert vote.sums == {"a": 0.9}


def test_a_count_changes_what_the_next_message_says():
    vote = heard({}, {"a": 1})
    assert told(vote)["serve"] == "received"
    vote.incoming(reply("b", -1))
    vote.incoming(reply("c", -1))
    assert told(vote)["serve"] == "mixture"
