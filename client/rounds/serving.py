"""What a device serves in the place of its method's own model: models that it keeps beside, by message.

They lie beside the method's own state, which is as without them, and nothing of them is uploaded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bouquet.client.rounds.observer import Observer
from bouquet.client.rounds.samples import Samples
from bouquet.client.state.device_state import Arrays, DeviceState
from bouquet.client.training.evaluation import Scores
from bouquet.common import model_selection
from bouquet.common.errors import BouquetError
from bouquet.common.model_selection import MIXTURE, REFERENCE, SERVED_NAMES
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import ARRAYS

if TYPE_CHECKING:
    from bouquet.client.rounds.session import Session

SERVED = "served"  # the name of what is kept in each round
LEFT_OUT = "left-out"  # the slot of the model alone where it is not in the mixture
_KIND = "kind"
_VERSIONS = 3  # files that stay: a server that was restarted repeats a round
# Share of `server.round_timeout`. If the method's own work took longer, the model alone is not trained in this round:
# the reply could come too late.
SHARE_OF_ROUND = 1 / 3


@dataclass(frozen=True)
class KeptModels:
    """The ``models`` (d,) that were kept after a message, by slot, and what of `SERVED_NAMES` is served."""

    models: Mapping[str, Vector]
    kind: str = REFERENCE

    @property
    def alone(self) -> Vector | None:
        """The model that was trained alone, served or not."""
        return self.models.get(REFERENCE, self.models.get(LEFT_OUT))


class Serving(Observer):
    """Notes the models that pass through a session, and keeps some of them, under ``file_name``."""

    file_name: ClassVar[str] = SERVED

    def __init__(self, session: Session) -> None:
        self.session = session
        self.started: Vector | None = None
        self.personal: Vector | None = None
        self._alone: Vector | None = None
        self.began = time.monotonic()

    def on_start(self, start: Vector) -> None:
        """Note what training starts from."""
        self.started = start

    def on_keep(self, personal: Vector) -> None:
        """Note the method's personal model."""
        self.personal = personal

    def received(self) -> Vector | None:
        """The model that was sent, whole or put together with the device's own layers; None where none was sent."""
        payload = self.session.received.models.get(ARRAYS)
        if payload is not None and payload.layers == self.session.layout.layers:
            return payload.vector
        return self.started if self.session.received.models and self.session.received.start == "received" else None

    @property
    def version(self) -> int:
        """Even for a round of training, odd for the evaluation after it."""
        return 2 * self.session.received.round + self.session.is_evaluation

    @property
    def last_alone(self) -> Vector | None:
        """The model alone, as far as it is trained."""
        return self._alone

    def save(self, kept: KeptModels) -> None:
        """Write what is kept after this message; no room for it is no reason to lose the round."""
        layout = self.session.layout
        arrays: Arrays = {
            f"{slot}/{name}": array
            for slot, model in kept.models.items()
            for name, array in layout.unflatten(model).items()
        }
        arrays[_KIND] = np.array([SERVED_NAMES.index(kept.kind)], dtype=np.int64)
        with suppress(BouquetError):
            self.session.node.state.save_arrays(
                self.session.run, self.file_name, self.version, arrays, self._earlier()[:_VERSIONS]
            )

    def train_alone(self, data: Samples) -> Vector | None:
        """A round of training alone on these samples, from where the last one ended (d,), with the randomness of a
        device that runs ``standalone``; None where there was never time for one.

        It costs no round: where its owner ends the work, where there is no time, or where it diverges, it lacks this
        one. The second message of a round finds what the first one trained, and where the method sends nothing either
        way there is nothing to train.
        """
        session, received = self.session, self.session.received
        if (trained := self.kept_at(self.version).alone) is not None:
            self._alone = trained
        elif not (received.models or received.upload):
            self._alone = self.personal
        else:
            self._alone = before = self.kept_before().alone
            if time.monotonic() - self.began <= session.node.settings.server.round_timeout * SHARE_OF_ROUND:
                with suppress(BouquetError):
                    self._alone = session.train(session.initial if before is None else before, data=data)[0]
        return self._alone

    def note_served(self, kind: str, *models: Vector) -> Scores:
        """Note what of `SERVED_NAMES` is served, and its score; all of its scores."""
        scores, metrics = self.session.test(*models), self.session.metrics
        metrics[model_selection.CHOSEN] = SERVED_NAMES.index(kind)
        metrics[self.session.node.task.score.served] = scores.score
        return scores

    def kept_before(self) -> KeptModels:
        """What was kept before this message, of this run; no models where nothing was."""
        return next((kept for version in self._earlier() if (kept := self.kept_at(version)).models), KeptModels({}))

    def kept_at(self, version: int) -> KeptModels:
        """What was kept after a message of this run; no models where that is lost."""
        arrays = self.session.node.state.load_arrays(self.session.run, self.file_name, version)
        if arrays is None:
            return KeptModels({})
        models = {slot: self.session.layout.flatten(own) for slot, own in _slots(arrays).items()}
        return KeptModels(models, SERVED_NAMES[int(arrays[_KIND][0])])

    def _earlier(self) -> list[int]:
        return [v for v in self.session.node.state.array_versions(self.session.run, self.file_name) if v < self.version]


def served_models(state: DeviceState, run: str, round_: int) -> list[Arrays]:
    """The tensors of the models that the device serves after a round of a run, or the evaluation after it.

    Several are a mixture; where there is none, it serves the method's own.
    """
    for version in (2 * round_ + 1, 2 * round_):
        if (arrays := state.load_arrays(run, SERVED, version)) is not None:
            kind = SERVED_NAMES[int(arrays[_KIND][0])]
            return [
                own for slot, own in _slots(arrays).items() if slot == kind or (kind == MIXTURE and slot != LEFT_OUT)
            ]
    return []


def _slots(arrays: Arrays) -> dict[str, Arrays]:
    """Slot → its tensors by name, in the order of the names: a file gives them in another one each time."""
    slots: dict[str, Arrays] = {}
    for key, array in sorted(arrays.items()):
        slot, separator, name = key.partition("/")
        if separator:
            slots.setdefault(slot, {})[name] = array
    return slots
