"""What a device serves in the place of its method's own model (``[personal] serve``): one of its models, or their mean.

The models are those that it has anyway after a round – the one that it received, the one after training, the method's
personal one – and one that it trains alone, as ``standalone`` would. A mixture averages their class probabilities, each
distinct model counting once: a plain ensemble (Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive
Uncertainty Estimation Using Deep Ensembles. NeurIPS 2017, section 2.4) of models that differ in what they have seen.

``"auto"``: the received model or the mixture, as the server says that the fleet does better
(`bouquet.common.model_selection`). That is the mixture until something is counted, under ``[privacy]`` and for methods
that train nothing from what was sent always. A server that says nothing leaves the device with the method's own model.

``"mixture"``, which published tables have: always the mixture, and one thing is decided, on each device and anew after
each message. The model alone trains without a part of the data, and where the received model errs less on that part,
the model alone is left out. Why this rule, and why no weights: docs/decisions.md.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bouquet.client.rounds.serving import LEFT_OUT, KeptModels, Serving
from bouquet.client.training import evaluation
from bouquet.client.training.evaluation import Scores
from bouquet.common.errors import NotNow
from bouquet.common.model_selection import (
    HELD_OUT,
    MIXED,
    MIXTURE,
    RECEIVED,
    REFERENCE,
    REPORT,
    SERVE,
    TRAINED,
    mixed_bits,
)
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar

SQUARED = 4.0  # docs/decisions.md


class Mixing(Serving):
    """The choice in one message."""

    @property
    def keeps_fold(self) -> bool:
        """In a round of training, where the server asks and sends what can be judged; never under ``[privacy]``."""
        settings, received = self.session.node.settings, self.session.received
        is_asked = settings.personal.serve == "auto" and SERVE in received.config and not settings.privacy.is_on
        return is_asked and not self.session.is_evaluation and bool(received.models)

    @property
    def trains_alone(self) -> bool:
        """Where the model alone is not judged: a judged one trains without a part of the data."""
        personal = self.session.node.settings.personal
        return personal.serve == "auto" and personal.compare

    def on_reply(self, uploaded: Vector | None, from_received: bool) -> dict[str, Scalar]:
        """At the end of a train message: count, train alone, and keep the models; what the server is to know.

        A message in which the procedure kept nothing is no round of training.
        """
        said: dict[str, Scalar] = {}
        if self.personal is None:
            return said
        received, alone = self.received(), None
        with suppress(NotNow):  # the round's own work is done, and its reply goes
            if self.keeps_fold and received is not None and uploaded is not None and from_received:
                said = self._counted(received, uploaded)
        with suppress(NotNow):
            if self.trains_alone or self.session.node.settings.personal.serve == "mixture":
                alone = self.train_alone(self._to_train_on)
            self._serve({REFERENCE: alone, RECEIVED: received, TRAINED: uploaded, "personal": self.personal})
        return said

    def on_test(self, vector: Vector) -> Scores:
        """At the end of an evaluate message: what is served with what was sent in it.

        Notes what the method's own model would have scored. A device that never trained has nothing else.
        """
        session = self.session
        own = session.test(vector)
        session.metrics[session.node.task.score.of_method] = own.score
        before = self.kept_before()
        if not before.models:
            return own
        models: dict[str, Vector | None] = {**before.models, REFERENCE: before.alone}
        models.pop(LEFT_OUT, None)
        self._alone = before.alone
        sent_as = "personal" if session.received.start == "personal" else RECEIVED
        if (received := self.received()) is not None:
            models[RECEIVED] = received
        return self._serve({**models, sent_as: vector}) or own

    def _serve(self, models: dict[str, Vector | None]) -> Scores | None:
        """Keep the distinct models that are finite; note and give the scores of what is served, None without any."""
        mixed: dict[str, Vector] = {}
        for kind, model in models.items():
            is_new = model is not None and not any(np.array_equal(model, other) for other in mixed.values())
            if model is not None and is_new and np.isfinite(model).all():
                mixed[kind] = model
        if not mixed:
            return None
        choice = self.session.received.config.get(SERVE)
        if self.session.node.settings.personal.serve == "mixture":
            choice = MIXTURE
        if choice not in (RECEIVED, MIXTURE):
            self.save(KeptModels(mixed, "personal"))
            return None
        received = models.get(RECEIVED)
        if choice == RECEIVED and received is not None and np.isfinite(received).all():
            self.save(KeptModels({**mixed, RECEIVED: received}, RECEIVED))
            return self.note_served(RECEIVED, received)
        served = dict(mixed)
        if self._is_left_out(mixed):
            mixed[LEFT_OUT] = mixed.pop(REFERENCE)
            del served[REFERENCE]
        self.session.metrics[MIXED] = mixed_bits(served, LEFT_OUT in mixed)
        self.save(KeptModels(mixed, MIXTURE))
        return self.note_served(MIXTURE, *served.values())

    def _counted(self, received: Vector, trained: Vector) -> dict[str, Scalar]:
        """By how much more the two together err on the fold than the received model, in hundredths of a sample.

        Counted are the samples on which they err more, less those on which they err less. Of a small fold that is
        mostly 0, so that for classes `SQUARED` times the difference of the squared errors of the probabilities counts
        beside (Brier: Verification of Forecasts Expressed in Terms of Probability. 1950). These alone would favour the
        two together, because a mean is less sure of itself.
        """
        x, y = self.session.fold
        if not len(y):
            return {}
        task, scorer = self.session.node.task, self.session.scorer
        outputs = [evaluation.predict(self.session.load(model), x) for model in (received, trained)]
        together = task.together(outputs)
        more = torch.sign(torch.nan_to_num(scorer.errors(together, y) - scorer.errors(outputs[0], y))).double()
        if task.has_classes:
            truth = one_hot(y, together.shape[1])
            of_both, of_received = (
                (logits.softmax(dim=1) - truth).square().sum(dim=1) for logits in (together, outputs[0])
            )
            more += SQUARED * torch.nan_to_num(of_both - of_received)
        return {REPORT: round(100 * float(more.sum()))}

    # --- the model alone, where it is judged ------------------------------------------------------------------------

    @property
    def _judged_on(self) -> float:
        """The fraction of the training data that the model alone does not train on; 0 where it is not judged."""
        is_judged = self.session.node.settings.personal.serve == "mixture"
        return HELD_OUT if is_judged and len(self.session.samples.all_train[1]) > 1 else 0.0

    @property
    def _to_train_on(self) -> tuple[Tensor, Tensor]:
        samples = self.session.samples
        return samples.split(self._judged_on)[0] if self._judged_on else samples.all_train

    def _is_left_out(self, models: dict[str, Vector]) -> bool:
        """Whether the received model makes fewer errors than the one alone where that did not train."""
        if not self._judged_on or not {REFERENCE, RECEIVED} <= set(models):
            return False
        x, y = self.session.samples.split(self._judged_on)[1]
        alone, received = (self._errors(models[kind], x, y) for kind in (REFERENCE, RECEIVED))
        return received < alone

    def _errors(self, model: Vector, x: Tensor, y: Tensor) -> float:
        return float(self.session.scorer.errors(evaluation.predict(self.session.load(model), x), y).sum())
