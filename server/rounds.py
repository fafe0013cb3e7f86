"""The rounds of a run: what Flower's `Strategy.start` does, with a deadline, a record, checkpoints and resume."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from common import choosing, protocol
from common.codec import Codec
from common.continuing import check_continues
from common.errors import BouquetError, RunFailed
from common.initial import model_shape
from common.settings import Settings
from server.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from server.diagnosis import Expected, add, diagnose, new_warnings
from server.fleet import Names, Twins
from server.record import Bytes, RunRecord, round_line, summarise
from server.status import FINISHED, TESTING, TRAINING, Progress, expected
from server.stop import check_stop, take_back
from strategies.clustered import ClusteredStrategy
from strategies.compression import Compression
from strategies.exchange import Patience, exchange
from strategies.exclusion import Exclusion
from strategies.late import LateReplies
from strategies.mathematics.robust import Aggregation
from strategies.privacy import PrivacyLedger, check_private
from strategies.protection import Protection
from strategies.registry import create_strategy
from strategies.replies import Replies
from strategies.sampling import fewest_replies, sample_size

if TYPE_CHECKING:
    from server.apart import PlainStart
    from server.start import Start

NOTICE_SECONDS = 600.0
Follow = Callable[[dict[str, Any]], None]


@dataclass
class _Progress:
    """What the loop remembers beside the strategy's state.

    `groups` are the true groups that devices reported, `prior` what the devices that choose made of the last round.
    """

    first_round: int = 1
    groups: dict[str, int] = field(default_factory=dict)
    seconds_before: float = 0.0
    prior: list[float] = field(default_factory=list)


def build_strategy(settings: Settings, start: Start | PlainStart | None = None) -> ClusteredStrategy[Any]:
    """The strategy that the settings name, with the server's sampling and patience, for what they start from."""
    server = settings.server
    start = start or _starting_point(settings)
    strategy = create_strategy(
        settings.strategy.name,
        settings.strategy.options,
        fraction_train=server.fraction_train,
        min_train_nodes=1,
        min_evaluate_nodes=1,
        min_available_nodes=1,
        seed=settings.run.seed,
        min_replies=server.min_replies,
        wait_timeout=server.wait_for_clients,
        round_timeout=server.round_timeout,
        identify=True,
    )
    strategy.round_patience = Patience(server.round_timeout, server.straggler_factor, server.straggler_grace)
    protection = settings.protection
    strategy.protection = Protection(Aggregation(protection.aggregation, protection.trim), protection.limit_norm)
    if strategy.wants_public_data:
        from server.inference import public_data  # imports PyTorch

        strategy.public = public_data(settings, start.model)
    strategy.parameter_names = start.parameters
    check_private(strategy, settings.strategy.name, settings.privacy, start.layout)
    if settings.privacy.is_on:
        strategy.privacy = PrivacyLedger(settings.privacy)
    if server.late_replies == "next":
        if not strategy.takes_late_replies:
            raise BouquetError(
                f"Setting server.late_replies = 'next' does not fit {settings.strategy.name!r}: it does not say that "
                "it can use a model that was trained from what was sent a round before; take 'drop'."
            )
        strategy.late = LateReplies()
    wire = settings.wire
    if wire.compresses:
        if reason := strategy.needs_exact(wire.down):
            raise BouquetError(f"Setting wire.down = {wire.down!r} does not fit {settings.strategy.name!r}: {reason}")
        strategy.compression = Compression(Codec(wire.up, wire.keep), Codec(wire.down, wire.keep), settings.run.seed)
    strategy.draw_model = start.draw
    strategy.delivery = start.delivery()
    return strategy


def _starting_point(settings: Settings) -> Start:
    from server.start import starting_point  # imports PyTorch

    return starting_point(settings)


def train_config(settings: Settings, round_: int, prior: Sequence[float] = ()) -> ConfigRecord:
    """What every device is told about local training in a round, and of the fleet where devices choose."""
    train = settings.train
    values: dict[str, Any] = {
        "local-epochs": train.local_epochs,
        "batch-size": train.batch_size,
        "learning-rate": train.learning_rate * train.learning_rate_decay ** (round_ - 1),
        "momentum": train.momentum,
        "weight-decay": train.weight_decay,
    }
    if train.max_gradient_norm is not None:
        values["max-gradient-norm"] = train.max_gradient_norm
    if prior:
        values[choosing.PRIOR] = list(prior)
    return ConfigRecord(values)


