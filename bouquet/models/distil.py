"""``bouquet export --distil``: one model in the place of a mixture, trained on the device to say what it says.

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network. 2015. It begins as the device's model after
training, and is taught the mixture's outputs on the device's own training data; labels are not looked at. What it is
worth: docs/decisions.md.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from bouquet.client.data.cache import kept_data
from bouquet.client.data.loading import ClientData
from bouquet.client.training import evaluation, sgd
from bouquet.client.training.evaluation import Judge
from bouquet.client.training.sgd import SGDOptions, TrainingLoss
from bouquet.client.training.transforms import standardising
from bouquet.common.errors import BouquetError
from bouquet.common.model.freezing import freeze
from bouquet.common.system.files import write_atomically
from bouquet.models.export import exported
from bouquet.models.kept import KeptModel, Mixture, Scaled

# No settings: with these the one model was at most .009 below the mixture (docs/decisions.md). The step is
# small because it begins where training ended.
TRAINING = SGDOptions(local_epochs=40, batch_size=32, learning_rate=0.02, momentum=0.9)
_CALLS = 20


@dataclass(frozen=True)
class Cost:
    """What a model is worth and takes: its score on the device's test part, bytes of its file, ms for a sample."""

    score: float
    size: int
    milliseconds: float


def export_one(kept: KeptModel, file: Path) -> tuple[Cost, Cost, int]:
    """Write one model that says what the mixture ``kept`` says, as `bouquet.models.export.export` does.

    Returns what the mixture and the one model take, and on how many samples of the device they were tested. Raises
    `BouquetError` where there is no mixture, its data are gone or do not fit, and as `export` does.
    """
    if not isinstance(_inner(kept), Mixture):
        raise BouquetError(f"{kept.origin} is one model: there is no mixture to distil. Leave --distil out.")
    data = kept_data(kept.data) if kept.data else None
    if data is None or kept.data is None:
        raise BouquetError(
            f"The data that {kept.origin} was trained on are not kept: --distil needs a device with data of its own "
            "(bouquet client --data), whose state folder keeps them since its last round. Without --distil the mixture "
            "itself is written."
        )
    one = distil(kept, data, zlib.crc32(kept.data.name.encode()))
    contents = [exported(model, file) for model in (kept, one)]
    write_atomically(file, contents[1])
    both = [
        Cost(score_of(model, data), len(content), milliseconds(model))
        for model, content in zip((kept, one), contents, strict=True)
    ]
    return both[0], both[1], len(data.test_y)


def distil(kept: KeptModel, data: ClientData, seed: int) -> KeptModel:
    """One model, taught by the mixture ``kept`` on the training data; the same for the same ``seed``."""
    card, mixture = kept.card, _inner(kept)
    assert isinstance(mixture, Mixture)
    fits = (data.num_classes, data.input_shape, data.scaling) == (len(card.classes), card.input_shape, card.scaling)
    if not fits:
        raise BouquetError(
            f"{kept.origin} takes samples of shape {card.input_shape} and tells {len(card.classes)} classes; what the "
            f"device keeps has {data.input_shape} and {data.num_classes}, or another scaling: labels or columns have "
            "changed since. Try again after the device's next round."
        )
    one = card.build()
    one.load_state_dict(mixture.models[-1].state_dict())  # their names are sorted: "trained" is the last
    freeze(one, card.model.frozen)
    x, generator = torch.as_tensor(data.train_x), torch.Generator().manual_seed(seed)
    hook = one.register_forward_pre_hook(standardising(card), prepend=True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # dropout
            loss = TrainingLoss(loss=kept.task.imitation_loss)
            sgd.train(one, x, _outputs(mixture, kept, x), TRAINING, [], generator, loss_of=loss)
    finally:
        hook.remove()
    model: nn.Module = one if card.scaling is None else Scaled(one, card.scaling, card.input_shape)
    return replace(kept, model=model.eval().requires_grad_(False))


def score_of(kept: KeptModel, data: ClientData) -> float:
    """The score on the device's test part."""
    outputs = _outputs(_inner(kept), kept, torch.as_tensor(data.test_x))
    return Judge(kept.task, data.scaling).scores(outputs, torch.as_tensor(data.test_y)).score


def milliseconds(kept: KeptModel) -> float:
    """The least time that PyTorch takes here for one sample."""
    x, times = torch.zeros(1, *kept.card.input_shape), []
    with torch.inference_mode():
        for _ in range(_CALLS):
            started = time.perf_counter()
            kept.model(x)
            times.append(time.perf_counter() - started)
    return 1000 * min(times)


def _inner(kept: KeptModel) -> nn.Module:
    """The model or mixture as it was trained, in the scaled units of a table."""
    return kept.model.model if isinstance(kept.model, Scaled) else kept.model


def _outputs(model: nn.Module, kept: KeptModel, x: torch.Tensor) -> torch.Tensor:
    """Outputs of samples as the device keeps them, bytes as bytes."""
    hook = model.register_forward_pre_hook(standardising(kept.card), prepend=True)
    try:
        return evaluation.predict(model, x)
    finally:
        hook.remove()
