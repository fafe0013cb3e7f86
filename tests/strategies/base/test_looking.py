"""Who is asked what its samples look like, in memory."""

import numpy as np

from bouquet.common.data.looks import to_bytes
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, Instruction
from bouquet.strategies.base.filters.filter import OutgoingInstruction
from bouquet.strategies.base.filters.looking import Looking

LOOK = np.arange(64, dtype=np.float32)


class Fleet:
    """Who is where, and the filter that is told so."""

    def __init__(self, **clusters):
        self.clusters = clusters
        self.filter = Looking(lambda: self.clusters, lambda: len({*self.clusters.values()}))
        self.round = 0

    def asked(self, *clients, trains=True):
        self.round += 1
        self.filter.begin(self.round)
        layout = ParameterLayout.of({"only": np.zeros(2, dtype=np.float32)})
        plain = Instruction(config={"x": 1})
        sent = {c: self.filter.outgoing(OutgoingInstruction(layout, c, trains, plain)).instruction for c in clients}
        return [client for client, one in sent.items() if one.config == {"x": 1, "look": True}]

    def say(self, client, look=None):
        content = to_bytes(LOOK) if look is None else look
        self.filter.incoming(ClientReply(client, 1, np.zeros(2, dtype=np.float32), (), 1, {}, {"look": content}))


def test_a_device_is_asked_once_and_again_in_another_cluster():
    fleet = Fleet(a=0, b=1)
    assert fleet.asked("a", "b", "new", trains=False) == []
    assert fleet.asked("a", "b", "new") == ["a", "b", "new"]
    for client in ("a", "new"):
        fleet.say(client)
    fleet.clusters["new"] = 1  # the cluster that its reply put it into
    assert fleet.asked("a", "b", "new") == ["b"]
    fleet.clusters["a"] = 1
    fleet.clusters["b"] = 0
    assert fleet.asked("a", "b", "new") == ["a", "b"]
    fleet.say("a")
    assert fleet.asked("a", "b", "new") == ["b"]


def test_while_there_is_one_cluster_nobody_is_asked_or_heard():
    fleet = Fleet(a=0, b=0)
    assert fleet.asked("a", "b") == []
    fleet.say("a")
    assert fleet.filter.looks == {}
    assert fleet.filter.known() is None


def test_what_no_honest_device_says_is_nothing():
    fleet = Fleet(a=0, b=1)
    fleet.asked("a")
    for nonsense in (b"", to_bytes(LOOK)[:-4], to_bytes(LOOK + np.inf), "look", 1):
        fleet.say("a", nonsense)
    assert fleet.asked("a") == ["a"]


def test_a_checkpoint_has_what_was_said():
    fleet, again = Fleet(a=0, b=1), Fleet(a=0, b=1)
    fleet.asked("a", "b")
    fleet.say("a")
    again.filter.load(*fleet.filter.dump())
    assert again.asked("a", "b") == ["b"]
    np.testing.assert_array_equal(again.filter.looks["a"], LOOK)
    assert again.filter.dump()[1] == {"seen_in": {"a": 0}}
