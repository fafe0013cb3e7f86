"""A grid inside this process: every node is a function from message to reply.

Two uses: simulating clients one after another, without the seconds that Ray takes to start, and testing strategies
with scripted clients that fail, answer late, answer nonsense or never answer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Received
from bouquet.common.wire.flower import empty_run, sent, speak_as_server

Handler = Callable[[Message], Message | None]
Work = Callable[[], Message | None]
Together = Callable[[Sequence[Work]], list[Message | None]]


def _one_after_another(work: Sequence[Work]) -> list[Message | None]:
    return [do() for do in work]


class InlineGrid(Grid):
    """A Flower `Grid` whose nodes are the given handlers; one that returns None never answers.

    A handler runs when its reply is asked for, so that replies need not be held together; ``delays`` keeps a node's
    back for so many seconds. With ``together``, up to ``at_once`` messages of one type are answered by one call of it,
    each a function without arguments.

    Examples
    --------
    Two clients that train to 1 and to 3, and the mean of their models:

    >>> layout = bouquet.ParameterLayout.of({"layer.weight": np.zeros((1, 1), np.float32)})
    >>> ones = bouquet.scripted_client("a", layout, lambda model, received: model + 1)
    >>> threes = bouquet.scripted_client("b", layout, lambda model, received: model + 3)
    >>> strategy = bouquet.FedAvg()
    >>> initial = ArrayRecord({"layer.weight": Array(np.zeros((1, 1), np.float32))})
    >>> result = strategy.start(bouquet.InlineGrid({1: ones, 2: threes}), initial, num_rounds=1)
    >>> result.arrays["layer.weight"].numpy().item()
    2.0
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        delays: Mapping[int, float] | None = None,
        together: Together | None = None,
        at_once: int = 1,
    ) -> None:
        self.handlers = dict(handlers)
        self.delays = dict(delays or {})
        self.together = together or _one_after_another
        self.at_once = at_once
        self._identifiers = itertools.count(1)
        speak_as_server()
        self._due: dict[str, float] = {}  # when each message that waits for its reply may have it
        self._unanswered: dict[str, Message] = {}
        self._replies: dict[str, Message | None] = {}

    def set_run(self, run: Any) -> None:
        """There is only one run."""

    @property
    def run(self) -> Any:
        """An empty run."""
        return empty_run()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.handlers)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take each message; a node that is not there takes none. A notice, which nobody waits for, is read at once."""
        identifiers = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.handlers:
                identifiers.append("")
                continue
            identifier = f"message-{next(self._identifiers)}"
            identifiers.append(identifier)
            sent(message, identifier)
            if message.metadata.message_type == protocol.NOTICE:
                self.handlers[node](message)
                continue
            self._due[identifier] = time.monotonic() + self.delays.get(node, 0.0)
            self._unanswered[identifier] = message
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Replies that are due, each once, and made when it is its turn."""
        for identifier in message_ids:
            if self._due.get(identifier, float("inf")) > time.monotonic():
                continue
            if identifier in self._unanswered:
                self._answer(identifier)
            del self._due[identifier]
            if (reply := self._replies.pop(identifier)) is not None:
                yield reply

    def _answer(self, first: str) -> None:
        """Have the message answered, and with it others of its type that are due."""
        now, kind = time.monotonic(), self._unanswered[first].metadata.message_type
        alike = (i for i, m in self._unanswered.items() if m.metadata.message_type == kind and self._due[i] <= now)
        others = itertools.islice((i for i in alike if i != first), self.at_once - 1)
        group = [first, *others]
        messages = [self._unanswered.pop(identifier) for identifier in group]
        work = [partial(self.handlers[message.metadata.dst_node_id], message) for message in messages]
        self._replies |= zip(group, self.together(work), strict=True)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, and wait for every reply that will come."""
        waiting = [identifier for identifier in self.push_messages(messages) if identifier]
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while any(identifier in self._due for identifier in waiting) and time.monotonic() < deadline:
            replies += self.pull_messages(waiting)
            time.sleep(0.01)
        return replies


def scripted_client(
    name: str,
    layout: ParameterLayout,
    train: Callable[[Vector, Received], NDArray[Any]],
    metrics: Mapping[str, float] | None = None,
    seen: list[Received] | None = None,
) -> Handler:
    """A client that answers a train message with ``train(arrays, received)``, a model (d,) of this layout.

    ``arrays`` is zero where none was sent. It says who it is, has 10 samples and an accuracy of .5, reports ``metrics``
    beside, and appends each message that it reads to ``seen``.

    Examples
    --------
    A client that does not move, and one that sends what is no number:

    >>> layout = bouquet.ParameterLayout.of({"layer.weight": np.zeros((1, 1), np.float32)})
    >>> still = bouquet.scripted_client("a", layout, lambda model, received: model)
    >>> broken = bouquet.scripted_client("b", layout, lambda model, received: model * np.nan)
    >>> strategy = bouquet.FedAvg(identify=True)
    >>> initial = ArrayRecord({"layer.weight": Array(np.zeros((1, 1), np.float32))})
    >>> result = strategy.start(bouquet.InlineGrid({1: still, 2: broken}), initial, num_rounds=1)
    >>> strategy.train_round.failures
    {'b': "Tensor 'layer.weight' holds values that are not finite."}
    """

    def handle(message: Message) -> Message:
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, name, {})
        received = protocol.read_instruction(message, layout)
        if seen is not None:
            seen.append(received)
        values: dict[str, float] = {protocol.NUM_EXAMPLES: 10, **(metrics or {})}
        if message.metadata.message_type == MessageType.EVALUATE:
            return protocol.reply(message, name, {**values, protocol.ACCURACY: 0.5})
        sent = received.models.get(protocol.ARRAYS)
        start = np.zeros(layout.dim, dtype=np.float32) if sent is None else sent.vector
        trained = np.asarray(train(start, received), dtype=np.float32)
        record = protocol.to_record(layout, trained, received.upload) if received.upload else None
        return protocol.reply(message, name, values, record)

    return handle


def app_handlers(client_app: ClientApp, contexts: Mapping[int, Context]) -> dict[int, Handler]:
    """Handlers that run a ClientApp; an exception in it becomes the error reply that a SuperNode would send."""

    def handler(context: Context) -> Handler:
        def handle(message: Message) -> Message:
            try:
                return client_app(message, context)
            except Exception as error:
                return Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=message)

        return handle

    return {node: handler(context) for node, context in contexts.items()}
