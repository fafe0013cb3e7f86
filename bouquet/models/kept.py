"""Models that a federation left behind: the device's own in its state folder, a cluster's in a run folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from torch import Tensor, nn

from bouquet.client.data.cache import FOLDER as DATA
from bouquet.client.rounds.in_use import ROUND
from bouquet.client.rounds.serving import served_models
from bouquet.client.state.device_state import PERSONAL, DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.client.trust.policy import OWN_CODE
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS, outside_methods
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import Settings
from bouquet.common.task.task import Task, has_own_units, make_task
from bouquet.common.texts import setting_of
from bouquet.common.torchvision_compat import TORCHVISION
from bouquet.server.run_folder import MODELS, SETTINGS, START_ARRAYS, SUMMARY

if TYPE_CHECKING:
    from bouquet.server.record.versions import Version


class Mixture(nn.Module):
    """Several models as one, which says what they say together."""

    def __init__(self, models: Sequence[nn.Module], task: Task) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.task = task

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, classes or targets) of samples (n, *input_shape)."""
        return self.task.together([model(x) for model in self.models])


class Scaled(nn.Module):
    """A model of tables whose inputs and outputs are in the units of the table."""

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, model: nn.Module, scaling: Scaling, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.tells_numbers = model, bool(scaling.target_std)
        shape = (1, -1, *(1 for _ in input_shape[1:]))
        for name, values in (("mean", scaling.mean), ("std", scaling.std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).reshape(shape))
        self.limits = tuple((k, *limit) for k, limit in enumerate(scaling.limits) if limit is not None)
        for name, values in (("target_mean", scaling.target_mean), ("target_std", scaling.target_std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, classes or targets) of samples (n, *input_shape), as exact as the samples are.

        A meter's level has more digits than float32: it is scaled in float64, as in training.
        """
        inputs = x
        if self.limits:
            columns = list(x.unbind(1))
            for k, low, high in self.limits:
                columns[k] = columns[k].clamp(low, high)
            inputs = torch.stack(columns, 1)
        outputs: Tensor = self.model(((inputs - self.mean) / self.std).float())
        return (outputs * self.target_std + self.target_mean).to(x.dtype) if self.tells_numbers else outputs


@dataclass(frozen=True)
class KeptModel:
    """A model that can be used: built and loaded, with its card and a few words on where it comes from.

    ``data`` is the file of this device that keeps what it was trained on (`bouquet.client.data.cache`); None where none
    does.
    """

    model: nn.Module
    card: ModelCard
    origin: str
    data: Path | None = None

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return make_task(self.card.task)

    @torch.inference_mode()
    def numbers(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """What a model without classes tells, (n, targets), of samples in the table's own units."""
        outputs: NDArray[Any] = self.model(torch.as_tensor(inputs)).numpy()
        return outputs

    @torch.inference_mode()
    def probabilities(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Class probabilities (n, classes) of samples (n, *input_shape) that went through `ModelCard.inputs`."""
        logits = self.model(torch.as_tensor(inputs))
        outputs: NDArray[Any] = logits.float().softmax(dim=-1).numpy()
        return outputs


def device_model(state_dir: Path, allowed: Collection[str] = ()) -> KeptModel:
    """What this device serves since its last round: one of its models, or a mixture of them.

    Of code of the user's own (``package.module:factory``) only what is ``allowed`` is imported. Raises `BouquetError`
    where there is none, and says how to get one.
    """
    there = state_dir.is_dir()
    with _owners(state_dir) as state:
        used = state.in_use() if state else None
        kept = used or (state.latest() if state else None)
    if kept is None or (used is None and PERSONAL not in kept.slots):
        what = "holds no model yet" if there else "is not there"
        raise BouquetError(
            f"The state folder {state_dir} {what}: a device keeps its model at the end of its first round. Give "
            "--state-dir as bouquet client was given it."
        )
    if not kept.card:
        raise BouquetError(
            f"The model in {state_dir} was kept for another's ClientApp, without what is needed to use it alone."
        )
    backbone: Mapping[str, NDArray[Any]] | None = {}
    if kept.backbone:
        backbone = DeviceState(FolderStore(state_dir, durable=False)).recall_backbone(kept.run, kept.backbone)
    if backbone is None:
        raise BouquetError(
            f"The frozen layers of the model in {state_dir} are lost or damaged; the device is sent them again in its "
            "next round."
        )
    if used is not None:
        round_, served = used.facts[ROUND], [*used.slots.values()]
    else:
        round_ = kept.round
        served = (served_models(state, kept.run, round_) if state else []) or [kept.slots[PERSONAL]]
    model = _loaded(kept.card, [{**backbone, **own} for own in served], f"{state_dir}, round {round_}", allowed)
    return replace(model, data=state_dir / DATA / kept.data) if kept.data else model


def roll_back(state_dir: Path) -> str:
    """Have the device use the model before the one in use; which that is. Raises `BouquetError` without one."""
    with _owners(state_dir) as state:
        if state is None:
            raise BouquetError(f"The state folder {state_dir} is not there.")
        kept, latest = state.roll_back(), state.latest()
    earlier = latest is not None and latest.run != kept.run
    return f"round {kept.facts[ROUND]}{' of an earlier run' if earlier else ''}"


@contextmanager
def _owners(state_dir: Path) -> Iterator[DeviceState | None]:
    """What a state folder holds; none is made where there is none, because asking must not leave one behind."""
    try:
        yield DeviceState(FolderStore(state_dir)) if state_dir.is_dir() else None
    except PermissionError:
        raise BouquetError(
            f"The state folder {state_dir} is another user's; run the command as the one that runs the client, e.g. "
            "sudo -u bouquet."
        ) from None


def cluster_model(run: Path, cluster: int, allowed: Collection[str] = ()) -> KeptModel:
    """The model of a cluster at the end of a run; before that, the one that its devices were sent last.

    Raises `BouquetError` where the run folder has none. ``allowed`` is as in `device_model`.
    """
    settings = _cluster_settings(run, allowed)
    file, start = run / MODELS / f"cluster-{cluster}.safetensors", run / START_ARRAYS
    sent = [version.path for version in _sent(run) if version.cluster == cluster]
    try:
        # A version lacks the layers that are frozen, which all have as the run began with them.
        tensors = {} if not sent or not start.exists() else load_safetensors(start.read_bytes())
        tensors |= load_safetensors((sent[-1] if sent else file).read_bytes())
    except FileNotFoundError:
        there = ", ".join(map(str, clusters_of(run)))
        available = f"clusters {there}" if there else "no models; they are written at the end of a run"
        raise BouquetError(f"There is no file {file}; the run has {available}.") from None
    except (OSError, SafetensorError) as error:
        raise BouquetError(f"The model {file} cannot be read ({error}).") from None
    return _loaded(_cluster_card(run, settings).to_json(), [tensors], f"{run}, cluster {cluster}", allowed)


def clusters_of(run: Path) -> list[int]:
    """The clusters whose models a run has at its end; before that, those that were sent one in the last round."""
    if sent := _sent(run):
        return sorted(version.cluster for version in sent if version.round == sent[-1].round)
    files = run.glob(f"{MODELS}/cluster-*.safetensors")
    return sorted(int(path.stem.removeprefix("cluster-")) for path in files)


def _sent(run: Path) -> list[Version]:
    """What the clusters of a run that goes on were sent; nothing of one that has ended, whose models are written."""
    from bouquet.server.record.versions import versions  # with Flower's server, as below

    return [] if (run / SUMMARY).exists() else versions(run)


def run_card(run: Path, allowed: Collection[str] = ()) -> ModelCard:
    """What the clusters' models of a run take and tell. Raises `BouquetError` where they cannot be used by themselves.

    ``allowed`` is as in `device_model`.
    """
    return _cluster_card(run, _cluster_settings(run, allowed))


def _cluster_settings(run: Path, allowed: Collection[str]) -> Settings:
    settings = _run_settings(run, allowed)
    if _on_devices_only(settings.strategy.name):
        raise BouquetError(
            f"The run {run} is of {settings.strategy.name!r}, whose models are on the devices: use --state-dir there."
        )
    return settings


def _cluster_card(run: Path, settings: Settings) -> ModelCard:
    if has_own_units(settings):
        raise BouquetError(
            f"The run {run} is of numbers, which each device scales by its own: a model "
            "alone does not know the units. Use --state-dir on a device."
        )
    return ModelCard.of(settings)


def _on_devices_only(name: str) -> bool:
    """As the method's class says; False for code that a record names by its place, which is not run here."""
    if name not in METHODS and name not in outside_methods():
        return False
    from bouquet.strategies.registry import (
        strategy_class,  # with Flower's server, which a device's own model does not need
    )

    return strategy_class(name).models_on_devices_only


def _run_settings(run: Path, allowed: Collection[str]) -> Settings:
    file = run / SETTINGS
    try:
        text = file.read_bytes()
        _check_code(text, str(run), allowed)
        return Settings.from_json(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BouquetError(f"{run} is no run folder: {file} cannot be read ({reason}).") from None


def _check_code(text: str | bytes, origin: str, allowed: Collection[str]) -> None:
    """Raise `BouquetError` where settings or a card name code that was not allowed: opening a folder imports nothing.

    Raises `ValueError` for what is no JSON.
    """
    named = json.loads(text)
    for key, (what, _) in OWN_CODE.items():
        name = str(setting_of(named, key)) if isinstance(named, Mapping) else ""
        if ":" in name and not name.startswith(TORCHVISION) and name not in allowed:
            raise BouquetError(
                f"{origin} names the {what} {name!r}, code that is not Bouquet's, which using the model would run. If "
                f"you trust it, give --allow-model {name}."
            )


def _loaded(
    card: str, models: Sequence[Mapping[str, NDArray[Any]]], origin: str, allowed: Collection[str]
) -> KeptModel:
    _check_code(card, origin, allowed)
    described = ModelCard.from_json(card)
    built = [described.build() for _ in models]
    try:
        for one, tensors in zip(built, models, strict=True):
            one.load_state_dict({name: torch.as_tensor(array) for name, array in tensors.items()})
    except RuntimeError:
        raise BouquetError(
            f"The tensors of {origin} do not fit model {described.model.name!r} as it is built here: its code has "
            "changed since it was trained."
        ) from None
    model = built[0] if len(built) == 1 else Mixture(built, make_task(described.task))
    if described.scaling is not None:
        model = Scaled(model, described.scaling, described.input_shape)
    return KeptModel(model.eval().requires_grad_(False), described, origin)
