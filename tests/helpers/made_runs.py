"""Run folders made up for the tests of what reads them: no federation has to run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bouquet.common.settings import Settings, parse_settings


def make_run(
    folder: Path,
    settings: Settings | None = None,
    *,
    clients: int = 6,
    groups: int | None = 2,
    rounds: int = 3,
    finished: bool = True,
    accuracy: float = 0.9,
    layers: tuple[str, ...] = ("fc1", "fc2"),
) -> Path:
    """Write a run in which accuracy climbs evenly to ``accuracy`` and every client finds its group in round 2.

    Each client sends 100 bytes a layer and receives 200; after t rounds the accuracy is ``accuracy * t / rounds``.
    """
    settings = settings or parse_settings(
        {"run": {"rounds": rounds}, "data": {"clients": clients, "partition": "rotated"}}, {}
    )
    names = [f"client-{index}" for index in range(clients)]
    truth = {name: index % (groups or 1) for index, name in enumerate(names)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json")))
    up, down = 100 * len(layers), 200 * len(layers)
    lines = []
    for number in range(1, rounds + 1):
        settled = number > 1
        before = accuracy * (number - 1) / rounds
        lines.append(
            {
                "round": number,
                "replies": clients,
                "failures": 0,
                "failed": {},
                "clusters": (groups or 1) if settled else 1,
                "purity": None if groups is None else (1.0 if settled else 1 / groups),
                "ari": None if groups is None else float(settled),
                "loss": 2.0 / number,
                "train_loss": 1.5 / number,
                "accuracy_micro": before if number > 1 else None,
                "accuracy_macro": before if number > 1 else None,
                "accuracy_trained_micro": before + 0.05,
                "accuracy_trained_macro": before + 0.05,
                "by_client": {name: {"accuracy_trained": before + 0.05} for name in names},
                "bytes_up": up * clients,
                "bytes_down": down * clients,
                "bytes_up_plain": up * clients,
                "bytes_down_plain": down * clients,
                "bytes_by_layer": {
                    "up": dict.fromkeys(layers, 100 * clients),
                    "down": dict.fromkeys(layers, 200 * clients),
                },
                "bytes_by_client": {name: [up, down] for name in names},
                "seconds": 0.5,
                "assignment": {name: truth[name] if settled else 0 for name in names},
                "strategy": {},
            }
        )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        summary = {
            "strategy": settings.strategy.name,
            "dataset": settings.data.dataset,
            "partition": settings.data.partition,
            "model": settings.model.name,
            "clients": clients,
            "rounds": rounds,
            "seed": settings.run.seed,
            "accuracy_micro": accuracy,
            "accuracy_macro": accuracy,
            "f1_micro": accuracy,
            "f1_macro": accuracy,
            "accuracy_worst_decile": accuracy,
            "accuracy_deviation": 0.0,
            "clusters": groups or 1,
            "assignment": truth,
            "groups": truth if groups is not None else None,
            "purity": None if groups is None else 1.0,
            "ari": None if groups is None else 1.0,
            "accuracy_by_client": dict.fromkeys(names, accuracy),
            "bytes_up": up * clients * rounds,
            "bytes_down": down * clients * rounds,
            "bytes_up_plain": up * clients * rounds,
            "bytes_down_plain": down * clients * rounds,
            "seconds": 0.5 * rounds,
            "strategy_record": {},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run` into a folder below the test's own: ``write_run("name", rounds=5)``."""

    def write(name: str = "run", settings: Settings | None = None, **options: Any) -> Path:
        return make_run(tmp_path / name, settings, **options)

    return write


@pytest.fixture
def edit_round() -> Callable[..., None]:
    """Replace keys in the recorded line of one round: ``edit_round(folder, 2, purity=0.5)``."""

    def edit(folder: Path, number: int, **changes: Any) -> None:
        file = folder / "rounds.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines[number - 1].update(changes)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return edit
