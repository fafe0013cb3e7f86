"""One round of a strategy: what was sent to whom, and what became of the replies. A new one begins with the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import TypeVar

from flwr.app import Message
from flwr.common.logger import log

from bouquet.common.compression.delta import Find
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply, Instruction
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.error_replies import cannot_be_read
from bouquet.strategies.base.exchange import Patience
from bouquet.strategies.base.exclusion import Exclusion
from bouquet.strategies.base.filters.filter import Filter
from bouquet.strategies.base.filters.placing import Placing
from bouquet.strategies.base.late_replies import Awaited, LateReplies, moved
from bouquet.strategies.base.method import Ask, MethodHooks, State
from bouquet.strategies.base.nodes import NameOf, Nodes, Resting
from bouquet.strategies.base.replies import Replies, Rows
from bouquet.strategies.base.reply_checks import read_reply, refused
from bouquet.strategies.base.sampling import Sampling
from bouquet.strategies.base.work_budget import WorkBudget

Kind = TypeVar("Kind", bound=Filter)


@dataclass
class Round:
    """A round of training, or of evaluation. Nothing of it survives into the next one, and a checkpoint has none of it.

    ``preliminary`` are the messages of the exchange inside the round (`MethodHooks.prepare`) with their replies,
    ``identification`` those that asked devices who they are.
    """

    number: int = 0
    planned: dict[int, tuple[str, Instruction]] = field(default_factory=dict)  # node → its client, and what it was sent
    sampled: int = 0  # how many clients were asked to train
    preliminary: list[Message] = field(default_factory=list)
    identification: list[Message] = field(default_factory=list)
    replies: Replies | None = None  # the usable ones, of training
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # client → what it reports of an evaluation
    failures: dict[str, str] = field(default_factory=dict)  # client → why nothing usable came
    not_now: dict[str, Resting] = field(default_factory=dict)  # clients whose owners do not let them work; no failures
    limited: dict[str, float] = field(default_factory=dict)  # client → the share of its step that was left of it
    came_late: dict[str, int] = field(default_factory=dict)  # client → how many rounds late its reply came
    warnings: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)  # by the server's checks
    failing: set[str] = field(default_factory=set)  # by their own word
    rested: set[str] = field(default_factory=set)  # after they were asked to train

    @property
    def counted(self) -> set[str]:
        """The clients whose replies to the training counted."""
        return set(self.replies.clients if self.replies else ()) - self.refused

    def forget(self, clients: Iterable[str]) -> None:
        """Drop what is noted of these clients: a question that they could not answer keeps nobody from training."""
        for noted in (self.refused, self.failing):
            noted.difference_update(clients)
        for client in clients:
            self.failures.pop(client, None)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Note the clients whose replies the server's checks did not take, and why."""
        self.failures |= reasons
        self.refused |= set(reasons)


