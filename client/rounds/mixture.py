"""``[personal] serve = "mixture"``: a device serves the mean of what its models say, whatever the method.

The models are those that it has anyway after a round – the one that it received, the one after training, the method's
personal one – and one that it trains alone, as ``standalone`` would. Their class probabilities are averaged, each
distinct model counting once: a plain ensemble (Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive
Uncertainty Estimation Using Deep Ensembles. NeurIPS 2017, section 2.4) of models that differ in what they have seen.
No data are held out for it, nothing is decided and nothing more is sent. Why no weights: docs/decisions/mixture.md.
"""

from __future__ import annotations

import numpy as np

from client.rounds.serving import Aside, Serving
from client.training.evaluation import Scores
from common import model_selection
from common.errors import BouquetError
from common.model_selection import MIXTURE, REFERENCE
from common.parameters.layout import Vector
from common.protocol import Scalar


class Mixing(Serving):
    """The mixture in one message."""

    def on_reply(self, uploaded: Vector | None) -> dict[str, Scalar]:
        """At the end of a train message: train alone, and keep the models of the mixture.

        A message in which the procedure kept nothing is no round of training.
        """
        if self.personal is not None:
            alone = self._train_alone() if self.session.node.settings.personal.alone else None
            self._serve({REFERENCE: alone, "received": self.received(), "trained": uploaded, "personal": self.personal})
        return {}

    def on_test(self, vector: Vector) -> Scores:
        """At the end of an evaluate message: the mixture with what was sent in it.

        Notes what the method's own model would have scored. A device that never trained has nothing to mix.
        """
        session = self.session
        own = session.test(vector)
        session.metrics[model_selection.ACCURACY_METHOD] = own.accuracy
        models: dict[str, Vector | None] = {**self.kept_before().models}
        if not models:
            return own
        sent_as = "personal" if session.received.start == "personal" else "received"
        if (received := self.received()) is not None:
            models["received"] = received
        return self._serve({**models, sent_as: vector}) or own

    def _train_alone(self) -> Vector:
        """A round alone, from where the last one ended, with the randomness of a device that runs ``standalone``.

        Where it diverges, it stays as it was. The second message of a round finds what the first one trained.
        """
        session = self.session
        if (trained := self.kept_at(self.version).models.get(REFERENCE)) is not None:
            return trained
        before = self.kept_before().models.get(REFERENCE, session.initial)
        try:
            return session.train(before, data=session.samples.all_train)[0]
        except BouquetError:
            return before

    def _serve(self, models: dict[str, Vector | None]) -> Scores | None:
        """Keep the distinct models that are finite, and note and give the scores of their mixture; None without any."""
        mixed: dict[str, Vector] = {}
        for kind, model in models.items():
            if model is None or not np.isfinite(model).all():
                continue
            if not any(np.array_equal(model, other) for other in mixed.values()):
                mixed[kind] = model
        if not mixed:
            return None
        self.keep_aside(Aside(mixed, MIXTURE))
        return self.note_served(MIXTURE, *mixed.values())
