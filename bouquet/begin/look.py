"""``bouquet init``: what a folder of photos, tables or .npz holds, and the settings that follow from it.

Nothing is asked that can be seen. What is assumed is said, a sentence each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np

from bouquet.begin.draft import RATE_COMMENT, Draft, class_setting, name_of, named
from bouquet.begin.look_table import look_at_tables
from bouquet.client.data.folder import npz_of
from bouquet.client.data.table_reader import table_files
from bouquet.common.data.class_folders import class_name
from bouquet.common.data.images import IMAGE_SUFFIXES, image_files, is_clutter, read_photo
from bouquet.common.data.readers import read_npz
from bouquet.common.errors import BouquetError
from bouquet.common.settings.data_sections import DataSettings
from bouquet.common.settings.sections import OWN_DATA, TrainSettings

PARTS = {"train", "test"}
LOOKED_AT = 50  # photos of a device whose size is read
SIDE = 32  # pixels that photos are scaled to, where they are larger than `SMALL`
SMALL = 64
BATCH_SIZES, STEPS = (16, 8, 4), 6  # the largest that leaves most devices so many steps in an epoch
LEAST_SIDE = 16  # of a photo that a convolution gains from


def look(*folders: Path, target: str | None = None) -> Draft:
    """Settings for the data in a folder, of several devices, a folder each, or of one; or in several devices' folders.

    ``target`` is the column that is to be told, of tables. Raises `BouquetError` where there are no data.
    """
    folder, *others = folders
    devices = folders if others else devices_in(folder)
    draft = Draft(devices)
    name = name_of(folder.resolve()) or "bouquet"
    draft.set("run", "name", name)
    draft.set("run", "rounds", 20)
    draft.set("data", "dataset", OWN_DATA, "each device has its own")
    if len(devices) > 1 and not others:
        draft.set("data", "data_dir", str(folder), "what each device has, for bouquet try and simulate")
    kinds = {_kind(device) for device in devices}
    if len(kinds) > 1:
        raise BouquetError(f"{folder} has devices with {' and with '.join(sorted(kinds))}: a federation has one kind.")
    if target is not None and kinds != {"tables"}:
        raise BouquetError(f"--target names a column of tables, and {folder} has {kinds.pop()}.")
    if kinds == {"tables"}:
        look_at_tables(draft, target)
    else:
        (_look_at_photos if kinds == {"photos"} else _look_at_npz)(draft)
    _training(draft)
    if len(devices) > 1:
        draft.set("server", "min_clients", len(devices), "the first round begins when so many are there")
        draft.set("simulation", "engine", "inline")
    return draft


def batch_size_for(samples: Sequence[int]) -> int:
    """Smaller than the default where that would leave most devices, with so many samples each, few steps."""
    trained = median(samples) * (1 - DataSettings().test_fraction)
    return next((size for size in BATCH_SIZES if trained >= size * STEPS), BATCH_SIZES[-1])


def _training(draft: Draft) -> None:
    """The batch size where it is not the default, and the learning rate."""
    defaults, size = TrainSettings(), batch_size_for(draft.samples)
    if size < defaults.batch_size:
        draft.set("train", "batch_size", size, f"{defaults.batch_size} would leave few steps on so few samples")
    draft.set("train", "learning_rate", defaults.learning_rate, RATE_COMMENT)


def devices_in(folder: Path) -> tuple[Path, ...]:
    """What each device has: the folders or tables in ``folder``, or ``folder`` itself where it is one device's.

    Folders of images in it are classes, folders of such folders are devices. Raises `BouquetError` for neither.
    """
    if not folder.exists():
        raise BouquetError(f"{folder} is not there.")
    if folder.is_file() or npz_of(folder) is not None:
        return (folder,)
    inside = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not is_clutter(entry.name))
    if not inside and (tables := table_files(folder)):
        return tuple(tables)
    filled = [entry for entry in inside if not _has_images(entry)]
    if inside and {entry.name for entry in inside} - PARTS and filled:
        if len(filled) < len(inside):
            odd = next(entry for entry in inside if entry not in filled)
            raise BouquetError(
                f"{folder} is mixed: {odd.name} has images in it, as a class has, and {filled[0].name} has none. Put "
                "each device's data into a folder of its own."
            )
        return tuple(inside)
    return (folder,)


def _has_images(folder: Path) -> bool:
    return any(entry.suffix.lower() in IMAGE_SUFFIXES for entry in folder.iterdir() if not is_clutter(entry.name))


def _kind(device: Path) -> str:
    if npz_of(device) is not None:
        return "an .npz"
    if table_files(device):
        return "tables"
    if device.is_dir() and image_files(device):
        return "photos"
    raise BouquetError(
        f"{device} holds no photos in folders by class ({', '.join(IMAGE_SUFFIXES)}), no tables (.csv) and no data.npz."
    )


# --- photos ----------------------------------------------------------------------------------------------------------


def _look_at_photos(draft: Draft) -> None:
    counts: dict[Path, Counter[str]] = {}
    sizes, modes = set(), set()
    for device in draft.devices:
        parts = [device / part for part in sorted(PARTS) if (device / part).is_dir()] or [device]
        counts[device], photos = Counter(), []
        for entry in (entry for part in parts for entry in sorted(part.iterdir())):
            if entry.is_dir() and not is_clutter(entry.name):
                photos += (images := image_files(entry))
                counts[device][class_name(entry.name)] += len(images)
        for photo in photos[:: max(1, len(photos) // LOOKED_AT)]:
            with suppress(BouquetError):  # said when all are read
                image = read_photo(photo, (3, LEAST_SIDE, LEAST_SIDE))
                sizes.add(image.size)
                modes.add(image.mode)
    classes = sorted({name for count in counts.values() for name in count})
    class_setting(draft, classes, "the photos' folders")
    if not sizes:
        raise BouquetError(f"None of the photos of {named(draft)} can be read.")
    small, large = (one(sizes, key=lambda size: size[0] * size[1]) for one in (min, max))
    sizes_text = " to ".join(dict.fromkeys(f"{width} × {height}" for width, height in (small, large)))
    draft.samples = [count.total() for count in counts.values()]
    kinds = f"{len(classes)} classes: {', '.join(classes)}"
    draft.seen.append(f"{named(draft)}, {sum(draft.samples)} photos of {sizes_text} pixels, {kinds}.")
    for device, count in counts.items():
        if lacking := [name for name in classes if not count[name]]:
            draft.seen.append(f"{device.name} has no {', '.join(lacking)}.")
    channels = 1 if modes <= {"L", "1"} else 3
    width, height = small if small == large and max(small) <= SMALL else (SIDE, SIDE)
    side = max(width, height)
    larger = f"; [{channels}, {2 * side}, {2 * side}] shows more, and is four times as slow" * (small > (width, height))
    draft.set("data", "input_shape", [channels, height, width], f"photos are scaled to it{larger}")
    draft.set("model", "name", "cnn-dcpfl" if min(width, height) >= LEAST_SIDE else "mlp")
    colour = "grey" if channels == 1 else "in colour"
    draft.assumed.append(f"Photos are scaled to {width} × {height} pixels, {colour}.")


# --- .npz ------------------------------------------------------------------------------------------------------------


def _look_at_npz(draft: Draft) -> None:
    arrays = []
    for device in draft.devices:
        file = npz_of(device)
        assert file is not None
        arrays.append(read_npz(file, ("x", "y")))
    first = arrays[0]
    shape = list(first["x"].shape[1:])
    if first["x"].dtype == np.uint8 and len(shape) == 2:
        shape = [1, *shape]  # grey images are commonly kept without their channel
    draft.samples = [len(held["y"]) for held in arrays]
    draft.seen.append(f"{named(draft)}, {sum(draft.samples)} samples of shape {' × '.join(map(str, shape))}.")
    labels = all(np.issubdtype(held["y"].dtype, np.integer) and held["y"].ndim == 1 for held in arrays)
    if labels:
        most = max(int(held["y"].max(initial=0)) for held in arrays)
        class_setting(draft, map(str, range(max(most, 1) + 1)), "names for y = 0, 1, …")
        draft.assumed.append(f"y holds {most + 1} classes, from 0; give them names in data.classes.")
    else:
        width = 1 if first["y"].ndim == 1 else first["y"].shape[1]
        draft.set("task", "kind", "regression", "y holds numbers")
        draft.set("table", "targets", ["y"] if width == 1 else [f"y{k}" for k in range(width)], "names for them")
        draft.assumed.append(f"y holds {'a number' if width == 1 else f'{width} numbers'} to tell of each sample.")
    draft.set("data", "input_shape", shape, "of one sample")
    if all("time" in held for held in arrays):
        draft.set("data", "split", "time", "the newest part is tested")
    images = len(shape) == 3 and min(shape[1:]) >= LEAST_SIDE
    draft.set("model", "name", "cnn-dcpfl" if images else "mlp")
