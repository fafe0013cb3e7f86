"""The rounds of a run: what Flower's `Strategy.start` does, with a deadline, a record, checkpoints and resume."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from common import protocol
from common.codec import Codec
from common.continuing import check_continues
from common.errors import BouquetError, RunFailed
from common.initial import initial_model, model_shape, parameter_names, state_vector
from common.settings import Settings
from server.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from server.diagnosis import JUDGED, Expected, new_warnings
from server.fleet import Names, Twins
from server.record import Bytes, RunRecord, round_line, summarise
from server.status import FINISHED, TESTING, TRAINING, Progress, expected
from server.stop import check_stop, take_back
from strategies.clustered import ClusteredStrategy
from strategies.compression import Compression
from strategies.exchange import Patience, exchange, replies_to
from strategies.exclusion import Exclusion
from strategies.mathematics.robust import Aggregation
from strategies.protection import Protection
from strategies.registry import create_strategy
from strategies.sampling import sample_size

NOTICE_SECONDS = 600.0
Follow = Callable[[dict[str, Any]], None]


@dataclass
class _Progress:
    """What the loop remembers beside the strategy's state; `groups` are the true groups that devices reported."""

    first_round: int = 1
    groups: dict[str, int] = field(default_factory=dict)
    seconds_before: float = 0.0


