"""What no fault may break, read from the folders that a run and its devices leave."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from benchmarks.faults.fleet import Device, Fleet
from benchmarks.faults.inject import lines
from benchmarks.faults.schedule import Schedule
from bouquet.client.agent.store import MOST_REPLIES, TASKS
from bouquet.client.context import own_data
from bouquet.client.state.device_state import PERSONAL, DeviceState, Kept
from bouquet.client.state.store import FolderStore
from bouquet.client.training import evaluation
from bouquet.common.model.build import initial_model
from bouquet.common.settings import Settings
from bouquet.common.system.files import TEMPORARY
from bouquet.experiments.report.run_report import write_report
from bouquet.server.record.status import FINISHED, read_status
from bouquet.server.run.checkpoint import load_checkpoint

SLOWEST_ROUND = 150.0  # seconds; the settings' deadlines are 45 s for each of its up to three exchanges
ON_ITS_WAY = (".content", ".reply", ".error", ".part")
FORGET_SECONDS = 60.0
WORSE_MEAN, WORSE_DEVICE = 0.06, 0.15  # accuracy below that of the run without faults


def check_run(schedule: Schedule, fleet: Fleet, settings: Settings, run: Path, damaged: bool) -> list[str]:
    """What is wrong with the record and the checkpoints of a finished run."""
    wrong = []
    if (state := read_status(run).get("state")) != FINISHED:
        return [f"status.json says {state}"]
    rounds = [line["round"] for line in lines(run)]
    if rounds != [*range(1, settings.run.rounds + 1)]:
        wrong.append(f"rounds.jsonl has the rounds {rounds}")
    seconds = {line["round"]: line["seconds"] for line in lines(run)}
    wrong += [f"round {n} took {spent:.0f} s" for n, spent in seconds.items() if spent > SLOWEST_ROUND]
    newest = load_checkpoint(run / "checkpoint", settings.fingerprint())
    if newest is None or not lines(run)[-1]["replies"] <= len(fleet.devices):
        wrong.append("there is no checkpoint")
    for folder in sorted((run / "checkpoint").glob("round-*")):
        for line in (folder / "SHA256SUMS").read_text().splitlines():
            digest, name = line.split()
            if not damaged and hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
                wrong.append(f"{folder.name}/{name} is damaged")
    models = [load_file(file) for file in sorted((run / "models").glob("*.safetensors"))]
    if not models or not all(np.isfinite(a).all() for model in models for a in model.values()):
        wrong.append(f"{len(models)} models, not all finite")
    if not (run / "report.html").exists():  # where the disk was full at the end, it is said how to have it later
        if f"bouquet report {run}" in fleet.log.read_text():
            write_report(run)
        else:
            wrong.append("there is no report, and nobody is told")
    return wrong + [f"left behind: {file}" for file in temporary(run)]


def temporary(folder: Path) -> list[str]:
    """Files and folders that were to get another name."""
    return [str(found.relative_to(folder)) for found in sorted(folder.rglob(".*")) if TEMPORARY.fullmatch(found.name)]


def check_devices(
    schedule: Schedule, fleet: Fleet, settings: Settings, run: Path, reference: dict[str, Any] | None
) -> tuple[list[str], dict[str, float]]:
    """What is wrong with what devices keep, and the accuracy of each one's model on its own test data."""
    wrong: list[str] = []
    accuracy: dict[str, float] = {}
    names = json.loads((run / "devices.json").read_text())
    checkpoint = load_checkpoint(run / "checkpoint", settings.fingerprint())
    assert checkpoint is not None
    kept = {d.name: DeviceState(FolderStore(d.state)).latest() for d in fleet.devices.values()}
    losing = {fault.device for fault in schedule.faults if fault.loses_state}
    record = lines(run)
    for device in fleet.devices.values():
        took_part = [line["round"] for line in record if device.name in line["by_client"]]
        if device.name not in names and took_part:
            wrong.append(f"{device.name} took part and has no name")
        own = kept[device.name]
        if took_part and device.name not in losing:
            if own is None or own.run != checkpoint.run_id:
                wrong.append(f"{device.name} keeps nothing of the run")
                continue
            if own.round < took_part[-1]:
                wrong.append(f"{device.name} keeps round {own.round}, and took part in {took_part}")
        for line in record:
            if line["by_client"].get(device.name, {}).get("state_lost") and device.name not in losing:
                wrong.append(f"{device.name} had lost its layers in round {line['round']}")
        if own is not None and own.run == checkpoint.run_id:
            accuracy[device.name] = test(settings, device, own)
        wrong += [f"left behind: {device.name}/{file}" for file in temporary(device.state)]
    same = [
        f"{a} and {b} keep the same model"
        for a in kept
        for b in kept
        if a < b and kept[a] is not None and kept[b] is not None and _same(kept[a], kept[b])
    ]
    if reference is not None:
        for name, value in accuracy.items():
            if value < reference["kept"][name] - WORSE_DEVICE and name not in losing:
                wrong.append(f"{name}'s own model has {value:.3f}, without faults {reference['kept'][name]:.3f}")
    return wrong + same, accuracy


def check_forgotten(fleet: Fleet) -> list[str]:
    """What the server still keeps of tasks, a while after the run, and devices beyond the last few."""
    deadline = time.monotonic() + FORGET_SECONDS
    while True:
        left = [f"kept: {file.name}" for file in fleet.service.iterdir() if file.suffix in ON_ITS_WAY]
        for device in fleet.devices.values():
            # A device that was ended before it heard that the server has its reply keeps that for the next look.
            tasks = {
                file.name.partition(".")[0] for file in (device.state / TASKS).glob("*") if file.suffix in ON_ITS_WAY
            }
            left += [f"{device.name} keeps {len(tasks)} tasks"] if len(tasks) > MOST_REPLIES else []
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def check_accuracy(run: Path, reference: dict[str, Any]) -> tuple[list[str], dict[str, float]]:
    """Whether the accuracy of the final test is that of the run without faults, but for noise."""
    found: dict[str, float] = json.loads((run / "summary.json").read_text())["accuracy_by_client"]
    without = reference["accuracy"]
    wrong = []
    if not found:
        return ["no device was tested at the end"], found
    mean = sum(found.values()) / len(found)
    expected = sum(without[name] for name in found) / len(found)
    if mean < expected - WORSE_MEAN:
        wrong.append(f"accuracy {mean:.3f} over {len(found)} devices, without faults {expected:.3f}")
    return wrong, found


def test(settings: Settings, device: Device, kept: Kept) -> float:
    """Accuracy of a kept model on a device's test data."""
    model = initial_model(settings)
    tensors = {name: torch.as_tensor(array) for name, array in kept.slots[PERSONAL].items()}
    model.load_state_dict(tensors)
    data = own_data(settings, str(device.data))
    return evaluation.test(model, torch.as_tensor(data.test_x), torch.as_tensor(data.test_y)).score


def _same(one: Kept | None, other: Kept | None) -> bool:
    assert one is not None
    assert other is not None
    a, b = one.slots[PERSONAL], other.slots[PERSONAL]
    return one.run == other.run and all(np.array_equal(a[name], b[name]) for name in a)