def fleet_prior(replies: Replies | None) -> list[float]:
    """What the devices that choose reported of a round, pooled, as the numbers of a message; empty where none does."""
    found = [choosing.from_report(reply.config.get(choosing.REPORT)) for reply in replies.received] if replies else []
    reports = [report for report in found if report is not None]
    return choosing.to_prior(choosing.pool(reports)) if reports else []


def run_rounds(
    grid: Grid,
    settings: Settings,
    initial: ArrayRecord,
    record: RunRecord,
    resume: bool = False,
    follow: Follow | None = None,
    names: Names | None = None,
    start: Start | PlainStart | None = None,
) -> dict[str, Any]:
    """Train for ``settings.run.rounds`` rounds, evaluate every device, and return the summary.

    ``follow`` is called with each round's line; ``names`` knows what the nodes are called; ``initial`` is of ``start``,
    by default `server.start.starting_point`'s. Raises `BouquetError` when fewer than ``server.min_clients`` nodes
    connect in time, and for a run folder or checkpoint that does not fit.
    """
    start = start or _starting_point(settings)
    strategy = build_strategy(settings, start)
    if names is not None:
        strategy.names = names
    progress = _open(strategy, settings, record, resume)
    start.save(record.folder)
    take_back(record.folder)
    status = Progress(record.folder, settings, names)
    started = time.monotonic()
    _wait_for_clients(grid, settings, status, settings.server.min_clients, progress.first_round - 1)
    twins = Twins(names.database) if names is not None and names.database is not None else None
    arrays = initial
    hoped, lines = _hoped(settings, strategy), list[dict[str, Any]]()
    for line in record.rounds():
        add(lines, line)
    early = _too_few(settings, len(list(grid.get_node_ids())))
    for round_ in range(progress.first_round, settings.run.rounds + 1):
        _wait_for_clients(grid, settings, status, 1, round_ - 1)
        clock = time.monotonic()
        there = _look_around(grid, status, twins)
        status.say(TRAINING, round=round_, round_started=time.time(), **there)
        config = train_config(settings, round_, progress.prior)
        times: dict[int, float] = {}
        traffic, updated = _train(grid, strategy, round_, arrays, config, times)
        arrays = updated or arrays
        if round_ == 1 and not strategy.replies and strategy.failures:
            client, reason = next(iter(sorted(strategy.failures.items())))
            raise BouquetError(f"No client gave a usable reply in the first round; {client}: {reason}")
        _learn_groups(strategy, progress.groups)
        progress.prior = fleet_prior(strategy.replies) or progress.prior
        last = round_ == settings.run.rounds
        evaluation = None
        if not last and settings.server.evaluate_every and round_ % settings.server.evaluate_every == 0:
            config = train_config(settings, round_, progress.prior)
            evaluation = _evaluate(grid, strategy, round_, arrays, traffic, config)
        # A server that was restarted asks its nodes again who they are: counted beside the rounds, which are the same.
        asked = Bytes()
        asked.count(strategy.identification, strategy.node_names)
        line = round_line(round_, strategy, progress.groups, traffic, time.monotonic() - clock)
        line["absent"] = _absent(strategy, names)
        if asked.up or asked.down:
            line["identification_bytes"] = asked.up + asked.down
        if evaluation is not None:
            line["evaluation"] = evaluation
        if names is not None:  # in a simulation, devices wait for each other and have one release
            line["seconds_by_client"] = (
                {
                    reply.client: round(times[reply.node], 1)
                    for reply in strategy.replies.received
                    if reply.node in times
                }
                if strategy.replies
                else {}
            )
            line["other_releases"] = names.other_releases(_there(strategy))
        add(lines, line)
        new = [*early, *new_warnings(lines, hoped)]
        lines[-1]["diagnosis"] = line["diagnosis"] = diagnose(lines, hoped)
        for text in new:
            log(WARNING, "%s", text)
        line["warnings"] += new
        early = []
        record.add_round(line)
        seconds = progress.seconds_before + time.monotonic() - started
        if strategy.replies:  # else nothing has changed, and a run that goes on repeats the round
            _save(strategy, settings, record, round_, progress, seconds)
        status.say(TRAINING, **status.look(grid.get_node_ids()))
        if follow:
            follow(line)
        _check_progress(lines, settings)
        if not last:
            check_stop(record.folder, round_)
    _wait_for_clients(grid, settings, status, 1, settings.run.rounds)
    status.say(TESTING, round=settings.run.rounds)
    final = Bytes(strategy.layout)
    config = train_config(settings, settings.run.rounds, progress.prior)
    _evaluate(grid, strategy, settings.run.rounds, arrays, final, config)
    _learn_groups(strategy, progress.groups)
    seconds = progress.seconds_before + time.monotonic() - started
    summary = summarise(settings, strategy, progress.groups, record.rounds(), final, seconds)
    if start.about:
        summary["start"] = dict(start.about)
    record.finish(summary, strategy, start.frozen)
    status.say(FINISHED, ended=time.time())
    return summary


