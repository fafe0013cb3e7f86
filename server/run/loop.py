"""The rounds of a run: what Flower's `Strategy.start` does, with a deadline, a record, checkpoints and resume."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from bouquet.common import protocol
from bouquet.common.errors import BouquetError, RunFailed
from bouquet.common.settings import Settings
from bouquet.common.task.score import Score
from bouquet.common.task.task import task_of
from bouquet.server.fleet.names import Names
from bouquet.server.record.status import FINISHED, TESTING, TRAINING, Progress, expected
from bouquet.server.record.summary import round_line, summarise
from bouquet.server.record.traffic import Bytes
from bouquet.server.record.versions import save_versions
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.attendance import Attendance
from bouquet.server.run.build import add_canary, build_strategy, plain_starting_point, too_few, what_to_expect
from bouquet.server.run.health import RunHealth
from bouquet.server.run.resume import ResumePoint, open_run, save_run
from bouquet.server.run.rollback import roll_back
from bouquet.server.run.round_config import train_config
from bouquet.server.run.stop import check_stop, take_back
from bouquet.strategies.base.exchange import abandon, exchange, replies_to
from bouquet.strategies.base.strategy import MethodStrategy

if TYPE_CHECKING:
    from bouquet.server.initial_model.seed_model import PlainStart
    from bouquet.server.initial_model.torch_model import Start

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
    run.attendance.wait_for_clients(settings.server.min_clients, remembered.first_round - 1)
    run.recall()
    for round_ in range(remembered.first_round, settings.run.rounds + 1):
        if run.health.stands_still:
            break
        line = run.round(round_)
        if follow:
            follow(line)
        pause = run.health.check_progress(settings.run.is_endless)
        if round_ < settings.run.rounds:
            check_stop(record.folder, round_)
            run.attendance.pause(pause, round_)
    summary = run.last_evaluation()
    if start.about:
        summary["start"] = dict(start.about)
    record.finish(summary, strategy, start.frozen)
    run.status.say(FINISHED, ended=time.time())
    return summary


@dataclass
class _Run:
    """One run; ``arrays`` are what the next round starts from."""

    grid: Grid
    settings: Settings
    strategy: MethodStrategy[Any]
    record: RunRecord
    remembered: ResumePoint
    names: Names | None
    arrays: ArrayRecord
    show: Show

    def __post_init__(self) -> None:
        self.clock: Callable[[], float] = getattr(self.grid, "clock", time.monotonic)  # a simulated fleet has its own
        self.started = self.clock()
        self.score: Score = task_of(self.settings).score  # the figure that models are judged by
        self.status = Progress(self.record.folder, self.settings, self.names, self.show)
        self.attendance = Attendance(self.grid, self.settings, self.strategy, self.names, self.status)
        self.health = RunHealth(what_to_expect(self.settings, self.strategy), self.settings.run.patience)

    @property
    def seconds(self) -> float:
        """So far, with those before it was resumed."""
        return self.remembered.seconds_before + self.clock() - self.started

    def recall(self) -> None:
        """Take in the record of the rounds before, and see whether enough clients are there for the next."""
        for task in self.remembered.at_work:
            self.strategy.was_sent(*task, self.started + self.settings.server.round_timeout)
        for line in self.record.each_round():
            self.health.recall(line)
        nodes, others = self.attendance.connected()
        self.health.warnings = too_few(self.settings, self.strategy.expected_clusters, len(nodes) - len(others))

    def round(self, round_: int) -> dict[str, Any]:
        """Train, evaluate where it is time for that, write the record and a checkpoint; the round's line."""
        self.attendance.wait_for_clients(1, round_ - 1)
        while True:
            self.attendance.wait_for_owners(round_ - 1)
            began = self.clock()
            self.status.say(TRAINING, round=round_, round_started=time.time(), **self.attendance.look_around())
            if went_back := roll_back(self.record.folder, self.strategy):
                self.health.warnings += went_back
                save_run(self.strategy, self.settings, self.record, round_ - 1, self.remembered, self.seconds)
            times: dict[int, float] = {}
            traffic = self.train(round_, times)
            trained = self.strategy.train_round
            if trained.replies or trained.failures or not trained.not_now:
                break
            # Nobody replied or failed: the owners of all that were asked have stopped them. The round begins again.
        evaluation = None
        every = self.settings.server.evaluate_every
        if every and round_ % every == 0 and round_ < self.settings.run.rounds:
            evaluation = self.evaluate(round_, traffic)
        line = round_line(
            round_,
            self.strategy,
            self.remembered.groups,
            traffic,
            self.clock() - began,
            self.score,
            self.health.expected.classes,
        )
        line |= self.participation(times)
        if moved := self.health.moved(line["assignment"]):
            line["moved"] = moved
        if evaluation is not None:
            line["evaluation"] = evaluation
        self.health.judge(line)
        self.record.add_round(line)
        if trained.replies:  # else nothing has changed, and a run that goes on repeats the round
            save_run(self.strategy, self.settings, self.record, round_, self.remembered, self.seconds)
        self.status.say(TRAINING, **self.attendance.look())
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
            enough = getattr(self.grid, "enough", strategy.replies_to_end)(len(messages) + len(older))
            for reply in replies_to(self.grid, messages, strategy.round_patience, silent, times, older, enough):
                answered.append(reply.metadata.reply_to_message_id)
                yield reply
                self.count(traffic, [reply])  # the strategy knows by now who it is from
            strategy.give_up(silent)

        updated, _ = strategy.aggregate_train(round_, arriving())
        trained = strategy.train_round
        self.attendance.pass_over_removed(trained.failures)
        sent = {*strategy.late.awaited, *(message.metadata.message_id for message in messages)}
        strategy.end_round(round_, messages, answered, silent, self.clock())
        abandon(self.grid, sent - {*answered} - strategy.late.awaited.keys())
        self.arrays = updated or self.arrays
        if round_ == 1 and not trained.replies and trained.failures:
            client, reason = next(iter(sorted(trained.failures.items())))
            raise BouquetError(f"No client gave a usable reply in the first round; {client}: {reason}")
        self.learn_groups()
        return traffic

    def evaluate(self, round_: int, traffic: Bytes) -> dict[str, Any]:
        """Have every device tested; it is told how to train, because a method may adapt its model before the test."""
        strategy = self.strategy
        config = train_config(self.settings, round_)
        messages = list(strategy.configure_evaluate(round_, self.arrays, config, self.grid))
        replies, silent = exchange(self.grid, messages, strategy.round_patience)
        strategy.give_up(silent)
        strategy.aggregate_evaluate(round_, replies)
        tested = strategy.evaluate_round
        self.attendance.pass_over_removed(tested.failures)
        self.count(traffic, messages, replies)
        scores = [m[self.score.key] for m in tested.scores.values() if self.score.key in m]
        return {
            "clients": len(tested.scores),
            self.score.of("macro"): sum(scores) / len(scores) if scores else None,
            "not_evaluated": dict(sorted(tested.failures.items())),
            "not_now": {client: rest.reason for client, rest in tested.not_now.items()},
        }

    def last_evaluation(self) -> dict[str, Any]:
        """Have every device tested after the last round; the summary of the run."""
        last = self.health.lines[-1]["round"] if self.health.lines else self.settings.run.rounds
        self.attendance.wait_for_clients(1, last)
        if not self.settings.run.is_endless:  # whose devices rest until there is something new
            self.attendance.wait_for_owners(last)
        self.status.say(TESTING, round=last, **self.attendance.look())
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

    def participation(self, times: Mapping[int, float]) -> dict[str, Any]:
        """What a round's line says of the devices: who was absent, how long each took, which have other releases."""
        trained, names = self.strategy.train_round, self.names
        # A restarted server asks who its nodes are once more. Those bytes are counted apart, so that a resumed run has
        # the same bytes in each round as one that was not interrupted.
        identification = self.count(Bytes(), trained.identification)
        received = trained.replies.received if trained.replies else ()
        there = {reply.client for reply in received} | set(trained.failures) | set(trained.not_now)
        line: dict[str, Any] = {"absent": [name for name in expected(names) if name not in there] if names else []}
        if identification.up or identification.down:
            line["identification_bytes"] = identification.up + identification.down
        if names is not None or self.clock is not time.monotonic:  # else simulated devices wait for each other
            line["seconds_by_client"] = {r.client: round(times[r.node], 1) for r in received if r.node in times}
        if names is not None:
            line["other_releases"] = names.other_releases(there)
        return line
