"""The model that a device has in use: a newer one takes its place unless it is worse on the newest test samples.

The fleet decides which kind of model devices serve (`bouquet.client.rounds.serving`); here a device decides from which
round. Both models are tested on the test part as it is now, and only a clearly worse newer one is turned away. To keep
the best of many rounds instead would choose a model by its luck on these samples. Two models that cannot be compared
(another architecture, other classes, other frozen layers) are not: the newer one is taken.

On fewer than `FEWEST` test samples no model can be clearly worse. In a run without an end such a device takes a new
model only after it has held on other devices of its cluster (`bouquet.strategies.base.filters.canary`).

What an owner took back (``bouquet rollback``) stays out of use until a model is better than both it and the one in use.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bouquet.client.rounds.observer import Observer
from bouquet.client.rounds.serving import served_models
from bouquet.client.state.device_state import PERSONAL, Kept
from bouquet.client.training import evaluation
from bouquet.client.training.evaluation import Scores
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError, NotNow
from bouquet.common.model.card import ModelCard
from bouquet.common.model_selection import HELD, IN_USE, VOTE
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar

if TYPE_CHECKING:
    from bouquet.client.rounds.session import Session

HUGE = 1e30  # the error of a model that has diverged
FEWEST = 5  # test samples: n differences of 1 sum to more than two deviations, 2 √n, from 5 on
ROUND = "round"  # of what is kept in use: the round that it is of


class InUse(Observer):
    """The comparison after one message of a real device, around another observer."""

    def __init__(self, session: Session, inner: Observer) -> None:
        self.session, self.inner, self._has_trained = session, inner, False
        self._vote: dict[str, Scalar] = {}

    @property
    def keeps_fold(self) -> bool:
        """As the other one has it."""
        return self.inner.keeps_fold

    def on_start(self, start: Vector) -> None:
        """For the other one."""
        self.inner.on_start(start)

    def on_keep(self, personal: Vector) -> None:
        """There will be a newer model."""
        self._has_trained = True
        self.inner.on_keep(personal)

    def on_reply(self, uploaded: Vector | None, from_received: bool) -> dict[str, Scalar]:
        """At the end of a train message, once the other one has kept its models."""
        said = self.inner.on_reply(uploaded, from_received)
        if self._has_trained:
            self._choose()
        return said | self._vote

    def on_test(self, vector: Vector) -> Scores | None:
        """At the end of an evaluate message, which may have brought a newer model."""
        scores = self.inner.on_test(vector)
        self._choose()
        return scores

    def _choose(self) -> None:
        """Have the newer model in use, or say which one stays; where that cannot be told or kept, the one before."""
        try:
            self._compare()
        except NotNow:
            raise
        except BouquetError:
            pass

    def _compare(self) -> None:
        session, state = self.session, self.session.node.state
        newest, before = self._served(session.received.round + 1), state.in_use()
        if newest is None:
            return
        newest = replace(newest, round=2 * session.received.round + session.is_evaluation)
        outputs = None if before is None else self._predict(before, newest)
        newer_outputs = None if outputs is None else self._predict(newest, newest)
        if before is None or outputs is None or newer_outputs is None:
            state.use(newest)
            return
        newer: Kept | None = newest
        if HELD in session.received.config:
            more = _excess(self._errors(newer_outputs), self._errors(outputs)).sum()
            self._vote = {VOTE: int(torch.sign(more))}
            if len(session.test_data[1]) < FEWEST:
                newer = self._held(before)
                newer_outputs = None if newer is None else self._predict(newer, newest)
        if newer is not None and newer_outputs is not None and self._is_taken(newer_outputs, outputs, newest):
            state.use(newer)
            before, outputs = newer, newer_outputs
        if before is not newest:
            score = session.node.task.score
            session.metrics[IN_USE] = before.facts[ROUND] if before.run == session.run else 0
            if score.own in session.metrics:
                session.metrics[score.own] = session.scorer.scores(outputs, session.test_data[1]).score

    def _served(self, end: int) -> Kept | None:
        """What the device made to serve in the last round before ``end``, numbered as `DeviceState.use` has it."""
        session, state = self.session, self.session.node.state
        kept = state.recall(session.run, end)
        if kept is None or PERSONAL not in kept.slots:
            return None
        models = served_models(state, session.run, kept.round) or [kept.slots[PERSONAL]]
        slots = {str(k): model for k, model in enumerate(models)}
        return replace(kept, round=2 * kept.round, slots=slots, facts={ROUND: kept.round})

    def _held(self, before: Kept) -> Kept | None:
        """What was made in the round before, where it held on other devices and nothing as new is in use."""
        held = self._served(self.session.received.round)
        if held is None or held.facts[ROUND] != self.session.received.config[HELD]:
            return None
        return held if before.run != held.run or before.facts[ROUND] < held.facts[ROUND] else None

    def _is_taken(self, outputs: Tensor, outputs_before: Tensor, newest: Kept) -> bool:
        """Whether a model with these outputs may take the place, after all that the owner took back."""
        errors, of_before = self._errors(outputs), self._errors(outputs_before)
        back = [self._predict(one, newest) for one in self.session.node.state.taken_back()]
        older = [of_before, *(self._errors(one) for one in back if one is not None)]
        is_no_better = bool(back) and any(not errors.mean() < one.mean() for one in older)
        return not is_no_better and not is_clearly_worse(errors, of_before)

    def _errors(self, outputs: Tensor) -> Tensor:
        return self.session.scorer.errors(outputs, self.session.test_data[1])

    def _predict(self, models: Kept, newest: Kept) -> Tensor | None:
        """The outputs of kept models together on the test part; None where they cannot be compared with the newest."""
        session, then = self.session, _card(models)
        if then is None or models.backbone != newest.backbone or _lasting(then) != _lasting(_card(newest)):
            return None
        if session.node.task.reconstructs and then.scaling != session.scorer.scaling:
            return None
        outputs = [self._outputs(session.layout.flatten(model), then.scaling) for model in models.slots.values()]
        return session.node.task.together(outputs) if len(outputs) > 1 else outputs[0]

    def _outputs(self, model: Vector, then: Scaling | None) -> Tensor:
        """Outputs in today's units, of a model that was trained with the scaling of ``then``."""
        x, now = self.session.test_data[0], self.session.scorer.scaling
        if then is None or now is None or then == now:
            return evaluation.predict(self.session.load(model), x)
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        raw = x.cpu().double().numpy() * np.reshape(now.std, shape) + np.reshape(now.mean, shape)
        outputs = evaluation.predict(self.session.load(model), torch.as_tensor(then.inputs(raw)).to(x.device))
        if not now.target_std:
            return outputs
        return outputs.new_tensor(now.targets(then.undone(outputs.cpu().double().numpy())))


def is_clearly_worse(errors: Tensor, others: Tensor) -> bool:
    """Whether the sum of differences between errors on the same samples (n,) is over two of its deviations."""
    more = _excess(errors, others)
    return bool(more.sum() > 2 * more.square().sum().sqrt())


def _excess(errors: Tensor, others: Tensor) -> Tensor:
    return torch.nan_to_num(errors.double(), nan=HUGE, posinf=HUGE) - torch.nan_to_num(others.double(), HUGE, HUGE)


def _card(of: Kept) -> ModelCard | None:
    """None where another release wrote it."""
    with suppress(BouquetError):
        return ModelCard.from_json(of.card)
    return None


def _lasting(card: ModelCard | None) -> ModelCard | None:
    """What of a card must be the same for two models to be compared; the rest changes as a device's data do."""
    return card and card.model_copy(update={"untrained": (), "scaling": None})