def _check_progress(lines: Sequence[Mapping[str, Any]], settings: Settings) -> None:
    """Raise `RunFailed` after ``server.max_failed_rounds`` rounds running without one usable reply."""
    most = settings.server.max_failed_rounds
    if len(lines) < most or any(line["replies"] for line in lines[-most:]):
        return
    reasons = sorted(lines[-1]["failed"].items())
    said = f"; {reasons[0][0]}: {reasons[0][1]}" if reasons else "."
    raise RunFailed(
        f"No client gave a usable reply in {most} rounds running (server.max_failed_rounds), the last one round "
        f"{lines[-1]['round']}. The checkpoint before them is kept: when the clients are well again, --resume goes on "
        f"from there{said}"
    )


def _too_few(settings: Settings, connected: int) -> list[str]:
    """A warning where no round can have ``server.min_replies`` replies of the clients that are connected."""
    server = settings.server
    size = sample_size(connected, server.fraction_train, 1)
    if fewest_replies(server.min_replies, size) <= size:
        return []
    return [
        f"server.min_replies = {server.min_replies}, but of the {connected} connected clients {size} train in a round "
        f"(server.fraction_train = {server.fraction_train:g}): until more connect, no round changes anything."
    ]


def _hoped(settings: Settings, strategy: ClusteredStrategy[Any]) -> Expected:
    """What the run is judged by; a K that tunes itself may end at 1."""
    wanted = 1 if getattr(strategy, "tuner", None) else getattr(strategy, "num_clusters", 1)
    train = settings.train
    return Expected(
        classes=model_shape(settings)[1],
        learning_rate=train.learning_rate,
        max_gradient_norm=train.max_gradient_norm,
        num_clusters=wanted if isinstance(wanted, int) else 2,
    )


def _look_around(grid: Grid, status: Progress, twins: Twins | None) -> dict[str, Any]:
    """Before a round: who is connected, for the status; devices are told what their owners should know."""
    names = status.names
    nodes = list(grid.get_node_ids())
    there = status.look(nodes)
    if names is None:
        return there
    notices = dict(names.notices)
    names.notices.clear()
    if twins is not None and names.registered is None:
        for node, _, line in twins.same_name({node: names.nodes[node] for node in nodes if node in names.nodes}):
            notices[node] = line
    for node, line in notices.items():
        log(WARNING, "%s", line)
        content = RecordDict({protocol.CONFIG: ConfigRecord({protocol.TEXT: line})})
        grid.push_messages([Message(content, dst_node_id=node, message_type=protocol.NOTICE, ttl=NOTICE_SECONDS)])
    return there


def _absent(strategy: ClusteredStrategy[Any], names: Names | None) -> list[str]:
    """Devices that should be there and had no part in the round, not even a failed one."""
    there = _there(strategy)
    return [] if names is None else [name for name in expected(names) if name not in there]


def _there(strategy: ClusteredStrategy[Any]) -> set[str]:
    """Devices that had a part in the round, be it a failed one."""
    replied = {reply.client for reply in strategy.replies.received} if strategy.replies else set()
    return replied | set(strategy.failures)


