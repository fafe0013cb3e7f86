"""Which client each node is: waiting for nodes to connect, asking them who they are, and knowing it afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.capabilities import LOSS, MEANING, capabilities, meaning
from bouquet.common.protocol.error_replies import has_crashed, refuses_app
from bouquet.common.texts import plain, tags_of
from bouquet.strategies.base import reply_checks
from bouquet.strategies.base.exchange import Patience, exchange

IDENTIFY_TIMEOUT = 120.0  # seconds; a node that does not say who it is sits the round out
# Times that a node whose owner refused, or that refused and has been silent since, is not asked.
MOST_UNASKED, MOST_SILENT = 7, 15
# Seconds after which a device that does not work now is asked again, whatever it says: its owner may have changed that.
SHORTEST_REST, LONGEST_REST = 1.0, 3600.0
ASK_TAGS_AGAIN = 600.0  # seconds after which a device without a tag of the run is asked again
UNKNOWN_TAGS = "It has not said yet which tags it has."
# (node id, what the node says of itself; None before it has said anything) → its client's name; None while not known.
NameOf = Callable[[int, Mapping[str, Any] | None], str | None]


@dataclass
class Refusal:
    """Of the server's app, by a node, which is asked again; or of the run, by its owner: hardly ever, then."""

    reason: str
    unasked: int = 0  # times that it is not to be asked from now on
    lacks: bool = False  # it has another ClientApp, which cannot do what the method needs

    def is_due(self) -> bool:
        """Whether it is to be asked this time."""
        self.unasked -= 1
        return self.unasked < 0


@dataclass(frozen=True)
class Resting:
    """A node whose owner does not let it work now: why, until when (seconds since 1970), and when it is asked again."""

    reason: str
    until: float
    ask_at: float  # of the monotonic clock


@dataclass(frozen=True)
class Outside:
    """A node without a tag of the run: why it takes no part, and when it is asked again (of the monotonic clock).

    One that has not said its tags (``questions`` times in a row) is asked soon, and then ever more rarely.
    """

    reason: str
    ask_at: float
    questions: int = 0

    @classmethod
    def unknown(cls, before: Outside | None) -> Outside:
        """A node that was asked and has not said its tags, as ``before`` perhaps."""
        questions = 1 if before is None else before.questions + 1
        seconds = min(SHORTEST_REST * 2 ** min(questions, 16), ASK_TAGS_AGAIN)
        return cls(UNKNOWN_TAGS, time.monotonic() + seconds, questions)


