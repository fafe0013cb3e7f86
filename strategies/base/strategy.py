"""The Flower side of every method: a `flwr.serverapp.strategy.Strategy` around the hooks of `strategies.base.method`.

Sampling, waiting, identities, the checks of what arrives and Flower's own hooks are here, written once.

A `MethodStrategy` takes the place of FedAvg in any Flower ServerApp. Where a method needs nothing special of a
client, an unmodified Flower ClientApp works with it: ``arrays`` and ``config`` in, ``arrays`` and ``metrics`` with
``num-examples`` out. Where it does (`device_needs`), devices are asked what they can do before they are sent anything.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import Encoder, Instruction
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.capabilities import undeclared
from bouquet.common.wire.flower import content_of
from bouquet.strategies.base.exchange import exchange
from bouquet.strategies.base.filters.filter import OutgoingInstruction
from bouquet.strategies.base.late_replies import Awaited
from bouquet.strategies.base.method import Outcome, State
from bouquet.strategies.base.nodes import IDENTIFY_TIMEOUT
from bouquet.strategies.base.participants import Participants
from bouquet.strategies.base.protection import Protection
from bouquet.strategies.base.replies import Replies, mean_metrics
from bouquet.strategies.base.reply_checks import read_metrics, refused
from bouquet.strategies.base.round import Round
from bouquet.strategies.base.sampling import EVALUATE_STREAM, TRAIN_STREAM, fewest_replies, sample_clients
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.mathematics.aggregation import mean_of_centers
from bouquet.strategies.mathematics.robust import Aggregation


@dataclass(eq=False, repr=False)
class MethodStrategy(Participants[State], Strategy):
    """A Flower strategy made of a state and the hooks of `bouquet.strategies.base.method.MethodHooks`.

    Subclasses define `initial_state`, `plan` and `update`, those with clusters also `centers` and `assignment`, and the
    class attribute ``state_class``; the other hooks have defaults. Parameters: see
    `bouquet.strategies.base.sampling.Sampling`.

    Examples
    --------
    A whole method: one model, moved half of the way to the mean.

    >>> @dataclass(frozen=True)
    ... class OneModel:
    ...     centers: bouquet.Matrix  # (1, d)
    >>> class HalfWay(bouquet.MethodStrategy[OneModel]):
    ...     state_class = OneModel
    ...
    ...     def initial_state(self, layout, initial):
    ...         return OneModel(initial[None])
    ...
    ...     def plan(self, state, round_, clients):
    ...         return {client: bouquet.one_model(state.centers[0]) for client in clients}
    ...
    ...     def update(self, state, round_, replies):
    ...         return OneModel((state.centers + replies.W.mean(axis=0)) / 2)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.protection = Protection()  # how far one client may move the others' models
        self._rule_asked_for, self._updates = False, 0
        self.run_id = ""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse an attribute that would hide a hook, such as an option of a user's own with a hook's name."""
        if inspect.isfunction(getattr(MethodStrategy, name, None)):
            raise BouquetError(
                f"{type(self).__name__}.{name} cannot be set: {name!r} is a hook of MethodStrategy; give the "
                "attribute another name."
            )
        super().__setattr__(name, value)

    # --- Flower's hooks, written once -----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients and build each one's message."""
        self.train_round = self._now = now = Round(server_round, identification=self._early_identification)
        self._early_identification = []
        layout, state = self._begin(arrays)
        for each in self.filters:
            each.begin(server_round)
        if self.fraction_train == 0.0:
            return []
        nodes = self._available(grid, self.min_train_nodes, self.fraction_train < 1)
        for client in list(nodes):
            if (reason := self.exclusion.reason(client, server_round)) is not None:
                now.failures[client] = reason
                del nodes[client]
        shares = {node: self.exclusion.share(client) for client, node in nodes.items()}
        self.round_patience.shares.clear()
        self.round_patience.shares.update((node, share) for node, share in shares.items() if share < 1)
        clients = sample_clients(
            list(nodes), self.fraction_train, self.min_train_nodes, self.seed, server_round, TRAIN_STREAM
        )
        at_work = self.late.clients
        clients, free = ([client for client in group if client not in at_work] for group in (clients, nodes))
        now.sampled = len(clients)

        def ask(instructions: Mapping[str, Instruction], most: float = math.inf) -> Replies:
            messages = self._messages(layout, nodes, instructions, server_round, config, MessageType.TRAIN)
            patience = replace(
                self.round_patience, timeout=min(most, self.round_patience.timeout), question=math.isfinite(most)
            )
            replies, silent = exchange(grid, messages, patience)
            now.preliminary += [*messages, *replies]
            self.give_up(silent)
            return self._read(layout, replies)

        placed = self._choices(state, clients, free, lambda questions: ask(questions, IDENTIFY_TIMEOUT))
        state = self.placed(state, placed) if placed else state
        self.state = state = self.prepare(state, server_round, clients, ask)
        instructions = self.plan(state, server_round, clients)
        log(INFO, "configure_train: %s of %s clients", len(instructions), len(nodes))
        return self._messages(layout, nodes, instructions, server_round, config, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the state, and return the mean of the centers as one plain model."""
        if self.state is None or self.layout is None:
            raise BouquetError("aggregate_train was called before configure_train: there is no model yet.")
        read = self._read(self.layout, replies)
        if self.budget:
            read = self.budget.normalised(read, {reply.client: self.trained_record(reply) for reply in read.received})
        screened = self.protection.screen(read, self.assignment(self.state))
        now, usable = self.train_round, screened.replies
        now.replies, now.limited = usable, screened.limited
        now.refuse(screened.refused)
        for client, reason in now.failures.items():
            log(WARNING, "round %s goes on without %s: %s", server_round, client, reason)
        expected = now.sampled - len(now.rested)
        expected = self.replies_to_end(expected + len(self.late.awaited)) or expected
        if len(usable) < (least := fewest_replies(self.min_replies, expected)):
            if usable:
                share = "" if least == self.min_replies else f" of {expected} ({least})"
                self.warn(
                    f"{len(usable)} usable replies, fewer than min_replies = {self.min_replies}{share}: the "
                    "models stay as they were."
                )
            self._note_refusals(server_round)
            return None, None
        counted = self._without_changed(usable)
        outcome = self.update(self.state, server_round, counted) if len(counted) else self.state
        if isinstance(outcome, Outcome):
            now.refuse(outcome.refused)
            outcome = outcome.state
        self.state = outcome
        self._note_unused_rule()
        self._note_refusals(server_round)
        reported = [(reply.num_examples, reply.metrics) for reply in usable.received]
        return self.arrays(), mean_metrics(reported, self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each sampled client the model it would use, to be tested."""
        self.evaluate_round = self._now = Round(server_round)
        if self.fraction_evaluate == 0.0:
            return []
        layout, state = self._begin(arrays)
        nodes = self._available(grid, self.min_evaluate_nodes, self.fraction_evaluate < 1)
        clients = sample_clients(
            list(nodes), self.fraction_evaluate, self.min_evaluate_nodes, self.seed, server_round, EVALUATE_STREAM
        )
        instructions = self.plan_evaluate(state, server_round, clients)
        return self._messages(layout, nodes, instructions, server_round, config, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Collect each client's metrics; the returned record is their mean, weighted by examples."""
        for message in replies:
            arrival = Arrival.of(message)
            client = self._nodes.name(arrival, self.names)
            if self._note_rest(client, arrival):
                continue
            try:
                self.evaluate_round.scores[client] = read_metrics(message, self.weighted_by_key)
                self._note_usable(client, message)
            except BouquetError as error:
                self.evaluate_round.failures[client] = reason = refused(error)
                self._note_unusable(client, arrival)
                log(WARNING, "evaluation of round %s goes on without %s: %s", server_round, client, reason)
        reported = [(int(metrics[self.weighted_by_key]), metrics) for metrics in self.evaluate_round.scores.values()]
        return mean_metrics(reported, self.weighted_by_key)

    def summary(self) -> None:
        """Log the hyper-parameters."""
        for name, value in sorted(vars(self).items()):
            if isinstance(value, int | float | str) and not name.startswith("_"):
                log(INFO, "\t├── %s: %s", name, value)

    # --- what the server beside Flower's loop needs ----------------------------------------------------------

    def arrays(self) -> ArrayRecord:
        """The mean of the centers as one plain model; the initial model for a method whose server holds none."""
        if self.state is None or self.layout is None:
            raise BouquetError("There is no model before the first round.")
        centers = self.centers(self.state)
        if not len(centers):
            assert self._initial is not None
            return self._initial
        return protocol.to_record(self.layout, mean_of_centers(centers))

    def checkpoint(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """The state as arrays and JSON."""
        if self.state is None:
            raise BouquetError("There is no state before the first round.")
        arrays, rest = dump_state(self.state)
        for each in filter(lambda each: each.key, self.filters):
            more, rest[each.key] = each.dump()
            arrays |= {f"{each.key}/{name}": array for name, array in more.items()}
        return arrays, rest

    def restore(self, layout: ParameterLayout, arrays: dict[str, NDArray[Any]], rest: dict[str, Any]) -> None:
        """Continue from what `checkpoint` gave."""
        self.layout = layout
        self.state = load_state(self.state_class, arrays, rest)
        for each in filter(lambda each: each.key in rest, self.filters):  # a run may go on with others
            prefix = f"{each.key}/"
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            each.load(own, rest[each.key])

    @property
    def node_names(self) -> Mapping[int, str]:
        """Node id → client, for every node that was ever seen."""
        return self._nodes.clients

    @property
    def aggregation(self) -> Aggregation:
        """The rule of the protection, which compares models by their parameters; that a method asks for it is noted."""
        self._rule_asked_for = True
        compared = None if self.layout is None else self.layout.parameter_columns
        return replace(self.protection.aggregation, compared=compared)

    def give_up(self, silent: Mapping[int, str]) -> None:
        """Note the nodes that never answered, with the reason, as failures of this round."""
        for node, reason in silent.items():
            self._now.failures[self._client(node)] = reason

    def replies_to_end(self, at_work: int) -> int | None:
        """How many replies end a round in which so many clients are at work; None where all of them are waited for.

        A buffer holds once the method `wants_late` replies: until then a late one would be work for nothing.
        """
        return None if self.state is not None and not self.wants_late(self.state) else self.late.enough(at_work)

    def end_round(
        self, round_: int, messages: Sequence[Message], answered: Collection[str], silent: Mapping[int, str], now: float
    ) -> None:
        """After a round of training, at the time ``now``: with a buffer, what was not answered counts when it comes.

        ``answered`` are the identifiers of the messages that were; of the ``silent`` nodes nothing will come.
        """
        planned, timeout = self.train_round.planned, self.round_patience.timeout
        self.give_up(self.late.end_round(round_, messages, planned, answered, silent, now, timeout))
        for each in self.filters:
            each.await_late(self.late.clients)

    def was_sent(self, client: str, node: int, round_: int, content: bytes, until: float) -> None:
        """After a restart: a client was at work on this, and is not asked for anything else ``until`` it replies."""
        assert self.layout is not None
        self._nodes.clients[node] = client  # asked who it is, it would answer when it has done its work
        message = Message(content_of(content), dst_node_id=node, message_type=MessageType.TRAIN)
        find = self._find_copy
        received = protocol.read_instruction(message, self.layout, find and (lambda run, digest: find(digest)))
        for each in self.filters:
            each.sent_before(client, received.models)
        sent = Instruction(received.models, upload=received.upload)
        self.late.interrupted.append(Awaited(client, sent, node, round_, until, content))

    # --- inside ----------------------------------------------------------------------------------------------

    def _begin(self, arrays: ArrayRecord) -> tuple[ParameterLayout, State]:
        self._initial = arrays if self._initial is None else self._initial
        if self.layout is None or self.state is None:
            tensors = protocol.from_record(arrays)
            self.layout = ParameterLayout.of(tensors, self.parameter_names)
            self.state = self.initial_state(self.layout, self.layout.flatten(tensors))
        return self.layout, self.state

    def _note_unused_rule(self) -> None:
        """Say, after three rounds, that a method has never asked for the rule that was set: nobody would notice."""
        self._updates += 1
        if self._updates == 3 and self.protection.aggregation.most_weight is not None and not self._rule_asked_for:
            self.warn(
                f"{type(self).__name__} has not taken a mean by self.aggregation in three rounds: the rule of "
                "[protection] and its cap on weights do nothing in this run."
            )

    def _messages(
        self,
        layout: ParameterLayout,
        nodes: Mapping[str, int],
        instructions: Mapping[str, Instruction],
        round_: int,
        config: ConfigRecord,
        kind: str,
    ) -> list[Message]:
        encoder = Encoder(layout, self.arrayrecord_key, self.configrecord_key)
        messages = []
        knows_devices = self.identify or self._nodes.needs
        if self.budget and kind == MessageType.TRAIN:
            instructions = self.budget.ask(instructions)
        for client, instruction in instructions.items():
            if not (instruction.is_plain or knows_devices):
                raise BouquetError(undeclared(type(self).__name__))
            sent = OutgoingInstruction(layout, client, kind == MessageType.TRAIN, instruction)
            for each in self.filters:
                sent = each.outgoing(sent)
            self._now.planned[nodes[client]] = (client, sent.instruction)
            content = encoder.content(sent.instruction, round_, self.run_id, dict(config), sent.packing, sent.backbone)
            messages.append(Message(content, dst_node_id=nodes[client], message_type=kind, ttl=self.round_timeout))
        return messages
