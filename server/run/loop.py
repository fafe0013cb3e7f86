"""The rounds of a run: what Flower's `Strategy.start` does, with a deadline, a record, checkpoints and resume."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from logging import WARNING
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from bouquet.common import protocol
from bouquet.common.errors import BouquetError, RunFailed
from bouquet.common.settings import Settings
from bouquet.common.task.score import Score
from bouquet.common.task.task import task_of
from bouquet.server.fleet.names import Names
from bouquet.server.monitoring.diagnosis import Expected, add, diagnose, new_warnings
from bouquet.server.record.status import FINISHED, TESTING, TRAINING, WAITING, Progress, expected
from bouquet.server.record.summary import round_line, summarise
from bouquet.server.record.traffic import Bytes
from bouquet.server.record.versions import save_versions
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.build import add_canary, build_strategy, plain_starting_point, too_few, what_to_expect
from bouquet.server.run.patience import Standstill
from bouquet.server.run.resume import Remembered, open_run, save_run
from bouquet.server.run.rollback import roll_back
from bouquet.server.run.round_config import train_config
from bouquet.server.run.stop import check_stop, take_back
from bouquet.strategies.base.exchange import abandon, exchange, replies_to
from bouquet.strategies.base.strategy import MethodStrategy

if TYPE_CHECKING:
    from bouquet.server.initial_model.seed_model import PlainStart
    from bouquet.server.initial_model.torch_model import Start

MOST_FAILED_ROUNDS = 3
NOTICE_SECONDS = 600.0
LOOK_SECONDS = 0.2
PAUSE_FOR_LOOK = 100  # seconds for each that a look takes: of thousands of devices it takes a while
Follow = Callable[[dict[str, Any]], None]
Show = Callable[[dict[str, Any]], None]


def run_rounds(
    grid: Grid,
    settings: Settings,
    initial: ArrayRecord,
    record: RunRecord,
    resume: bool = False,
    follow: Follow | None = None,
    names: Names | None = None,
    start: Start | PlainStart | None = None,
    show: Show = lambda status: None,
) -> dict[str, Any]:
    """Train for ``settings.run.rounds`` rounds, evaluate every device, and return the summary.

    ``follow`` is called with each round's line, ``show`` with the status whenever it changes; ``names`` knows what the
    nodes are called; ``initial`` is of ``start``, by default
    `bouquet.server.initial_model.torch_model.starting_point`'s. Raises `BouquetError` when fewer than
    ``server.min_clients`` nodes connect in time, and for a run folder or checkpoint that does not fit.
    """
    start = start or plain_starting_point(settings)
    strategy = build_strategy(settings, start)
    if names is not None:
        strategy.names, strategy.tags = names, frozenset(settings.server.tags)
        add_canary(strategy, settings)
    remembered = open_run(strategy, settings, record, resume)
    start.save(record.folder)
    take_back(record.folder)
    run = _Run(grid, settings, strategy, record, remembered, names, initial, show)
    run.wait_for_clients(settings.server.min_clients, remembered.first_round - 1)
    run.recall_lines()
    for round_ in range(remembered.first_round, settings.run.rounds + 1):
        if run.stands_still():
            break
        line = run.round(round_)
        if follow:
            follow(line)
        run.check_progress()
        if round_ < settings.run.rounds:
            check_stop(record.folder, round_)
    summary = run.last_evaluation()
    if start.about:
        summary["start"] = dict(start.about)
    record.finish(summary, strategy, start.frozen)
    run.status.say(FINISHED, ended=time.time())
    return summary


@dataclass
class _Run:
    """One run; ``arrays`` are what the next round starts from, ``lines`` what the diagnosis looks at."""

    grid: Grid
    settings: Settings
    strategy: MethodStrategy[Any]
    record: RunRecord
    remembered: Remembered
    names: Names | None
    arrays: ArrayRecord
    show: Show
    lines: list[dict[str, Any]] = field(default_factory=list)
    early: list[str] = field(default_factory=list)  # warnings of before the first round
    told: dict[int, str] = field(default_factory=dict)  # why they take no part, as nodes know

    def __post_init__(self) -> None:
        self.clock: Callable[[], float] = getattr(self.grid, "clock", time.monotonic)  # a simulated fleet has its own
        self.started = self.clock()
        self.standstill = Standstill(self.score)

    @cached_property
    def status(self) -> Progress:
        return Progress(self.record.folder, self.settings, self.names, self.show)

    @cached_property
    def hoped(self) -> Expected:
        return what_to_expect(self.settings, self.strategy)

    @property
    def seconds(self) -> float:
        """So far, with those before it was resumed."""
        return self.remembered.seconds_before + self.clock() - self.started

    def recall_lines(self) -> None:
        """Take in the record of the rounds before, and see whether enough clients are there for the next."""
        for task in self.remembered.at_work:
            self.strategy.was_sent(*task, self.started + self.settings.server.round_timeout)
        for line in self.record.each_round():
            add(self.lines, line)
            self.standstill.add(line)
        nodes, others = self.connected()
        self.early = too_few(self.settings, self.strategy.expected_clusters, len(nodes) - len(others))

    # --- a round --------------------------------------------------------------------------------------------

    def round(self, round_: int) -> dict[str, Any]:
        """Train, evaluate where it is time for that, write the record and a checkpoint; the round's line."""
        self.wait_for_clients(1, round_ - 1)
        while True:
            self.wait_for_owners(round_ - 1)
            began = self.clock()
            self.status.say(TRAINING, round=round_, round_started=time.time(), **self.look_around())
            if said := roll_back(self.record.folder, self.strategy):
                self.early.append(said)
                save_run(self.strategy, self.settings, self.record, round_ - 1, self.remembered, self.seconds)
            times: dict[int, float] = {}
            traffic = self.train(round_, times)
            trained = self.strategy.train_round
            if trained.replies or trained.failures or not trained.not_now:
                break  # else all that were asked have stopped, as their owners have it: the round is begun again
        evaluation = None
        every = self.settings.server.evaluate_every
        if every and round_ % every == 0 and round_ < self.settings.run.rounds:
            evaluation = self.evaluate(round_, traffic)
        about = traffic, self.clock() - began, self.score, self.hoped.classes
        line = round_line(round_, self.strategy, self.remembered.groups, *about)
        line |= self.beside(times)
        before = self.lines[-1].get("assignment") or {} if self.lines else {}
        if moved := {c: before[c] for c, k in line["assignment"].items() if before.get(c, k) != k}:
            line["moved"] = moved  # client → the cluster that it was in
        if evaluation is not None:
            line["evaluation"] = evaluation
        self.add_warnings(line)
        self.standstill.add(line)
        self.record.add_round(line)
        if trained.replies:  # else nothing has changed, and a run that goes on repeats the round
            save_run(self.strategy, self.settings, self.record, round_, self.remembered, self.seconds)
        self.status.say(TRAINING, **self.look())
        return line

    def train(self, round_: int, times: dict[int, float]) -> Bytes:
        """A round of training and its bytes; ``times`` gets the seconds after which each node had answered."""
        strategy = self.strategy
        strategy.late.go_on(self.grid, self.settings.server.round_timeout, self.clock())
        messages = list(strategy.configure_train(round_, self.arrays, train_config(self.settings, round_), self.grid))
        if self.names is not None:
            save_versions(self.record.folder, strategy, round_)
        traffic = self.count(Bytes(strategy.layout), strategy.train_round.preliminary, messages)
        answered: list[str] = []
        silent: dict[int, str] = {}

        def arriving() -> Iterator[Message]:
            """Each reply is read, counted and dropped before the next one is asked for."""
            late, nodes = strategy.late, set(self.grid.get_node_ids())
            older = {message: task.node for message, task in late.awaited.items() if task.node in nodes}
            enough = getattr(self.grid, "enough", late.enough)(len(messages) + len(older))
            for reply in replies_to(self.grid, messages, strategy.round_patience, silent, times, older, enough):
                answered.append(reply.metadata.reply_to_message_id)
                yield reply
                self.count(traffic, [reply])  # the strategy knows by now who it is from
            strategy.give_up(silent)

        updated, _ = strategy.aggregate_train(round_, arriving())
        trained = strategy.train_round
        self.pass_over_removed(trained.failures)
        asked = {*strategy.late.awaited, *(message.metadata.message_id for message in messages)}
        strategy.end_round(round_, messages, answered, silent, self.clock())
        abandon(self.grid, asked - {*answered} - strategy.late.awaited.keys())
        self.arrays = updated or self.arrays
        if round_ == 1 and not trained.replies and trained.failures:
            client, reason = next(iter(sorted(trained.failures.items())))
            raise BouquetError(f"No client gave a usable reply in the first round; {client}: {reason}")
        self.learn_groups()
        return traffic

    def evaluate(self, round_: int, traffic: Bytes) -> dict[str, Any]:
        """Have every device tested; it is told how to train, because a method may adapt its model before the test."""
        strategy = self.strategy
        told = train_config(self.settings, round_)
        messages = list(strategy.configure_evaluate(round_, self.arrays, told, self.grid))
        replies, silent = exchange(self.grid, messages, strategy.round_patience)
        strategy.give_up(silent)
        strategy.aggregate_evaluate(round_, replies)
        tested = strategy.evaluate_round
        self.pass_over_removed(tested.failures)
        self.count(traffic, messages, replies)
        scores = [m[self.score.key] for m in tested.scores.values() if self.score.key in m]
        return {
            "clients": len(tested.scores),
            self.score.of("macro"): sum(scores) / len(scores) if scores else None,
            "not_evaluated": dict(sorted(tested.failures.items())),
            "not_now": {client: found.reason for client, found in tested.not_now.items()},
        }

    @property
    def score(self) -> Score:
        """The figure that models are judged by."""
        return task_of(self.settings).score

    def last_evaluation(self) -> dict[str, Any]:
        """Have every device tested after the last round; the summary of the run."""
        last = self.lines[-1]["round"] if self.lines else self.settings.run.rounds
        self.wait_for_clients(1, last)
        if not self.settings.run.is_endless:  # whose devices rest until there is something new
            self.wait_for_owners(last)
        self.status.say(TESTING, round=last, **self.look())
        self.strategy.round_patience.shares.clear()  # this once each is waited for
        traffic = Bytes(self.strategy.layout)
        abandon(self.grid, self.strategy.late.awaited)  # there is no round any more that their replies could count in
        evaluation = self.evaluate(last, traffic)
        resting = {client: f"Not now: {why}." for client, why in evaluation["not_now"].items()}
        removed = dict.fromkeys(self.names.removed() if self.names else (), "It was removed.")
        failed = removed | resting | evaluation["not_evaluated"]
        self.learn_groups()
        rounds = self.record.rounds()
        if not self.strategy.evaluate_round.scores and not rounds[-1]["replies"]:
            raise RunFailed(
                "No client gave a usable reply in the last round, and none was tested after it. When the clients are "
                "well again, --resume has them tested."
            )
        return summarise(self.settings, self.strategy, self.remembered.groups, rounds, traffic, self.seconds, failed)

    def count(self, traffic: Bytes, *messages: Iterable[Message]) -> Bytes:
        """Add the bytes of messages."""
        traffic.count([*itertools.chain(*messages)], self.strategy.node_names)
        return traffic

    def learn_groups(self) -> None:
        """True groups, where the devices' partition has them: for purity, never for training."""
        replies = self.strategy.train_round.replies
        reported = {reply.client: reply.metrics for reply in replies.received} if replies else {}
        for client, values in {**reported, **self.strategy.evaluate_round.scores}.items():
            if (group := values.get(protocol.GROUP, -1)) >= 0:
                self.remembered.groups[client] = int(group)

    # --- what is said of it -----------------------------------------------------------------------------------

    def beside(self, times: Mapping[int, float]) -> dict[str, Any]:
        """What a round's line holds beside the training: who was not there, how long each took, other releases."""
        trained, names = self.strategy.train_round, self.names
        # A server that was restarted asks its nodes again who they are: counted beside the rounds, which are the same.
        asked = self.count(Bytes(), trained.identification)
        received = trained.replies.received if trained.replies else ()
        there = {reply.client for reply in received} | set(trained.failures) | set(trained.not_now)
        found: dict[str, Any] = {"absent": [name for name in expected(names) if name not in there] if names else []}
        if asked.up or asked.down:
            found["identification_bytes"] = asked.up + asked.down
        if names is not None or self.clock is not time.monotonic:  # else simulated devices wait for each other
            found["seconds_by_client"] = {r.client: round(times[r.node], 1) for r in received if r.node in times}
        if names is not None:
            found["other_releases"] = names.other_releases(there)
        return found

    def add_warnings(self, line: dict[str, Any]) -> None:
        """Put into a round's line what is wrong with the run, and say what was not said before."""
        add(self.lines, line)
        new, self.early = [*self.early, *new_warnings(self.lines, self.hoped)], []
        self.lines[-1]["diagnosis"] = line["diagnosis"] = diagnose(self.lines, self.hoped)
        for text in new:
            log(WARNING, "%s", text)
        line["warnings"] += new

    def check_progress(self) -> None:
        """Raise `RunFailed` after `MOST_FAILED_ROUNDS` rounds running without one usable reply."""
        lines = self.lines[-MOST_FAILED_ROUNDS:]
        if len(lines) < MOST_FAILED_ROUNDS or any(line["replies"] for line in lines):
            return
        said = next((f"; {client}: {reason}" for client, reason in sorted(lines[-1]["failed"].items())), ".")
        raise RunFailed(
            f"No client gave a usable reply in {MOST_FAILED_ROUNDS} rounds running, the last one round "
            f"{lines[-1]['round']}. The checkpoint before them is kept: when the clients are well again, --resume goes "
            f"on from there{said}"
        )

    def stands_still(self) -> bool:
        """Whether the devices did no better in the last ``run.patience`` rounds than before, which is said."""
        rounds = self.standstill.rounds
        if ends := 0 < self.settings.run.patience <= rounds:
            log(WARNING, "The %s was not better in %s rounds: the run ends (run.patience).", self.score.label, rounds)
        return ends

    def look_around(self) -> dict[str, Any]:
        """Before a round: who is connected, for the status; devices are told what their owners should know."""
        there = self.look()
        if (names := self.names) is None:
            return there
        notices = dict(names.notices)
        names.notices.clear()
        self.tell(notices | dict(names.twins()))
        return there

    def tell(self, notices: Mapping[int, str]) -> None:
        """Have devices say something to their owners, by node."""
        for node, line in notices.items():
            log(WARNING, "%s", line)
            content = RecordDict({protocol.CONFIG: ConfigRecord({protocol.TEXT: line})})
            notice = Message(content, dst_node_id=node, message_type=protocol.NOTICE, ttl=NOTICE_SECONDS)
            self.grid.push_messages([notice])

    def connected(self) -> tuple[list[int], dict[int, str]]:
        """All nodes, and those that have no tag of this run, with the reason, which they are told."""
        nodes = list(self.grid.get_node_ids())
        if not self.strategy.tags:
            return nodes, {}
        if self.names is not None:
            self.strategy.have_tags(filter(self.names.has_tag, nodes))
        self.strategy.who_can(self.grid, nodes, again=True)  # those that refuse are left to the round
        others = self.strategy.others(nodes)
        self.tell(dict(others.items() - self.told.items()))
        self.told = others
        return nodes, others

    def pass_over_removed(self, failures: dict[str, str]) -> None:
        """A device whose key its owner removed is away because of that, and has not failed."""
        for client in self.names.removed() if self.names and failures else ():
            failures.pop(client, None)

    def look(self) -> dict[str, Any]:
        """Who is connected, who is missing, and who does not work now."""
        found = {c: {"reason": r.reason, "until": round(r.until)} for c, r in self.strategy.train_round.not_now.items()}
        nodes = list(self.grid.get_node_ids())
        return {**self.status.look(nodes, self.strategy.others(nodes)), "not_now": found}

    def wait_for_owners(self, done: int) -> None:
        """Wait until ``server.min_clients`` of the connected devices may work, or all of them where they are fewer.

        For as long as that takes: a device that works at night is well by day. ``done`` rounds are behind.
        """
        if self.names is None:  # in a simulation nobody has such an owner
            return
        least, endless = self.settings.server.min_clients, self.settings.run.is_endless
        for look in itertools.count():
            able = self.strategy.who_can(self.grid, [*self.grid.get_node_ids()], look > 0, all_=endless and not look)
            if len(able) >= (least if endless else min(least, len(able) + len(self.strategy.train_round.not_now))):
                return
            self.status.say(WAITING, **self.look())
            check_stop(self.record.folder, done)
            time.sleep(LOOK_SECONDS)

    def wait_for_clients(self, needed: int, done: int) -> None:
        """Wait for so many nodes: for ``server.min_clients`` at first, later for any. ``done`` rounds are behind."""
        server = self.settings.server
        deadline = time.monotonic() + (math.inf if done and self.settings.run.is_endless else server.wait_for_clients)
        while True:
            began = time.monotonic()
            every, others = self.connected()
            if len(nodes := [node for node in every if node not in others]) >= needed:
                return
            said = self.status.waiting(every, others)
            check_stop(self.record.folder, done)
            if (now := time.monotonic()) < deadline:
                time.sleep(max(LOOK_SECONDS, min(PAUSE_FOR_LOOK * (now - began), deadline - now)))
                continue
            patience = f"{server.wait_for_clients:.0f} s"
            if done and not nodes:
                raise BouquetError(
                    f"After round {done} no client was connected any more, and none came back within {patience} "
                    f"(server.wait_for_clients). The last checkpoint is kept: --resume goes on from there. {said}"
                )
            raise BouquetError(
                f"Only {len(nodes)} of {needed} clients (server.min_clients) connected within {patience}: look at the "
                f"clients' logs, and at the address and port they use. {said}"
            )
