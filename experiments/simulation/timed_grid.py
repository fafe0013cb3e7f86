"""A simulated fleet with a time of its own: each device computes and sends at its own speed, in virtual seconds.

A device trains one message after another. It receives the message's bytes, trains, and sends the reply's bytes.
Training takes its samples, in all local epochs, over its speed. All else (tests, who it is) takes no time.
So a hundred devices for a day take minutes here, and the same settings give the same order of arrivals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flwr.app import Message, MetricRecord

from bouquet.common.protocol import CONFIG, LOCAL_STEPS, NUM_EXAMPLES, TRAIN_SECONDS
from bouquet.common.protocol.records import config_of, records_of, size_of
from bouquet.experiments.simulation.inline_grid import Handler, InlineGrid, Together

MEGABIT = 1e6 / 8  # bytes


class TimedGrid(InlineGrid):
    """An `InlineGrid` in virtual time.

    Parameters
    ----------
    handlers : Mapping[int, Handler]
        Node → what answers its messages.
    speeds : Sequence[float]
        Training samples a second, of one device after another, from the first again where they end.
    links : Sequence[float]
        Mbit/s up and down, likewise; none: sending takes no time.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        speeds: Sequence[float],
        links: Sequence[float] = (),
        together: Together | None = None,
        at_once: int = 1,
    ) -> None:
        super().__init__(handlers, together=together, at_once=at_once)
        self.now = 0.0
        self._speeds = {node: speeds[i % len(speeds)] for i, node in enumerate(self.handlers)}
        self._links = {node: links[i % len(links)] * MEGABIT for i, node in enumerate(self.handlers)} if links else {}
        self._sent: dict[str, tuple[float, Message]] = {}  # when, and what
        self._free = dict.fromkeys(self.handlers, 0.0)  # when each device is done with what it was given so far

    def clock(self) -> float:
        """Virtual seconds since the start."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass, up to the next reply."""
        self.now = min([self.now + seconds, *(due for due in self._arrivals().values() if due > self.now)])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take each message at this moment."""
        outgoing = list(messages)
        identifiers = list(super().push_messages(outgoing))
        self._sent |= {i: (self.now, m) for i, m in zip(identifiers, outgoing, strict=True) if i in self._unanswered}
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Replies that have arrived by now, in the order of their arrival."""
        arrivals = self._arrivals()
        due = [i for i in message_ids if arrivals.get(i, float("inf")) <= self.now]
        for identifier in sorted(due, key=lambda i: arrivals[i]):
            del self._due[identifier], self._sent[identifier]
            if (reply := self._replies.pop(identifier)) is not None:
                yield reply

    def give_up(self, message_ids: Iterable[str]) -> None:
        """Devices stop working on these messages."""
        for identifier in message_ids:
            if self._due.pop(identifier, None) is not None:
                node = self._sent.pop(identifier)[1].metadata.dst_node_id
                self._free[node] = min(self._free[node], self.now)
                self._replies.pop(identifier, None)
                self._unanswered.pop(identifier, None)

    def _arrivals(self) -> dict[str, float]:
        """When the reply to each message arrives; whatever was not answered yet is answered now."""
        while self._unanswered:
            before = set(self._replies)
            self._answer(next(iter(self._unanswered)))
            for identifier in [i for i in self._sent if i in self._replies and i not in before]:
                self._due[identifier] = self._arrival(identifier)
        return self._due

    def _arrival(self, identifier: str) -> float:
        at, message = self._sent[identifier]
        node, reply = message.metadata.dst_node_id, self._replies[identifier]
        if message.metadata.message_type != "train" or reply is None or not reply.has_content():
            return at
        link = self._links.get(node, float("inf"))
        begins = max(self._free[node], at + size_of(message.content) / link)
        asked, records = config_of(message.content, CONFIG), [*records_of(reply.content, MetricRecord).values()]
        counts = [record.get(NUM_EXAMPLES, 0) for record in records]
        samples = sum(count for count in counts if not isinstance(count, list)) * int(asked.get("local-epochs", 1))
        if steps := asked.get(LOCAL_STEPS):
            samples = min(samples, steps * int(asked.get("batch-size", 1)))
            records[0][TRAIN_SECONDS] = samples / self._speeds[node]
        self._free[node] = begins + samples / self._speeds[node] + size_of(reply.content) / link
        return self._free[node]
