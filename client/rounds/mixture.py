"""``[personal] serve = "mixture"``: a device serves the mean of what its models say, whatever the method.

The models are those that it has anyway after a round – the one that it received, the one after training, the method's
personal one – and one that it trains alone, as ``standalone`` would. Their class probabilities are averaged, each
distinct model counting once: a plain ensemble (Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive
Uncertainty Estimation Using Deep Ensembles. NeurIPS 2017, section 2.4) of models that differ in what they have seen.

One thing is decided, on each device and anew after each message: the model alone trains without a part of the data, and
where the received model errs less on that part, the model alone is left out. The method itself trains on all of the
data, and nothing more is sent. Why this rule, and why no weights: docs/decisions.md.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from bouquet.client.rounds.serving import LEFT_OUT, Aside, Serving
from bouquet.client.training import evaluation
from bouquet.client.training.evaluation import Scores
from bouquet.common.model_selection import HELD_OUT, MIXED, MIXTURE, REFERENCE, mixed_bits
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar


class Mixing(Serving):
    """The mixture in one message."""

    def alone(self) -> Vector | None:
        """That of the mixture, where it is not judged: a judged one trains without a part of the data."""
        return None if self._judged_on else _alone_of(self.kept_at(self.version))

    def on_reply(self, uploaded: Vector | None) -> dict[str, Scalar]:
        """At the end of a train message: train alone, and keep the models of the mixture.

        A message in which the procedure kept nothing is no round of training.
        """
        if self.personal is not None:
            alone = self._train_alone() if self.session.node.settings.personal.alone != "never" else None
            self._serve({REFERENCE: alone, "received": self.received(), "trained": uploaded, "personal": self.personal})
        return {}

    def on_test(self, vector: Vector) -> Scores:
        """At the end of an evaluate message: the mixture with what was sent in it.

        Notes what the method's own model would have scored. A device that never trained has nothing to mix.
        """
        session = self.session
        own = session.test(vector)
        session.metrics[session.node.task.score.of_method] = own.score
        before = self.kept_before()
        if not before.models:
            return own
        models: dict[str, Vector | None] = {**before.models, REFERENCE: _alone_of(before)}
        models.pop(LEFT_OUT, None)
        sent_as = "personal" if session.received.start == "personal" else "received"
        if (received := self.received()) is not None:
            models["received"] = received
        return self._serve({**models, sent_as: vector}) or own

    def _train_alone(self) -> Vector:
        """A round alone, from where the last one ended; the second message finds what the first one trained."""
        session = self.session
        if (trained := _alone_of(self.kept_at(self.version))) is not None:
            return trained
        before = _alone_of(self.kept_before())
        data = session.samples.split(self._judged_on)[0] if self._judged_on else session.samples.all_train
        return self.round_alone(session.initial if before is None else before, data)

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
        served = dict(mixed)
        if self._is_left_out(mixed):
            mixed[LEFT_OUT] = mixed.pop(REFERENCE)
            del served[REFERENCE]
        self.session.metrics[MIXED] = mixed_bits(served, LEFT_OUT in mixed)
        self.keep_aside(Aside(mixed, MIXTURE))
        return self.note_served(MIXTURE, *served.values())

    @property
    def _judged_on(self) -> float:
        """The fraction of the training data that the model alone does not train on; 0 where it is not judged."""
        personal, samples = self.session.node.settings.personal, self.session.samples.all_train[1]
        return HELD_OUT if personal.alone == "judged" and len(samples) > 1 else 0.0

    def _is_left_out(self, models: dict[str, Vector]) -> bool:
        """Whether the received model makes fewer errors than the one alone where that did not train."""
        if not self._judged_on or not {REFERENCE, "received"} <= set(models):
            return False
        x, y = self.session.samples.split(self._judged_on)[1]
        alone, received = (self._errors(models[kind], x, y) for kind in (REFERENCE, "received"))
        return received < alone

    def _errors(self, model: Vector, x: Tensor, y: Tensor) -> float:
        return float(self.session.judge.errors(evaluation.predict(self.session.load(model), x), y).sum())


def _alone_of(aside: Aside) -> Vector | None:
    """The model that was trained alone, served or not."""
    return aside.models.get(REFERENCE, aside.models.get(LEFT_OUT))
