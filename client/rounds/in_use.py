"""The model that a device has in use: a newer one takes its place unless it is worse on the newest test samples.

What the fleet finds better (`bouquet.client.rounds.serving`) says which kind of model a device is to serve; this says
of which round. Both models are tested on the test part as it is now. What may be chance does not count: else the best
of many rounds would be in use by these samples, and its score on them would say too much. The newer one takes the place
also where the two cannot be compared: another model, other classes, or frozen layers that are others.

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
from bouquet.common.model_selection import IN_USE
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar

if TYPE_CHECKING:
    from bouquet.client.rounds.session import Session

HUGE = 1e30  # the error of a model that has diverged
ROUND = "round"  # of what is kept in use: the round that it is of


class InUse(Observer):
    """The comparison after one message of a real device, around another observer."""

    def __init__(self, session: Session, inner: Observer) -> None:
        self.session, self.inner, self._has_trained = session, inner, False

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
        return said

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
        kept = state.recall(session.run, session.received.round + 1)
        if kept is None or PERSONAL not in kept.slots:
            return
        models = served_models(state, session.run, kept.round) or [kept.slots[PERSONAL]]
        newer = replace(kept, slots={str(k): model for k, model in enumerate(models)})
        before, taken_back = state.in_use(), state.taken_back()
        told = None if before is None else self._told(before, newer)
        y, score = session.test_data[1], session.node.task.score
        if before is not None and told is not None:
            of_newer, *of_older = (
                session.scorer.errors(outputs, y)
                for outputs in (self._told(newer, newer), told, *(self._told(one, newer) for one in taken_back))
                if outputs is not None
            )
            is_no_better = bool(taken_back) and any(not of_newer.mean() < older.mean() for older in of_older)
            if is_no_better or is_clearly_worse(of_newer, of_older[0]):
                session.metrics[IN_USE] = before.facts[ROUND] if before.run == session.run else 0
                if score.own in session.metrics:
                    session.metrics[score.own] = session.scorer.scores(told, y).score
                return
        number = 2 * session.received.round + session.is_evaluation
        state.use(replace(newer, round=number, facts={ROUND: kept.round}))

    def _told(self, of: Kept, beside: Kept) -> Tensor | None:
        """What kept models together tell of the test part; None where that cannot be compared."""
        session, then = self.session, _card(of)
        if then is None or of.backbone != beside.backbone or _lasting(then) != _lasting(_card(beside)):
            return None
        if session.node.task.reconstructs and then.scaling != session.scorer.scaling:
            return None
        outputs = [self._outputs(session.layout.flatten(model), then.scaling) for model in of.slots.values()]
        return session.node.task.together(outputs) if len(outputs) > 1 else outputs[0]

    def _outputs(self, model: Vector, then: Scaling | None) -> Tensor:
        """Outputs in today's units, of a model that was trained with the scaling of ``then``."""
        x, now = self.session.test_data[0], self.session.scorer.scaling
        if then is None or now is None or then == now:
            return evaluation.predict(self.session.load(model), x)
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        raw = x.cpu().double().numpy() * np.reshape(now.std, shape) + np.reshape(now.mean, shape)
        found = evaluation.predict(self.session.load(model), torch.as_tensor(then.inputs(raw)).to(x.device))
        return found.new_tensor(now.targets(then.undone(found.cpu().double().numpy()))) if now.target_std else found


def is_clearly_worse(errors: Tensor, others: Tensor) -> bool:
    """Whether the sum of differences between errors on the same samples (n,) is over two of its deviations."""
    more = torch.nan_to_num(errors.double(), nan=HUGE, posinf=HUGE) - torch.nan_to_num(others.double(), HUGE, HUGE)
    return bool(more.sum() > 2 * more.square().sum().sqrt())


def _card(of: Kept) -> ModelCard | None:
    """None where another release wrote it."""
    with suppress(BouquetError):
        return ModelCard.from_json(of.card)
    return None


def _lasting(card: ModelCard | None) -> ModelCard | None:
    """What of a card must be the same for two models to be compared; the rest changes as a device's data do."""
    return card and card.model_copy(update={"untrained": (), "scaling": None})