@dataclass
class Nodes:
    """Every node that was ever seen, with its client.

    A device that comes back under a new node id is the client it was. ``refusing`` are nodes that did not run the
    server's code, or whose owner does not allow the run: they are sent no model, but asked again who they are, because
    another release may be installed by then, or the owner may allow more. One that does not answer costs the round
    `IDENTIFY_TIMEOUT`, so it is asked ever more rarely: ``silences`` counts the questions that it left unanswered, and
    its next usable reply sets that back.

    ``resting`` are nodes whose owner does not let them work now. They are sent no model, count as no failure, and are
    asked again at the time that they said. ``conditional`` are those whose owner has such conditions.

    ``tags`` are those of which a device must have one, none where all take part. Nodes without such a tag are
    ``outside``: they are sent nothing, count as no failure, and are asked again now and then, because their owners may
    have given them others. ``inside`` are those that have said one, in this process or before the server was restarted.

    ``needs`` are capabilities that a ClientApp must have (`bouquet.common.protocol.capabilities`): one that lacks some
    is ``refusing``, too.
    """

    clients: dict[int, str] = field(default_factory=dict)
    refusing: dict[int, Refusal] = field(default_factory=dict)
    silences: dict[int, int] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    resting: dict[int, Resting] = field(default_factory=dict)
    conditional: set[int] = field(default_factory=set)
    tags: frozenset[str] = frozenset()
    inside: set[int] = field(default_factory=set)
    outside: dict[int, Outside] = field(default_factory=dict)
    borrowing: set[str] = field(default_factory=set)  # clients whose ClientApp is another's inside Bouquet's
    judging: set[str] = field(default_factory=set)  # clients that can tell the loss of a model

    def to_ask(self, connected: Sequence[int], who_can: bool = False, again: bool = False) -> list[int]:
        """Those that are to be asked who they are, now; with ``who_can`` also those that may not be able to work.

        Those that refuse are asked once in so many rounds, and not ``again`` while a round is waited for.
        """
        now = time.monotonic()

        def is_due(node: int) -> bool:
            if node in self.refusing:
                return not again and self.refusing[node].is_due()
            if node in self.outside:
                return now >= self.outside[node].ask_at
            if node in self.resting:
                return now >= self.resting[node].ask_at
            return node not in self.clients or (who_can and node in self.conditional)

        return [node for node in connected if is_due(node)]

    def name_of(self, node: int) -> str:
        """The client of a node, or a name made of its id while it is not known."""
        return self.clients.get(node, f"node-{node}")

    def among(self, connected: Sequence[int]) -> dict[str, int]:
        """Client → node for the connected ones that may run the app, in order of client.

        A device's old node, which may still count as connected for a while, comes earlier and gives way.
        """
        there = set(connected) - set(self.refusing) - set(self.resting) - set(self.outside)
        nodes = {client: node for node, client in self.clients.items() if node in there}
        return dict(sorted(nodes.items()))

    def refusals(self, connected: Sequence[int]) -> dict[str, str]:
        """Client → why it is sent nothing, for the connected ones that do not run the app."""
        there = self.among(connected)
        connected = [n for n in connected if n not in self.outside or self.outside[n].reason == UNKNOWN_TAGS]
        refusing = {self.name_of(node): self.refusing.get(node) for node in connected}
        return {client: refusal.reason for client, refusal in refusing.items() if refusal and client not in there}

    def not_now(self, connected: Sequence[int]) -> dict[str, Resting]:
        """Client → why not and until when, for the connected ones whose owner does not let them work now."""
        nodes = sorted(set(connected) & set(self.resting) - set(self.outside))
        at_rest = {self.name_of(node): self.resting[node] for node in nodes}
        there = self.among(connected)
        return {client: resting for client, resting in sorted(at_rest.items()) if client not in there}

    def others(self, connected: Sequence[int]) -> dict[int, str]:
        """Node → why it takes no part in this run, for the connected ones without one of its tags."""
        return {node: self.outside[node].reason for node in connected if node in self.outside}

    def ask(
        self, grid: Grid, nodes: Sequence[int], names: NameOf | None, patience: Patience, ttl: float
    ) -> list[Message]:
        """Ask nodes who they are, and take in what they say; the messages of both ways.

        One whose answering process was killed is asked again at once.
        """
        every: list[Message] = []
        for _ in range(2):
            questions, answers = ask_who(grid, nodes, patience, ttl)
            every += [*questions, *answers]
            self.learn(nodes, answers, names)
            silent = {*nodes} - {answer.metadata.src_node_id for answer in answers}
            patience.waited_for.difference_update(silent & {*self.refusing})  # whose silence counts by itself
            if not (nodes := [answer.metadata.src_node_id for answer in answers if has_crashed(answer)]):
                break
        return every

    def learn(self, nodes: Sequence[int], answers: Sequence[Message], names: NameOf | None) -> None:
        """Take in what nodes said of themselves. A stock ClientApp answers with an error and is known by its node."""
        silent = set(nodes) - {answer.metadata.src_node_id for answer in answers}
        self.conditional -= silent  # they are sent the round's message unasked: silence then counts
        for node in silent & set(self.refusing):
            silences = self.silences.get(node, 0)
            self.refusing[node].unasked = min(2**silences - 1, MOST_SILENT)
            self.silences[node] = silences + 1
        for node in silent - self.inside if self.tags else ():
            self.outside[node] = Outside.unknown(self.outside.get(node))
        for node in silent & set(self.resting):
            self.resting[node] = replace(self.resting[node], ask_at=time.monotonic() + IDENTIFY_TIMEOUT)
        for answer in answers:
            node = answer.metadata.src_node_id
            arrival = Arrival.of(answer)
            known = names(node, arrival.about) if names else None
            before = self.clients.get(node) if answer.has_error() else None
            self.clients[node] = known or before or arrival.client
            self._note_refusal(arrival)
            self._note_tags(node, arrival)
            if has_crashed(answer):  # it is no stock ClientApp: it is one that has not said yet who it is
                self.refusing[node] = Refusal(reply_checks.reported(answer))
            # Of a device that the server knows by its key, an error is one of Bouquet's own ClientApp.
            elif node not in (*self.refusing, *self.resting) and (names is None or answer.has_content()):
                self._note_lack(node, arrival)

    def name(self, arrival: Arrival, names: NameOf | None) -> str:
        """The client that replied: as the server knows its node, else as it calls itself, which is remembered."""
        node = arrival.message.metadata.src_node_id
        self._note_refusal(arrival)
        if names is not None and (known := names(node, {})) is not None:
            self.clients[node] = known
            return known
        if arrival.is_named:
            self.clients[node] = arrival.client
        return self.clients.get(node) or arrival.client

    def forgive(self, message: Message) -> None:
        """A reply could be used: whatever its node left unanswered before no longer counts."""
        self.silences.pop(message.metadata.src_node_id, None)

    def all_lack(self) -> dict[str, str]:
        """Client → why, where no node that was ever seen has a ClientApp that can do what is needed; else none."""
        lacking = {node: refusal.reason for node, refusal in self.refusing.items() if refusal.lacks}
        return (
            {self.clients[node]: lacking[node] for node in sorted(lacking)} if set(lacking) >= set(self.clients) else {}
        )

    def _note_lack(self, node: int, arrival: Arrival) -> None:
        answer, able = arrival.message, capabilities(arrival)
        if answer.has_content() and able != frozenset(MEANING):
            self.borrowing.add(self.clients[node])
        if LOSS in able:
            self.judging.add(self.clients[node])
        if lacking := self.needs - able:
            said = f" ({reply_checks.reported(answer)})" if answer.has_error() else ""
            reason = f"Its ClientApp cannot do what the method needs: {meaning(lacking)}{said}."
            self.refusing[node] = Refusal(reason, MOST_UNASKED, lacks=True)

    def _note_tags(self, node: int, arrival: Arrival) -> None:
        if not self.tags:
            return
        before = self.outside.pop(node, None)
        if not arrival.message.has_content():  # an error, which says nothing of tags
            if node not in self.inside:
                self.outside[node] = Outside.unknown(before)
            return
        self.inside.discard(node)
        own = tags_of(arrival.about.get(protocol.TAGS))
        if self.tags & own:
            self.inside.add(node)
            return
        has = f"has the tags {', '.join(sorted(own))}" if own else "has no tag"
        reason = f"This run is of devices with one of the tags {', '.join(sorted(self.tags))}, and this one {has}."
        self.outside[node] = Outside(plain(reason), time.monotonic() + ASK_TAGS_AGAIN)

    def _note_refusal(self, arrival: Arrival) -> None:
        message = arrival.message
        node = message.metadata.src_node_id
        self.refusing.pop(node, None)
        self.resting.pop(node, None)
        if arrival.about.get(protocol.CONDITIONS) or arrival.rest:
            self.conditional.add(node)
        if arrival.rest is not None:
            seconds = min(max(arrival.rest.seconds, SHORTEST_REST), LONGEST_REST)
            reason = plain(arrival.rest.reason)
            self.resting[node] = Resting(reason, time.time() + arrival.rest.seconds, time.monotonic() + seconds)
        elif message.has_error() and refuses_app(message):
            self.refusing[node] = Refusal(reply_checks.reported(message))
        elif arrival.owners_refusal:
            self.refusing[node] = Refusal(reply_checks.told(arrival.owners_refusal), unasked=MOST_UNASKED)


def wait_for_nodes(grid: Grid, minimum: int, timeout: float) -> list[int]:
    """The nodes that are connected, once they are ``minimum``. Raises `BouquetError` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    last_count = -1
    while len(node_ids := list(grid.get_node_ids())) < minimum:
        if time.monotonic() >= deadline:
            raise BouquetError(
                f"Only {len(node_ids)} of the {minimum} nodes that a round needs are connected after {timeout:.0f} s."
            )
        if len(node_ids) != last_count:
            log(INFO, "waiting for nodes: %s connected, %s needed", len(node_ids), minimum)
            last_count = len(node_ids)
        time.sleep(0.5)
    return node_ids


def ask_who(grid: Grid, nodes: Sequence[int], patience: Patience, ttl: float) -> tuple[list[Message], list[Message]]:
    """Ask nodes who they are: the questions, and the answers of those that gave one."""
    questions = [Message(RecordDict(), dst_node_id=node, message_type=protocol.IDENTIFY, ttl=ttl) for node in nodes]
    answers, _ = exchange(grid, questions, replace(patience, timeout=min(ttl, IDENTIFY_TIMEOUT), question=True))
    return questions, answers
