"""What one needs beside a model's tensors to use it alone: how to build it, what goes in, what comes out.

A device writes it into the file of its own model, so that the model can be used without a server, by another program
and after the run's settings are forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from bouquet.common.data.catalog import dataset_info
from bouquet.common.data.datasets import Floats, standardise
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import model_shape
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA, ModelSettings, TableSettings, TaskSettings
from bouquet.common.task.task import task_of

if TYPE_CHECKING:
    from torch import nn

# Images of the devices' own become −1 to 1; every device and the server must do the same.
OWN_MEAN, OWN_STD = (0.5,), (0.5,)


class ModelCard(BaseModel):
    """How a model is built, fed and read.

    Attributes:
        model: its name and options.
        input_shape: of one sample.
        classes: names in the order of the outputs.
        mean, std: of each channel or of all, subtracted from and divided into images whose bytes were divided by 255.
        untrained: names of classes of which the device that keeps the model had no sample to train on.
        task, table: what it was trained for, and the columns that it takes and tells, of tables.
        scaling: what the device that keeps the model standardises its table by.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: ModelSettings
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    untrained: tuple[str, ...] = ()
    task: TaskSettings = TaskSettings()
    table: TableSettings = TableSettings()
    scaling: Scaling | None = None

    @classmethod
    def of(cls, settings: Settings) -> ModelCard:
        """The card of the model that a run trains; classes without names are called by their numbers."""
        shape, num_classes = model_shape(settings)
        data = settings.data
        info = None if data.dataset == OWN_DATA else dataset_info(data.dataset, data.classes, data.input_shape)
        mean, std = (OWN_MEAN, OWN_STD) if info is None else (info.mean, info.std)
        if info is not None and not data.standardise:
            mean, std = (0.0,), (1.0,)
        names = data.classes
        if len(names) != num_classes and task_of(settings).has_classes:
            names = tuple(str(label) for label in range(num_classes))
        return cls(
            model=settings.model,
            input_shape=shape,
            classes=names,
            mean=mean,
            std=std,
            task=settings.task,
            table=settings.table,
        )

    def to_json(self) -> str:
        """JSON text that `from_json` reads back."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        """The inverse of `to_json`. Raises `BouquetError` for what another release wrote differently."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise BouquetError(
                f"The model's description was written by another release of Bouquet ({reason})."
            ) from None

    def build(self) -> nn.Module:
        """The model, with initial weights. Raises `BouquetError` when it is the user's own and cannot be imported."""
        from bouquet.common.model.architectures import build_model

        model = self.model
        shape, hidden = self.input_shape, model.hidden or None
        return build_model(model.name, shape, len(self.outputs), 0, hidden=hidden, norm=model.norm, least=1)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the outputs are of, in their order: classes, or columns of a table."""
        steps = range(1 - self.table.history, 1)  # of an anomaly's windows
        return self.classes or self.table.targets or tuple(f"{c} {k}" for c in self.table.words for k in steps)

    def inputs(self, raw: NDArray[Any]) -> Floats:
        """Samples (n, *input_shape) as the model takes them: bytes standardised, floats as they are."""
        return standardise_bytes(raw, self.mean, self.std)

    def facts(self) -> dict[str, Any]:
        """What a program that runs the exported model has to know, as plain JSON values."""
        return {
            "model": self.model.name,
            "input_shape": list(self.input_shape),
            "classes": list(self.classes),
            "mean": list(self.mean),
            "std": list(self.std),
            **({"table": self.table.model_dump(mode="json")} if self.table.inputs or self.table.targets else {}),
        }


def standardise_bytes(raw: NDArray[Any], mean: tuple[float, ...], std: tuple[float, ...]) -> Floats:
    """Bytes over 255 and standardised, (n, channels, …); anything else was prepared by its owner and is only cast."""
    if raw.dtype != np.uint8:
        return raw.astype(np.float32, copy=False)
    return standardise(raw.astype(np.float32) / np.float32(255), mean, std)