@dataclass(eq=False, repr=False)
class Receiver(MethodHooks[State], Sampling):
    """The part of `bouquet.strategies.base.strategy.MethodStrategy` that reads replies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Set by a server whose settings ask for them; what filters remember survives a round beside the state.
        self.filters: list[Filter] = []
        self.late = LateReplies()
        self.budget: WorkBudget | None = None
        self.round_patience = Patience(self.round_timeout)  # how long an exchange waits for replies
        self.exclusion = Exclusion()
        # What a node is called, by its id and what it says of itself; set by a server that knows it from the node's
        # key. It wins over what a reply says.
        self.names: NameOf | None = None
        self.state: State | None = None  # all that survives a round
        self.train_round = Round()  # the last round of training, or the one in progress
        self.evaluate_round = Round()  # and of evaluation
        self._now = self.train_round  # the one of the two that began last
        self._nodes = Nodes()

    def filter_of(self, kind: type[Kind]) -> Kind | None:
        """The filter of a class; None where there is none."""
        return next((each for each in self.filters if isinstance(each, kind)), None)

    def warn(self, text: str) -> None:
        """Tell whoever watches the run: in Flower's log, and in the record of the round."""
        log(WARNING, "%s", text)
        self.train_round.warnings.append(text)

    @property
    def _find_copy(self) -> Find | None:
        """What finds a model by its digest, where a filter keeps those that devices hold."""
        return next((each.find for each in self.filters if each.find), None)

    def _choices(self, state: State, clients: Sequence[str], free: Sequence[str], ask: Ask) -> dict[str, int]:
        """Client → the cluster that it chose (`Placing`): of the round's ``clients`` those that are new or changed.

        Of the others that are ``free``, which has all that are at no task, those whose data changed. Who is asked
        because others changed, or because its cluster is ``doubted``, and stays, has chosen nothing: what is known of
        it and its personal model are kept.
        """
        if (placing := self.filter_of(Placing)) is None:
            return {}
        placing.doubt(self.doubted(state))
        beside, clusters = placing.beside - placing.changed, self.assignment(state)
        centers = self.centers(state)
        able = [client for client in free if client in self._nodes.judging]
        others = {*free} - {*clients}
        questions = placing.questions(able, others | {*clusters}, centers)
        chosen = ask(questions).choices(len(centers)) if questions else {}
        self.train_round.forget(questions)
        chosen = {client: k for client, k in chosen.items() if client not in beside or clusters.get(client) != k}
        placing.anew |= chosen.keys()
        return chosen

    def _without_changed(self, replies: Replies) -> Replies:
        """The replies that count: not those of clients whose data changed just now (`Placing`)."""
        if (placing := self.filter_of(Placing)) is None or self.state is None:
            return replies
        count, said = placing.judge(replies.received, self.assignment(self.state), self.centers(self.state))
        if said:
            self.warn(said)
        return replies if all(count) else replies.only(count)

    def _read(self, layout: ParameterLayout, messages: Iterable[Message]) -> Replies:
        """The usable replies; for every other one, its reason goes to the round's ``failures``."""
        now = self._now
        usable: dict[str, ClientReply] = {}
        rows = Rows(layout, (client for client, _ in self._now.planned.values()))
        sent: dict[str, Instruction] = {}
        find = self._find_copy
        for message in messages:
            late = self.late.of(message)
            planned = (late.client, late.instruction) if late else now.planned.get(message.metadata.src_node_id)
            arrival = Arrival.of(message)
            client = self._nodes.name(arrival, self.names)
            for each in self.filters:
                each.arrived(client, arrival)
            if self._note_rest(client, arrival):
                continue
            try:
                upload = planned[1].upload if planned else None
                reply = read_reply(arrival, layout, upload, self.weighted_by_key, self.arrayrecord_key, find)
                if client in usable:
                    raise BouquetError(f"Another node replied as {client!r} in this round; the first one counts.")
                reply = replace(reply, client=client)
                if self.budget:
                    self.budget.note(reply)
                if late:
                    reply, planned = self._moved(reply, late, layout)
                for each in self.filters:
                    reply = each.incoming(reply)
                usable[client] = rows.take(reply, planned[0] if planned else "")
                if planned:
                    sent[client] = planned[1]
                if late:
                    now.came_late[client] = now.number - late.round
                self._note_usable(client, message)
            except BouquetError as error:
                now.failures[client] = refused(error)
                self._note_unusable(client, arrival)
                # A reply with content failed the server's checks; one without is an error that the device reports.
                (now.refused if message.has_content() or cannot_be_read(message) else now.failing).add(client)
        return replace(rows.replies(usable, sent), late=dict(now.came_late))

    def _moved(
        self, reply: ClientReply, late: Awaited, layout: ParameterLayout
    ) -> tuple[ClientReply, tuple[str, Instruction]]:
        """A reply to an older task as one to what its client would be sent now."""
        assert self.state is not None
        current = self.plan(self.state, self._now.number, [reply.client]).get(reply.client, late.instruction)
        return replace(reply, vector=moved(reply, late.instruction, current, layout, self.trained_record(reply))), (
            late.client,
            current,
        )

    def _note_rest(self, client: str, arrival: Arrival) -> bool:
        """Whether the device says that its owner does not let it work now: no reply, and no failure."""
        resting = self._nodes.resting.get(arrival.message.metadata.src_node_id)
        if arrival.rest is None or resting is None:
            return False
        self._now.not_now[client] = resting
        self._now.rested.add(client)
        self._note_unusable(client, arrival)
        return True

    def _note_usable(self, client: str, message: Message) -> None:
        self._nodes.forgive(message)
        for each in self.filters:
            each.answered(client)

    def _note_unusable(self, client: str, arrival: Arrival) -> None:
        for each in self.filters:
            each.lost(client, arrival)

    def _note_refusals(self, round_: int) -> None:
        now, counted = self.train_round, self.train_round.counted
        late = map(self._client, self.round_patience.waited_for)
        failing = sorted(now.failing - counted)
        self.exclusion.note(round_, sorted(now.refused), sorted(counted), failing, now.failures, late)
        self.round_patience.waited_for.clear()

    def _client(self, node: int) -> str:
        return self._now.planned[node][0] if node in self._now.planned else self._nodes.name_of(node)
