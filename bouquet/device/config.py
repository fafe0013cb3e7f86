"""What a device tells its ClientApp about itself."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from pathlib import Path

from bouquet.client import node_config
from bouquet.client.owner.conditions import read_when
from bouquet.common.errors import BouquetError
from bouquet.common.texts import MOST_TAGS, TAG


def device_config(
    data: Path | None,
    state_dir: Path,
    name: str | None,
    partition_id: int | None,
    strict: bool = False,
    least_noise: float | None = None,
    report_classes: bool = False,
    most_epsilon: float | None = None,
    when: Path | None = None,
    tags: Sequence[str] = (),
) -> dict[str, str | int | float | bool]:
    """The node config of a device. Raises `BouquetError` when it has no data, or a folder that is not there or empty,
    or for an owner's file of conditions (``when``) that does not say what it should.

    Whether the data fits the federation's classes and shape is known once the server has said what they are; what
    does not fit is then refused, with the file and the reason, in this device's log and at the server.
    """
    if (data is None) == (partition_id is None):
        raise BouquetError("Give either --data DIR, this device's own data, or --partition-id N, a part of a data set.")
    if when is not None:
        read_when(when)
    if data is not None and not data.exists():
        raise BouquetError(f"The data folder {data} is not there.")
    if data is not None and data.is_dir() and not any(data.iterdir()):
        raise BouquetError(f"The data folder {data} is empty; it holds images in folders by class, or a data.npz.")
    said = {
        node_config.STATE_DIR: str(state_dir.absolute()),
        node_config.NAME: name or (host_name() if partition_id is None else None),
        node_config.REPORT_CLASSES: report_classes or None,
        node_config.STRICT: strict or None,
        node_config.TAGS: ",".join(checked_tags(tags)) or None,
        node_config.WHEN: None if when is None else str(when.absolute()),
        node_config.PARTITION_ID: partition_id,
        node_config.DATA: None if data is None else str(data.absolute()),
        **device_demands(least_noise, most_epsilon),
    }
    return {key: value for key, value in said.items() if value is not None}


def checked_tags(tags: Sequence[str]) -> list[str]:
    """The tags, each once. Raises `BouquetError`, naming the one, for what is no tag, and for too many."""
    if wrong := [tag for tag in tags if not TAG.fullmatch(tag)]:
        raise BouquetError(f"--tag {wrong[0]!r}: a tag has 1 to 40 letters, digits, '-', '_' and '.'.")
    unique = list(dict.fromkeys(tags))
    if len(unique) > MOST_TAGS:
        raise BouquetError(f"--tag was given {len(unique)} times; a device has {MOST_TAGS} tags at most.")
    return unique


def device_demands(least_noise: float | None, most_epsilon: float | None) -> dict[str, float]:
    """What a device's owner demands of a run, as part of its node config. Raises `BouquetError` for no budget."""
    if most_epsilon is not None and not 0 < most_epsilon < math.inf:
        raise BouquetError(f"--most-epsilon is {most_epsilon:g}; it must be above 0 and finite.")
    demands = {node_config.LEAST_NOISE: least_noise, node_config.MOST_EPSILON: most_epsilon}
    return {key: value for key, value in demands.items() if value is not None}


def host_name() -> str:
    """What this machine is called, without its domain."""
    return socket.gethostname().partition(".")[0] or "device"