def _open(strategy: ClusteredStrategy[Any], settings: Settings, record: RunRecord, resume: bool) -> _Progress:
    """Begin a new run, or go on after the latest checkpoint."""
    if resume and (old := record.settings()):
        check_continues(old, settings.model_dump(mode="json"), str(record.folder))
    checkpoint = load_checkpoint(record.checkpoints, settings.fingerprint()) if resume else None
    if checkpoint is None:
        if resume and record.rounds():
            raise BouquetError(f"The run folder {record.folder} has rounds but no checkpoint to resume from.")
        if not resume:
            record.create(settings)
        else:
            record.reopen(settings, 0)
        strategy.run_id = uuid.uuid4().hex
        return _Progress()
    if checkpoint.round > settings.run.rounds:
        raise BouquetError(
            f"The checkpoint is of round {checkpoint.round}, after the last one asked for "
            f"(run.rounds = {settings.run.rounds})."
        )
    beside = checkpoint.state.pop("_run")
    strategy.restore(checkpoint.layout, checkpoint.arrays, checkpoint.state)
    strategy.run_id = checkpoint.run_id
    strategy.exclusion = Exclusion(**beside["exclusion"])
    if strategy.privacy:
        strategy.privacy.releases.update(beside["releases"])
    record.reopen(settings, checkpoint.round)
    # A checkpoint of an older release has no prior.
    return _Progress(checkpoint.round + 1, dict(beside["groups"]), beside["seconds"], beside.get("prior", []))


def _save(
    strategy: ClusteredStrategy[Any],
    settings: Settings,
    record: RunRecord,
    round_: int,
    progress: _Progress,
    seconds: float,
) -> None:
    arrays, state = strategy.checkpoint()
    assert strategy.layout is not None
    beside = {
        "groups": progress.groups,
        "seconds": seconds,
        "exclusion": vars(strategy.exclusion),
        "prior": progress.prior,
    }
    if strategy.privacy:
        beside["releases"] = strategy.privacy.releases
    checkpoint = Checkpoint(
        round=round_,
        run_id=strategy.run_id,
        fingerprint=settings.fingerprint(),
        strategy=settings.strategy.name,
        layout=strategy.layout,
        arrays=arrays,
        state={**state, "_run": beside},
    )
    save_checkpoint(record.checkpoints, checkpoint, settings.server.keep_checkpoints)


def _wait_for_clients(grid: Grid, settings: Settings, status: Progress, needed: int, done: int) -> None:
    """Wait for so many nodes: for ``server.min_clients`` at first, later for any. ``done`` rounds are behind."""
    server = settings.server
    deadline = time.monotonic() + server.wait_for_clients
    while len(nodes := list(grid.get_node_ids())) < needed:
        said = status.waiting(nodes)
        check_stop(status.path.parent, done)
        if time.monotonic() >= deadline:
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
        time.sleep(0.2)


def _train(
    grid: Grid,
    strategy: ClusteredStrategy[Any],
    round_: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    times: dict[int, float],
) -> tuple[Bytes, ArrayRecord | None]:
    """A round of training; ``times`` gets the seconds after which each node had answered."""
    messages = list(strategy.configure_train(round_, arrays, config, grid))
    replies, silent = exchange(grid, messages, strategy.round_patience, times)
    strategy.give_up(silent)
    if strategy.late:
        replies += strategy.late.collect(grid)
    updated, _ = strategy.aggregate_train(round_, replies)
    strategy.await_late(messages, replies)
    traffic = Bytes(strategy.layout)
    _count(strategy, traffic, [*strategy.preliminary, *messages, *replies])
    return traffic, updated


def _evaluate(
    grid: Grid,
    strategy: ClusteredStrategy[Any],
    round_: int,
    arrays: ArrayRecord,
    traffic: Bytes,
    config: ConfigRecord,
) -> dict[str, Any]:
    """Have every device tested; it is told how to train, because a method may adapt its model before the test."""
    messages = list(strategy.configure_evaluate(round_, arrays, config, grid))
    replies, silent = exchange(grid, messages, strategy.round_patience)
    strategy.give_up(silent)
    strategy.aggregate_evaluate(round_, replies)
    _count(strategy, traffic, [*messages, *replies])
    accuracy = [m[protocol.ACCURACY] for m in strategy.evaluation.values() if protocol.ACCURACY in m]
    return {
        "clients": len(strategy.evaluation),
        "accuracy_macro": sum(accuracy) / len(accuracy) if accuracy else None,
    }


def _count(strategy: ClusteredStrategy[Any], traffic: Bytes, messages: list[Message]) -> None:
    traffic.count(messages, strategy.node_names)


def _learn_groups(strategy: ClusteredStrategy[Any], groups: dict[str, int]) -> None:
    """True groups, where the devices' partition has them: for purity, never for training."""
    reported = {reply.client: reply.metrics for reply in strategy.replies.received} if strategy.replies else {}
    for client, values in {**reported, **strategy.evaluation}.items():
        if (group := values.get(protocol.GROUP, -1)) >= 0:
            groups[client] = int(group)