def build_strategy(settings: Settings) -> ClusteredStrategy[Any]:
    """The strategy that the settings name, with the server's sampling and patience."""
    server = settings.server
    strategy = create_strategy(
        settings.strategy.name,
        settings.strategy.options,
        fraction_train=server.fraction_train,
        fraction_evaluate=server.fraction_evaluate,
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

        strategy.public = public_data(settings)
    strategy.parameter_names = parameter_names(initial_model(settings))
    wire = settings.wire
    if wire.compresses:
        if reason := strategy.needs_exact(wire.down):
            raise BouquetError(f"Setting wire.down = {wire.down!r} does not fit {settings.strategy.name!r}: {reason}")
        strategy.compression = Compression(Codec(wire.up, wire.keep), Codec(wire.down, wire.keep), settings.run.seed)
    strategy.draw_model = lambda seed: state_vector(initial_model(settings, seed))[1]
    return strategy


def train_config(settings: Settings, round_: int) -> ConfigRecord:
    """What every device is told about local training in a round."""
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
    return ConfigRecord(values)


def run_rounds(
    grid: Grid,
    settings: Settings,
    initial: ArrayRecord,
    record: RunRecord,
    resume: bool = False,
    follow: Follow | None = None,
    names: Names | None = None,
) -> dict[str, Any]:
    """Train for ``settings.run.rounds`` rounds, evaluate every device, and return the summary.

    ``follow`` is called with each round's line; ``names`` knows what the nodes are called. Raises `BouquetError` when
    fewer than ``server.min_clients`` nodes connect in time, and for a run folder or checkpoint that does not fit.
    """
    strategy = build_strategy(settings)
    if names is not None:
        strategy.names = names
    progress = _open(strategy, settings, record, resume)
    take_back(record.folder)
    status = Progress(record.folder, settings, names)
    started = time.monotonic()
    _wait_for_clients(grid, settings, status)
    twins = Twins(names.database) if names is not None and names.database is not None else None
    arrays = initial
    hoped, lines = _hoped(settings, strategy), [{key: line.get(key) for key in JUDGED} for line in record.rounds()]
    early = _too_few(settings, len(list(grid.get_node_ids())))
    for round_ in range(progress.first_round, settings.run.rounds + 1):
        clock = time.monotonic()
        there = _look_around(grid, status, twins)
        status.say(TRAINING, round=round_, round_started=time.time(), **there)
        config = train_config(settings, round_)
        traffic, updated = _train(grid, strategy, round_, arrays, config)
        arrays = updated or arrays
        if round_ == 1 and not strategy.replies and strategy.failures:
            client, reason = next(iter(sorted(strategy.failures.items())))
            raise BouquetError(f"No client gave a usable reply in the first round; {client}: {reason}")
        _learn_groups(strategy, progress.groups)
        last = round_ == settings.run.rounds
        evaluation = None
        if not last and settings.server.evaluate_every and round_ % settings.server.evaluate_every == 0:
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
        lines.append({key: line[key] for key in JUDGED})
        line["warnings"] += [*early, *new_warnings(lines, hoped)]
        early = []
        record.add_round(line)
        seconds = progress.seconds_before + time.monotonic() - started
        if strategy.replies:  # else nothing has changed, and a run that goes on repeats the round
            _save(strategy, settings, record, round_, progress.groups, seconds)
        status.say(TRAINING, **status.look(grid.get_node_ids()))
        if follow:
            follow(line)
        _check_progress(lines, settings)
        if not last:
            check_stop(record.folder, round_)
    status.say(TESTING, round=settings.run.rounds)
    final = Bytes(strategy.layout)
    _evaluate(grid, strategy, settings.run.rounds, arrays, final, train_config(settings, settings.run.rounds))
    _learn_groups(strategy, progress.groups)
    seconds = progress.seconds_before + time.monotonic() - started
    summary = summarise(settings, strategy, progress.groups, record.rounds(), final, seconds)
    record.finish(summary, strategy)
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
    if server.min_replies <= size:
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
    replied = {reply.client for reply in strategy.replies.received} if strategy.replies else set()
    there = replied | set(strategy.failures)
    return [] if names is None else [name for name in expected(names) if name not in there]


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
    record.reopen(settings, checkpoint.round)
    return _Progress(checkpoint.round + 1, dict(beside["groups"]), beside["seconds"])


def _save(
    strategy: ClusteredStrategy[Any],
    settings: Settings,
    record: RunRecord,
    round_: int,
    groups: dict[str, int],
    seconds: float,
) -> None:
    arrays, state = strategy.checkpoint()
    assert strategy.layout is not None
    checkpoint = Checkpoint(
        round=round_,
        run_id=strategy.run_id,
        fingerprint=settings.fingerprint(),
        strategy=settings.strategy.name,
        layout=strategy.layout,
        arrays=arrays,
        state={**state, "_run": {"groups": groups, "seconds": seconds, "exclusion": vars(strategy.exclusion)}},
    )
    save_checkpoint(record.checkpoints, checkpoint, settings.server.keep_checkpoints)


def _wait_for_clients(grid: Grid, settings: Settings, status: Progress) -> None:
    server = settings.server
    deadline = time.monotonic() + server.wait_for_clients
    while len(nodes := list(grid.get_node_ids())) < server.min_clients:
        said = status.waiting(nodes)
        check_stop(status.path.parent, status.content["round"])
        if time.monotonic() >= deadline:
            raise BouquetError(
                f"Only {len(nodes)} of {server.min_clients} clients (server.min_clients) connected within "
                f"{server.wait_for_clients:.0f} s: look at the clients' logs, and at the address and port they use. "
                f"{said}"
            )
        time.sleep(0.2)


def _train(
    grid: Grid, strategy: ClusteredStrategy[Any], round_: int, arrays: ArrayRecord, config: ConfigRecord
) -> tuple[Bytes, ArrayRecord | None]:
    messages = list(strategy.configure_train(round_, arrays, config, grid))
    traffic = Bytes(strategy.layout)
    _count(strategy, traffic, [*strategy.preliminary, *messages])

    def arriving() -> Iterator[Message]:
        """Each reply is read, counted and dropped before the next one is asked for."""
        silent: dict[int, str] = {}
        for reply in replies_to(grid, messages, strategy.round_patience, silent):
            yield reply
            _count(strategy, traffic, [reply])  # the strategy knows by now who it is from
        strategy.give_up(silent)

    updated, _ = strategy.aggregate_train(round_, arriving())
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
