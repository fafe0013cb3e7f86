"""What a device is: its settings, identity, data, model and state, put together from Flower's context.

Each message is a new process, so nothing here is loaded before it is needed: a device that only says who it is
imports no PyTorch.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context

from bouquet.client import node_config
from bouquet.client.owner.watch import Watch
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import ContextStore, FolderStore
from bouquet.client.uploads.privacy_budget import Budget
from bouquet.common import protocol
from bouquet.common.data.catalog import dataset_info, is_images
from bouquet.common.data.datasets import DATA_DIR_VARIABLE
from bouquet.common.errors import SAYS_MORE, BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.protocol.error_replies import OwnerRefusal
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA
from bouquet.common.system.resources import idle_cores
from bouquet.common.task.task import Task, task_of
from bouquet.common.trust.code import DISTRIBUTION

if TYPE_CHECKING:
    from bouquet.client.data.loading import ClientData


@dataclass(frozen=True)
class ClientContext:
    """One device in a ``round``. ``folder`` overrides where its state lies (simulation); ``durable`` syncs it."""

    settings: Settings
    context: Context
    folder: Path | None = None
    durable: bool = True
    round: int = 0
    blank: ClientData | None = None  # in the place of the device's data

    @property
    def config(self) -> Mapping[str, Any]:
        """The node config that the client was started with."""
        return self.context.node_config

    def check_privacy(self, uploads: bool = True) -> None:
        """Raise `OwnerRefusal` where the run protects the device less than its owner demands.

        That is `--least-noise` and `--most-epsilon`, whose budget is asked where the device is to upload something.
        """
        if not self.demands_privacy:
            return
        least, privacy = self.config.get(node_config.LEAST_NOISE, 0.0), self.settings.privacy
        if privacy.withholds and privacy.noise_multiplier >= float(least):
            if uploads and self.budget is not None:
                self.budget.check(privacy.noise_multiplier)
            return
        demanded = "--least-noise" if node_config.LEAST_NOISE in self.config else "--most-epsilon"
        has = (
            f"clip_norm = {privacy.clip_norm}, scores = {privacy.scores!r}, "
            f"noise_multiplier = {privacy.noise_multiplier:g}"
        )
        raise OwnerRefusal(
            f"This device's owner sends nothing without privacy.clip_norm, privacy.scores = 'withhold' and a "
            f"privacy.noise_multiplier of {least} or more ({demanded}); this run has "
            f"{has if privacy.is_on else 'no [privacy]'}."
        )

    @property
    def demands_privacy(self) -> bool:
        """Whether the device's owner lets nothing leave that is made of its data and has no noise."""
        return node_config.LEAST_NOISE in self.config or node_config.MOST_EPSILON in self.config

    @cached_property
    def watch(self) -> Watch | None:
        """When the device's owner lets it work; None where the owner has said nothing."""
        if self.is_simulated or node_config.WHEN not in self.config:
            return None
        return Watch(Path(str(self.config[node_config.WHEN])), Path(str(self.config.get(node_config.STATE_DIR, "."))))

    @property
    def threads(self) -> int:
        """CPU threads to train with: in a simulation the settings' word; on a device its owner's, else idle cores."""
        if not self.is_real:
            return self.settings.train.threads
        own = self.watch.settled.threads if self.watch else None
        given = self.config.get(node_config.THREADS) or os.environ.get("OMP_NUM_THREADS", "")
        return own or (int(given) if str(given).isdecimal() else 0) or idle_cores()

    @cached_property
    def budget(self) -> Budget | None:
        """The count of all that was released with noise; None where there is no folder that outlasts a restart."""
        most = self.config.get(node_config.MOST_EPSILON)
        if self.folder is None and (state_dir := self.config.get(node_config.STATE_DIR)):
            return Budget(Path(str(state_dir)), None if most is None else float(most))
        if most is not None:
            raise OwnerRefusal("--most-epsilon counts in a state folder, and this device has none.")
        return None

    @property
    def is_simulated(self) -> bool:
        """Whether this is one of many devices in a simulation, which must give the same twice."""
        return self.folder is not None

    @property
    def is_real(self) -> bool:
        """Whether this is a device; Flower's own simulation, too, gives its clients no folder."""
        return not self.is_simulated and node_config.STATE_DIR in self.config

    @cached_property
    def state(self) -> DeviceState:
        """The device's own memory: a folder where one is given, else what Flower's SuperNode keeps."""
        if self.folder is not None:
            return DeviceState(FolderStore(self.folder / self.client, self.durable))
        if folder := self.config.get(node_config.STATE_DIR):
            return DeviceState(FolderStore(Path(str(folder)), self.durable))
        return DeviceState(ContextStore(self.context.state))

    @cached_property
    def client(self) -> str:
        """The stable identity: the name it was given, else its part of the data set, else one it made and kept."""
        if name := self.config.get(node_config.NAME):
            return str(name)
        if node_config.DATA not in self.config and node_config.PARTITION_ID in self.config:
            part = int(self.config[node_config.PARTITION_ID])
            return self._folder(part).name.partition(".csv")[0] if self._own else client_name(part, self.num_partitions)
        return self.state.identity()

    @property
    def about(self) -> dict[str, protocol.Scalar]:
        """What a real device says of itself beside its name: release, state folder, tags, and when it may work."""
        if self.folder is not None:
            return {}
        said: dict[str, protocol.Scalar] = {protocol.RELEASE: importlib.metadata.version(DISTRIBUTION)}
        if node_config.STATE_DIR in self.config:
            said[protocol.DEVICE_ID] = self.state.identity()
        if tags := str(self.config.get(node_config.TAGS, "")):
            said[protocol.TAGS] = tags.split(",")
        if self.watch is not None:
            said[protocol.CONDITIONS] = True
            if (refused := self.watch.refusal()) is not None:
                said |= {protocol.NOT_NOW: str(refused), protocol.AGAIN_IN: refused.seconds}
        if self.is_real and self.settings.run.is_endless:
            said |= {protocol.CONDITIONS: True, **(self._rest() if protocol.NOT_NOW not in said else {})}
        return said

    def _rest(self) -> dict[str, protocol.Scalar]:
        """That the device rests for want of new samples, and when to ask again; empty where it works."""
        from bouquet.client.data.new_samples import rests

        with suppress(BouquetError):  # of data that cannot be read the round says what is wrong
            needed = self.settings.server.new_samples
            if (rest := rests(self.state.store, self.context.run_id, self.data, needed, time.time())) is not None:
                private = self.settings.privacy.is_on
                reason = "too few new samples (server.new_samples)" if private else str(rest)
                return {protocol.NOT_NOW: reason, protocol.AGAIN_IN: rest.seconds}
        return {}

    @property
    def task(self) -> Task:
        """What is learned."""
        return task_of(self.settings)

    @property
    def num_partitions(self) -> int:
        """Among how many clients the data set is divided."""
        return int(self.config.get(node_config.NUM_PARTITIONS, self.settings.data.clients))

    @cached_property
    def data(self) -> ClientData:
        """The device's own folder, or its part of the data set in this round; looked at once in a message."""
        if self.blank is not None:
            return self.blank
        if folder := self.config.get(node_config.DATA):
            strict = bool(self.config.get(node_config.STRICT, False))
            try:
                return self._kept([Path(str(folder))], own_data, self.settings, str(folder), strict)
            except BouquetError as error:  # its text names files and folders of the owner's
                what = error.public if error.public != str(error) else "This device's own data do not fit this run."
                raise BouquetError(str(error), public=f"{what} {SAYS_MORE}") from error
        if self._own and (not self.settings.data.data_dir or node_config.PARTITION_ID not in self.config):
            raise BouquetError("This device was given no data: start its client with --data FOLDER.")
        if self._own:
            return own_data(self.settings, str(self._folder(int(self.config[node_config.PARTITION_ID]))))
        if node_config.PARTITION_ID not in self.config:
            raise BouquetError(
                "This device has neither data of its own (--data FOLDER) nor a part of the data set (--partition-id N)."
            )
        from bouquet.common.data.partitions import part_in_round

        settings, number = self.settings.data, int(self.config[node_config.PARTITION_ID])
        number = part_in_round(self.round, number, self.num_partitions, settings.drift)
        part = (self.settings, number, self.num_partitions)
        if settings.partition != "rotated" or ":" in settings.dataset or is_images(settings.dataset):
            return _part(*part)  # quicker made than read, or made of files that nobody here knows of
        root, below = settings.data_dir or os.environ.get(DATA_DIR_VARIABLE), dataset_info(settings.dataset).folder
        return self._kept([Path(root, below)] if root and below else [], _part, *part)

    @cached_property
    def data_warnings(self) -> tuple[str, ...]:
        """What is odd about the device's data, also against its own last rounds; there are no values in it."""
        about = self.settings.table
        if not self.is_real:
            return self.data.warnings
        from bouquet.client.data.drift import drifted

        return (*self.data.warnings, *drifted(self.state.store, self.data, about.words))

    def _kept(self, sources: Sequence[Path], make: Callable[..., ClientData], *given: Any) -> ClientData:
        """What ``make`` makes of the sources; on a device with a state folder, made once."""
        state_dir = self.config.get(node_config.STATE_DIR)
        if self.folder is not None or not state_dir:
            return make(*given)
        from bouquet.client.data.cache import prepared
        from bouquet.common.data.images import files_below

        settings = {"seed": self.settings.run.seed, **self.settings.data.model_dump(), "given": given[1:]}
        settings |= {"task": self.settings.task.model_dump(), "table": self.settings.table.model_dump()}
        card = ModelCard.of(self.settings)
        settings |= {"classes": card.classes, "input_shape": card.input_shape, "mean": card.mean, "std": card.std}
        files = (file for source in sources for file in files_below(source))
        return prepared(Path(str(state_dir)), files, settings, lambda: make(*given))

    @property
    def has_own_data(self) -> bool:
        """Whether the samples are the device's own: bytes as they are, floats as their owner prepared them."""
        return node_config.DATA in self.config or self._own

    @property
    def _own(self) -> bool:
        return self.settings.data.dataset == OWN_DATA

    def _folder(self, partition_id: int) -> Path:
        """A simulated client's folder of data of its own."""
        from bouquet.client.data.folder import client_folders

        folders = client_folders(self.settings.data.data_dir)
        if not 0 <= partition_id < len(folders):
            raise BouquetError(
                f"partition-id is {partition_id}; data.data_dir has {len(folders)} folders, 0 to {len(folders) - 1}."
            )
        return folders[partition_id]

    def class_names(self, count: int) -> tuple[str, ...]:
        """Names of the ``count`` classes, numbers where they have none."""
        names = self.settings.data.classes
        return names if len(names) == count else tuple(str(label) for label in range(count))

    @cached_property
    def _first_name(self) -> str:
        if self.folder is not None or node_config.STATE_DIR not in self.config or node_config.DATA not in self.config:
            return self.client
        return self.state.first_name(self.client)

    def seed(self, round_: int, stream: str = "") -> int:
        """The seed of this device's randomness in a round: of the run's seed, the device's identity and the round.

        Each name of a ``stream`` gives another seed.
        """
        text = f"{self.settings.run.seed}/{self._first_name}/{round_}" + (f"/{stream}" if stream else "")
        return zlib.crc32(text.encode())


