"""Where a run begins: new, or after its latest checkpoint; and the checkpoint after each round."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.texts import plain
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from bouquet.strategies.base.exclusion import Exclusion
from bouquet.strategies.base.filters.privacy import PrivacyLedger
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.base.work_budget import WorkBudget


@dataclass
class ResumePoint:
    """What a run remembers beside the strategy's state.

    `groups` are the true groups that devices reported, ``at_work`` tasks without a reply: client, node, round, content.
    """

    first_round: int = 1
    groups: dict[str, int] = field(default_factory=dict)
    seconds_before: float = 0.0
    at_work: list[tuple[str, int, int, bytes]] = field(default_factory=list)


def open_run(strategy: MethodStrategy[Any], settings: Settings, record: RunRecord, resume: bool) -> ResumePoint:
    """Begin a new run, or go on after the latest checkpoint. Raises `BouquetError` for one that does not fit."""
    if resume:
        record.check_continues(settings)
    checkpoint = load_checkpoint(record.checkpoints, settings.fingerprint()) if resume else None
    if checkpoint is None:
        if resume and had_checkpoints(record.rounds()):
            raise BouquetError(f"The run folder {record.folder} has rounds but no checkpoint to resume from.")
        if not resume:
            record.create(settings)
        else:
            record.reopen(settings, 0)
        strategy.run_id = uuid.uuid4().hex
        return ResumePoint()
    if checkpoint.round > settings.run.rounds:
        raise BouquetError(
            f"The checkpoint is of round {checkpoint.round}, after the last one asked for "
            f"(run.rounds = {settings.run.rounds})."
        )
    try:
        remembered = _restore(strategy, checkpoint)
    except Exception as error:  # whatever NumPy, Pydantic and a method raise for what somebody wrote there
        raise BouquetError(
            f"The run in {record.folder} cannot go on from its checkpoint of round {checkpoint.round}, which is not as "
            f"it was written ({type(error).__name__}: {plain(str(error))}). Start a new run."
        ) from None
    record.reopen(settings, checkpoint.round)
    return remembered


def _restore(strategy: MethodStrategy[Any], checkpoint: Checkpoint) -> ResumePoint:
    beside = checkpoint.state.pop("_run")
    at_work = beside.get("at_work", [])
    tasks = {name: checkpoint.arrays.pop(name) for name in {task[-1] for task in at_work}}
    strategy.restore(checkpoint.layout, checkpoint.arrays, checkpoint.state)
    strategy.run_id = checkpoint.run_id
    strategy.exclusion = Exclusion(**beside["exclusion"])
    if strategy.budget and "budget" in beside:
        strategy.budget = WorkBudget(**beside["budget"])
    if ledger := strategy.filter_of(PrivacyLedger):
        ledger.releases.update(beside["releases"])
    assert strategy.state is not None
    centers, clusters = strategy.centers(strategy.state), {*strategy.assignment(strategy.state).values()}
    if len(centers) and (centers.shape[1] != checkpoint.layout.dim or not clusters <= {*range(len(centers))}):
        raise ValueError("centers and clusters that do not fit")
    open_tasks = [(*who, tasks[name].tobytes()) for *who, name in at_work]
    return ResumePoint(checkpoint.round + 1, dict(beside["groups"]), beside["seconds"], open_tasks)


def had_checkpoints(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run with these lines in its record must have written a checkpoint.

    A round's checkpoint follows its line, and a round without any reply has none: a run that was killed between the
    first line with replies and its checkpoint has lost no more than that round, and begins anew.
    """
    return any(line["replies"] for line in lines[:-1])


def save_run(
    strategy: MethodStrategy[Any],
    settings: Settings,
    record: RunRecord,
    round_: int,
    progress: ResumePoint,
    seconds: float,
) -> None:
    """Write the checkpoint of a round, ``seconds`` after the run began."""
    arrays, state = strategy.checkpoint()
    assert strategy.layout is not None
    tasks, names = [], dict[bytes, str]()  # several devices may have been sent the same
    for task in (*strategy.late.awaited.values(), *strategy.late.interrupted):
        name = names.setdefault(task.content, f"_task/{len(names)}")
        tasks.append((task.client, task.node, task.round, name))
        arrays[name] = np.frombuffer(task.content, dtype=np.uint8)
    beside = {"groups": progress.groups, "seconds": seconds, "exclusion": vars(strategy.exclusion), "at_work": tasks}
    if strategy.budget:
        beside["budget"] = vars(strategy.budget)
    if ledger := strategy.filter_of(PrivacyLedger):
        beside["releases"] = ledger.releases
    checkpoint = Checkpoint(
        round=round_,
        run_id=strategy.run_id,
        fingerprint=settings.fingerprint(),
        strategy=settings.strategy.name,
        layout=strategy.layout,
        arrays=arrays,
        state={**state, "_run": beside},
    )
    save_checkpoint(record.checkpoints, checkpoint)
