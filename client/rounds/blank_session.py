"""A reply that says nothing of the device's data, in the form of the one that could not be given.

Under an owner's demand for noise nothing may leave that is made of the data and has none: also not that something went
wrong with them. A model can be made to diverge, or to run out of memory, on some data and not on others. So the
procedure runs again as on a device that holds one blank sample and learns nothing: by the same code, so that its reply
has the same parts, is noised and is counted. What went wrong is in the device's own log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bouquet.client.rounds.samples import RoundSamples, Samples
from bouquet.client.rounds.session import Session
from bouquet.client.training import evaluation, sgd
from bouquet.client.training.objective import Term
from bouquet.client.training.sgd import SGDOptions, TrainingLoss
from bouquet.common import protocol
from bouquet.common.model.build import model_shape
from bouquet.common.parameters.layout import Vector


class _BlankSamples(RoundSamples):
    """Two blank samples of the first class, for whatever they are asked for."""

    def split(self, fraction: float) -> tuple[Samples, Samples]:
        """All of them, for either part."""
        return self.all_train, self.all_train


@dataclass
class BlankSession(Session):
    """A session of the same message: its data are blank, nobody listens, and training ends where it began.

    That is kept, as a round's model is: a device that had kept nothing would say so in the next round.
    """

    @classmethod
    def of(cls, session: Session) -> BlankSession:
        """The blank session in the place of one that failed."""
        s = session
        return cls(s.message, s.node, s.built, s.device, s.received, s.run, s.copies, s.private)

    @cached_property
    def samples(self) -> RoundSamples:
        """Blank ones."""
        self.metrics[protocol.GROUP] = -1
        shape, outputs = model_shape(self.node.settings)
        x = torch.zeros(2, *shape, device=self.device)
        labels = torch.zeros(2, dtype=torch.int64, device=self.device)
        blank = x, labels if self.node.task.has_classes else torch.zeros(2, outputs, device=self.device)
        return _BlankSamples(blank, blank, seed=0)

    @property
    def loss_of(self) -> TrainingLoss:
        """That of samples as they are."""
        task = self.node.task
        return sgd.PLAIN if task.has_classes else TrainingLoss(loss=task.loss)

    @property
    def scorer(self) -> evaluation.Scorer:
        """By the task alone: the data, and their scale, are not looked at again."""
        return evaluation.Scorer(self.node.task)

    def train(
        self,
        start: Vector,
        terms: Sequence[Term] = (),
        data: Samples | None = None,
        stream: str = "",
        layers: Sequence[str] | None = None,
        **changes: Any,
    ) -> tuple[Vector, float]:
        """The model that it begins with."""
        return start, 0.0

    def options(self, **changes: Any) -> SGDOptions:
        """Those that were sent, and no epoch: a procedure that trains by itself ends where it began, too."""
        return replace(super().options(**changes), local_epochs=0)

    def gradient(self, vector: Vector, data: Samples | None = None, stream: str = "") -> Vector:
        """None: zero (d,)."""
        return np.zeros(self.layout.dim, dtype=np.float32)