def client_name(partition_id: int, num_partitions: int) -> str:
    """``client-07`` of twenty: names sort as numbers do."""
    return f"client-{partition_id:0{len(str(num_partitions - 1))}d}"


@lru_cache(maxsize=256)
def _part(settings: Settings, partition_id: int, num_partitions: int) -> ClientData:
    from bouquet.client.data.loading import part_of

    return part_of(settings, partition_id, num_partitions)


@lru_cache(maxsize=256)
def own_data(settings: Settings, folder: str, strict: bool = False) -> ClientData:
    """A device's own samples, bytes as bytes; of what cannot be read, little is left out, unless ``strict``.

    Raises `BouquetError`, with the file, for what does not fit.
    """
    try:
        return _read_data(settings, folder, strict)
    except OSError as error:  # a stick that was pulled out, rights that were taken away
        raise BouquetError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error


def _read_data(settings: Settings, folder: str, strict: bool) -> ClientData:
    from bouquet.client.data.own import load_folder, load_table

    if settings.table.inputs:
        return load_table(folder, settings, strict)
    card = ModelCard.of(settings)
    return load_folder(
        Path(folder),
        classes=card.classes,
        input_shape=card.input_shape,
        seed=settings.run.seed,
        test_fraction=settings.data.test_fraction,
        report=lambda line: print(line, flush=True),
        strict=strict,
        about=settings.table,
        by_time=settings.data.split == "time",
    )
