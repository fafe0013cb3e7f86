"""The model that a device has in use: a newer one takes its place unless it is worse on the newest test samples.

What the fleet finds better (`bouquet.client.rounds.serving`) says which kind of model a device is to serve; this says
of which round. Both models are tested on the test part as it is now. With fewer than `LEAST_TESTED` samples chance
would decide, and the newer one takes the place. So it does where the two cannot be compared: another model, other
classes, or frozen layers that are others.

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
from bouquet.common.model_selection import IN_USE, LEAST_TESTED
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar

if TYPE_CHECKING:
    from bouquet.client.rounds.session import Session

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
        session, state, score = self.session, self.session.node.state, self.session.node.task.score
        kept = state.recall(session.run, session.received.round + 1)
        if kept is None or PERSONAL not in kept.slots:
            return
        models = served_models(state, session.run, kept.round) or [kept.slots[PERSONAL]]
        newer = replace(kept, slots={str(k): model for k, model in enumerate(models)})
        before, taken_back = state.in_use(), state.taken_back()
        own, found = (self._score(one, newer) if one else None for one in (before, newer))
        is_judged = bool(taken_back) or len(session.test_data[1]) >= LEAST_TESTED
        if before and own is not None and found is not None and is_judged:
            bars = [own, *(self._score(other, newer) for other in taken_back)] if taken_back else []
            if score.is_better(own, found) or any(b is not None and not score.is_better(found, b) for b in bars):
                session.metrics[IN_USE] = before.facts[ROUND] if before.run == session.run else 0
                if score.own in session.metrics:
                    session.metrics[score.own] = own
                return
        number = 2 * session.received.round + session.is_evaluation
        state.use(replace(newer, round=number, facts={ROUND: kept.round}))

    def _score(self, of: Kept, beside: Kept) -> float | None:
        """The score on the test part of what kept models say together; None where it cannot be told."""
        session, then = self.session, _card(of)
        if then is None or of.backbone != beside.backbone or _lasting(then) != _lasting(_card(beside)):
            return None
        if session.node.task.reconstructs and then.scaling != session.scorer.scaling:
            return None
        outputs = [self._outputs(session.layout.flatten(model), then.scaling) for model in of.slots.values()]
        together = session.node.task.together(outputs) if len(outputs) > 1 else outputs[0]
        return session.scorer.scores(together, session.test_data[1]).score

    def _outputs(self, model: Vector, then: Scaling | None) -> Tensor:
        """Outputs in today's units, of a model that was trained with the scaling of ``then``."""
        x, now = self.session.test_data[0], self.session.scorer.scaling
        if then is None or now is None or then == now:
            return evaluation.predict(self.session.load(model), x)
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        raw = x.cpu().double().numpy() * np.reshape(now.std, shape) + np.reshape(now.mean, shape)
        found = evaluation.predict(self.session.load(model), torch.as_tensor(then.inputs(raw)).to(x.device))
        return found.new_tensor(now.targets(then.undone(found.cpu().double().numpy()))) if now.target_std else found


def _card(of: Kept) -> ModelCard | None:
    """None where another release wrote it."""
    with suppress(BouquetError):
        return ModelCard.from_json(of.card)
    return None


def _lasting(card: ModelCard | None) -> ModelCard | None:
    """What of a card must be the same for two models to be compared; the rest changes as a device's data do."""
    return card and card.model_copy(update={"untrained": (), "scaling": None})
