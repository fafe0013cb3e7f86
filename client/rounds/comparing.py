"""``[personal] compare``: what a device uses, beside what it would have alone and the model that it was sent.

Who has trained a fleet for a night wants to know of each device whether that was worth it. So the device trains one
more model: in each of its rounds, as the round is set, from the run's first model, on its own data, as ``standalone``
would. It is kept in the device's folder, and tested on the same test part as the others. What leaves is a number,
withheld wherever the other scores are.

All three figures are of after the round: what ``bouquet predict`` answers with, the model alone after as many rounds,
and the one that was received, untouched.

It costs no round: where the owner ends the work meanwhile, or there is no time or no room, the reply goes all the same,
and the model alone lacks that round.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bouquet.client.rounds.observer import Observer
from bouquet.client.rounds.serving import KeptModels, Serving
from bouquet.client.state.device_state import PERSONAL, Kept
from bouquet.client.training.evaluation import Scores
from bouquet.common.errors import NotNow
from bouquet.common.model_selection import REFERENCE
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar

if TYPE_CHECKING:
    from bouquet.client.rounds.session import Session


class Comparing(Serving):
    """The comparison in one message, around another observer."""

    file_name: ClassVar[str] = "alone"

    def __init__(self, session: Session, inner: Observer) -> None:
        super().__init__(session)
        self.inner = inner

    @property
    def keeps_fold(self) -> bool:
        """As the other one has it."""
        return self.inner.keeps_fold

    def on_start(self, start: Vector) -> None:
        """Note what training starts from."""
        super().on_start(start)
        self.inner.on_start(start)

    def on_keep(self, personal: Vector) -> None:
        """Note the method's personal model."""
        super().on_keep(personal)
        self.inner.on_keep(personal)

    def on_reply(self, uploaded: Vector | None, from_received: bool) -> dict[str, Scalar]:
        """At the end of a train message: train alone, and note the scores.

        A message in which the procedure kept nothing is no round of training.
        """
        said = self.inner.on_reply(uploaded, from_received)
        if self.personal is None:
            return said
        metrics, score = self.session.metrics, self.session.node.task.score
        of_start = metrics[score.key] if self.started is not None and score.key in metrics else None
        with suppress(NotNow):  # the round's own work is done, and its reply goes
            own = metrics[score.served] if score.served in metrics else self._score(self.personal)
            alone = self.inner.last_alone
            if not self.inner.trains_alone:
                alone = self.train_alone(self.session.samples.all_train)
                self.save(KeptModels({} if alone is None else {REFERENCE: alone}))
            self._note(own, alone, self.received(), self.started, of_start)
        return said

    def on_test(self, vector: Vector) -> Scores | None:
        """At the end of an evaluate message: note the scores. A device that never trained has nothing to compare."""
        session = self.session
        metrics, score = session.metrics, session.node.task.score
        scores = self.inner.on_test(vector) or session.test(vector)
        kept = session.recall()
        if kept is None or PERSONAL not in kept.slots:
            return scores
        with suppress(NotNow):
            self._note_tested(vector, metrics.get(score.of_method, scores.score), kept)
        return scores

    def _note_tested(self, vector: Vector, of_vector: float, kept: Kept) -> None:
        """Note the scores after a test of this model (d,)."""
        session = self.session
        metrics, score = session.metrics, session.node.task.score
        if score.served in metrics:
            own = metrics[score.served]
        else:
            personal = session.layout.flatten(kept.slots[PERSONAL])
            own = of_vector if _same(personal, vector) else self._score(personal)
        from_received = session.received.start == "received"
        received, alone = self.received(), self.inner.last_alone
        if not self.inner.trains_alone:
            alone = self.kept_before().alone
        self._note(own, alone, vector if received is None and from_received else received, vector, of_vector)

    def _note(
        self, own: float, alone: Vector | None, received: Vector | None, tested: Vector | None, its_score: float | None
    ) -> None:
        """Note the scores of the three; that of a model which is the one that was ``tested`` is known."""
        metrics, score = self.session.metrics, self.session.node.task.score
        metrics[score.own] = own
        for name, model in ((score.alone, alone), (score.received, received)):
            if model is not None and np.isfinite(model).all():
                known = its_score is not None and tested is not None and _same(model, tested)
                metrics[name] = its_score if known and its_score is not None else self._score(model)

    def _score(self, model: Vector) -> float:
        return self.session.test(model).score


def _same(one: Vector, other: Vector) -> bool:
    return one is other or np.array_equal(one, other)
