"""The votes of devices on the models that they made, by hand."""

import numpy as np
import pytest

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, Instruction
from bouquet.strategies.base.filters.canary import Canary
from bouquet.strategies.base.filters.filter import OutgoingInstruction

LAYOUT = ParameterLayout.of({"only": np.zeros(2, dtype=np.float32)})


def told(canary, client, trains=True):
    message = OutgoingInstruction(LAYOUT, client, trains, Instruction(config={"other": 1}))
    return canary.outgoing(message).instruction.config["held"]


def after(votes, assignment=None):
    """A canary at the begin of round 4, in which round 3 had these votes of devices, all in one cluster by default."""
    canary = Canary(lambda: dict.fromkeys(votes, 0) if assignment is None else assignment)
    canary.begin(3)
    for client in votes:
        assert told(canary, client) == 0
    for client, vote in votes.items():
        config = {} if vote is None else {"in-use-vote": vote}
        canary.incoming(ClientReply(client, 1, np.zeros(2, dtype=np.float32), (), 1, {}, config))
    canary.begin(4)
    return canary


@pytest.mark.parametrize(
    ("votes", "held"),
    [
        ({"a": -1, "b": -1, "c": 1}, 3),
        ({"a": 1, "b": 1, "c": -1}, 0),
        ({"a": 1, "b": -1, "c": 0}, 3),
        ({"a": None, "b": None}, 3),  # who cannot compare is against nobody
        ({"liar": 10**9, "a": -1, "b": 0}, 3),
        ({"liar": -(10**9), "a": 1, "b": 0}, 0),
        ({"liar": "1", "a": 0}, 3),
    ],
)
def test_what_a_majority_finds_worse_does_not_hold(votes, held):
    canary = after(votes)
    assert {told(canary, client) for client in votes} == {held}
    assert told(canary, "new") == 0


def test_each_cluster_votes_for_itself():
    canary = after({"a": 1, "b": 1, "c": -1, "new": -1}, {"a": 0, "b": 0, "c": 1})
    assert [told(canary, client) for client in ("a", "b", "c", "new")] == [0, 0, 3, 3]


def test_what_held_stays_until_something_newer_holds_and_outlasts_a_restart():
    again = Canary(lambda: {"a": 0})
    before = after({"a": -1})
    again.load(*before.dump())
    again.begin(5)
    again.begin(5)  # nobody answered, and the round begins again
    assert (told(again, "a"), told(again, "a", trains=False)) == (3, 3)
