"""``bouquet try``: what each device has, as an .npz of its own for each seed, so that no run decodes a photo again.

Each is divided in three: what is trained on, what is chosen on, the same for every seed, and what is tested. The newest
part is tested, and chosen on before it, where samples are in the order of their time; else random parts, and each seed
tests another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.begin.draft import name_of
from bouquet.client.context import own_data
from bouquet.client.data.loading import ClientData
from bouquet.common.data.partitions import split_train_test
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings, parse_settings
from bouquet.common.task.task import task_of

MOST = 300  # samples of a device: a few minutes must do
DIVIDED = 5  # devices that one is divided into
LEAST = 20  # samples of each of them
FEWEST = 5  # to train, to choose and to test on
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DeviceSamples:
    """A device's samples (n, …) in their own units, in the order of their time where ``in_order``.

    Of neighbours, ``overlap`` have rows in common.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    in_order: bool
    overlap: int = 0

    def part(self, places: Indices | slice) -> DeviceSamples:
        """Some of them."""
        return replace(self, x=self.x[places], y=self.y[places])

    def divided(self, fraction: float, seed: Sequence[int]) -> tuple[DeviceSamples, DeviceSamples]:
        """Without the newest ``fraction``, and it; or a random one. Raises `BouquetError` for too few."""
        count = len(self.y)
        if self.in_order:
            cut = count - max(1, round(fraction * count))
            return self.part(slice(0, max(0, cut - self.overlap))), self.part(slice(cut, count))
        kept, held = split_train_test(np.arange(count), self.y, seed, test_fraction=fraction)
        return self.part(kept), self.part(held)


def read_devices(settings: Settings, devices: Sequence[Path]) -> dict[str, DeviceSamples]:
    """Name → samples of each device; one device alone is divided into several, by the order of its samples.

    Raises `BouquetError` for what does not fit, and for too few samples.
    """
    if task_of(settings).reconstructs:
        raise BouquetError(
            f"task.kind = {settings.task.kind!r} tells nothing that methods could be compared by: 'bouquet simulate' "
            "shows what its rows come to."
        )
    found = {name_of(device): _samples(settings, device) for device in devices}
    own_data.cache_clear()  # it would hold them once more
    if len(found) < len(devices):
        raise BouquetError("Two of the devices have the same name: give each folder a name of its own.")
    return found if len(found) > 1 else _several(settings, *found.values())


def digest(devices: Mapping[str, DeviceSamples], fraction: float) -> str:
    """What tells these samples, divided so, from others: a comparison of others begins anew."""
    found = hashlib.sha256(f"{fraction}".encode())
    for name, samples in devices.items():
        found.update(f"{name} {samples.x.shape} {samples.y.shape} {samples.in_order} {samples.overlap}".encode())
        found.update(np.ascontiguousarray(samples.x).data)
        found.update(np.ascontiguousarray(samples.y).data)
    return found.hexdigest()[:8]


def write_parts(devices: Mapping[str, DeviceSamples], folder: Path, fraction: float, seeds: Sequence[int]) -> None:
    """``chosen-on/DEVICE/data.npz`` below ``folder``, and ``sSEED/DEVICE/data.npz`` for each seed.

    Of ``fraction`` of the samples each: what is chosen on is trained on in the seeds, and never tested.
    """
    for number, (name, samples) in enumerate(devices.items()):
        if len(samples.y) < FEWEST:
            raise BouquetError(f"{name} has {len(samples.y)} samples: too few to train, to choose and to test on.")
        kept = samples.part(_few(len(samples.y), samples.in_order, (number,)))
        share = fraction / (1 - fraction)  # of what is left
        if kept.in_order:
            before, tested = kept.divided(fraction, ())
            _write(folder / "chosen-on" / name, *before.divided(share, ()))
            for seed in seeds:
                _write(folder / f"s{seed}" / name, before, tested)
            continue
        others, chosen = kept.divided(fraction, (number,))
        _write(folder / "chosen-on" / name, others, chosen)
        for seed in seeds:
            trained, tested = others.divided(share, (number, seed))
            both = replace(trained, x=np.concatenate([trained.x, chosen.x]), y=np.concatenate([trained.y, chosen.y]))
            _write(folder / f"s{seed}" / name, both, tested)


def _write(folder: Path, train: DeviceSamples, test: DeviceSamples) -> None:
    if len(train.y) < 2:
        raise BouquetError(f"{folder.name} has too few windows: those of each part share no row with another's.")
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", x=train.x, y=train.y, x_test=test.x, y_test=test.y)


def settings_of_parts(settings: Settings, shape: tuple[int, ...]) -> Settings:
    """The settings with each device's data as such an .npz. A forecast is a regression then: the windows are there."""
    sections: dict[str, Any] = settings.model_dump(exclude_unset=True)
    task = task_of(settings)
    data = {"dataset": "own", "input_shape": shape, "classes": settings.data.classes}
    table = {} if task.has_classes else {"targets": settings.table.targets}
    kind = {"kind": "regression"} if task.is_forecast else {}
    sections |= {"data": data, "table": table, "task": {**sections.get("task", {}), **kind}}
    sections["server"] = {**sections.get("server", {}), "min_clients": 1}
    return parse_settings(sections, {"simulation.engine": "inline"})


def _samples(settings: Settings, device: Path) -> DeviceSamples:
    """All of a device's samples, those that it tests on last."""
    data = own_data(settings, str(device))
    overlap = settings.table.history + settings.table.horizon - 1 if task_of(settings).is_forecast else 0
    x = np.concatenate([data.train_x, data.test_x])
    return DeviceSamples(
        x, np.concatenate([_told(data, data.train_y), _told(data, data.test_y)]), data.in_order, overlap
    )


def _told(data: ClientData, y: NDArray[Any]) -> NDArray[Any]:
    """What is told of samples, in the targets' own units."""
    return np.asarray(data.scaling.undone(y) if data.scaling is not None and not data.num_classes else y)


def _several(settings: Settings, samples: DeviceSamples) -> dict[str, DeviceSamples]:
    """Stretches of a device's samples: of each class, or of time, the first, the next and so on."""
    count = min(DIVIDED, len(samples.y) // LEAST)
    if count < 2:
        raise BouquetError(
            f"One device with {len(samples.y)} samples cannot be divided: {2 * LEAST} samples are needed, or several "
            "devices' folders."
        )
    groups = [np.flatnonzero(samples.y == label) for label in np.unique(samples.y)]
    if samples.in_order or settings.data.classes == ():
        groups = [np.arange(len(samples.y))]
    stretches = [np.array_split(group, count) for group in groups]
    return {
        f"part-{k + 1}": samples.part(np.sort(np.concatenate([group[k] for group in stretches]))) for k in range(count)
    }


def _few(count: int, newest: bool, seed: Sequence[int]) -> Indices:
    """At most `MOST` of ``count`` samples: the newest, or random ones, in order."""
    if count <= MOST or newest:
        return np.arange(max(0, count - MOST), count)
    return np.sort(np.random.default_rng(seed).choice(count, MOST, replace=False))
