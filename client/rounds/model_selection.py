"""``[personal] serve = "best"``: after each round a device keeps, and serves, the best model it has.

A part of its training data is held out of everything that a method trains here. On it the device judges, by the rule of
`bouquet.common.model_selection`, the model it received, that after local training, the method's personal one, the one
that it kept before, and, as what all are compared with, one that it trained alone: two models, of which one was trained
on all of its training data and is used, and the other without the held-out part and is judged in its place. So a device
whose choice falls on it has the very model that ``standalone`` would have given it.

What it keeps lies beside the method's own state, which is as without the option; nothing here is uploaded, but which
model was kept, a few differences of scores, and the accuracies of the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bouquet.client.rounds.samples import Samples
from bouquet.client.rounds.serving import SERVED, Aside, Serving
from bouquet.client.state.device_state import PERSONAL
from bouquet.client.training import evaluation
from bouquet.client.training.evaluation import Scores
from bouquet.common import model_selection
from bouquet.common.model_selection import KINDS, REFERENCE
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar

_ALONE, _ALONE_JUDGED, _SERVED_JUDGED = REFERENCE, "alone-judged", "served-judged"


@dataclass(frozen=True)
class Candidate:
    """A model that the device may keep, (d,), and the one that is judged in its place, mostly itself."""

    model: Vector
    judged: Vector


@dataclass(frozen=True)
class _Memory:
    """What was kept aside after an earlier message; None where there is nothing."""

    alone: Candidate | None = None
    served: Candidate | None = None
    kind: str = REFERENCE


class Choosing(Serving):
    """The choice in one message. A device with a single training sample can hold out none, and chooses nothing."""

    @property
    def held_out(self) -> float:
        """The fraction of the training data that the choice is made by."""
        session = self.session
        return model_selection.HELD_OUT if len(session.samples.all_train[1]) > 1 else 0.0

    def alone(self) -> Vector | None:
        """The one that is trained on all of the data."""
        found = _remembered(self.kept_at(self.version)).alone
        return None if found is None else found.model

    def on_reply(self, uploaded: Vector | None) -> dict[str, Scalar]:
        """At the end of a train message: train alone, choose, keep, and say how the models compare.

        A message in which the procedure kept nothing is no round of training.
        """
        if self.personal is None or not self.held_out:
            return {}
        memory = _remembered(self.kept_before())
        found = {} if uploaded is None else {"trained": Candidate(uploaded, uploaded)}
        found["personal"] = Candidate(self.personal, self.personal)
        if (received := self.received()) is not None:
            found["received"] = Candidate(received, received)
        alone = self._train_alone(memory) if self.session.node.settings.personal.alone != "never" else None
        report, _ = self._choose(found, alone, memory)
        # Made of scores on the device's data: withheld like them, so that the fleet cannot tell it what to expect.
        return {} if self.session.node.settings.privacy.withholds else {model_selection.REPORT: report}

    def on_test(self, vector: Vector) -> Scores | None:
        """At the end of an evaluate message: choose, and note what the method's own model would have scored."""
        session = self.session
        if not self.held_out:
            return None
        tested = session.test(vector)
        session.metrics[session.node.task.score.of_method] = tested.score
        memory, kept = _remembered(self.kept_before()), session.recall()
        if kept is None or PERSONAL not in kept.slots:
            return tested  # a device that never trained has nothing to choose from
        own = session.layout.flatten(kept.slots[PERSONAL])
        received: Vector | None = vector
        if session.received.start == "personal":
            own, received = vector, self.received()
        found = {"personal": Candidate(own, own)}
        if received is not None:
            found["received"] = Candidate(received, received)
        _, scores = self._choose(found, memory.alone, memory)
        return scores

    # --- the candidates -----------------------------------------------------------------------------------------

    def _train_alone(self, memory: _Memory) -> Candidate:
        """A round alone, from where the last one ended, on all training data and without what is held out.

        The second message of a round finds what the first one trained.
        """
        session = self.session
        if (trained := _remembered(self.kept_at(self.version)).alone) is not None:
            return trained
        before = memory.alone or Candidate(session.initial, session.initial)
        model, judged = self.round_alone(before.model, session.samples.all_train), self.round_alone(before.judged)
        return before if model is before.model or judged is before.judged else Candidate(model, judged)

    # --- the choice ---------------------------------------------------------------------------------------------

    def _choose(
        self, found: dict[str, Candidate], alone: Candidate | None, memory: _Memory
    ) -> tuple[list[float], Scores]:
        """Judge, choose, keep, and note what was kept; the report for the server, and the scores of the chosen one."""
        session = self.session
        reference, place = (alone, REFERENCE) if alone is not None else (found.pop("personal"), "personal")
        errors = {kind: self._errors(found[kind]) for kind in KINDS if kind in found}
        against = self._errors(reference)
        differences = {kind: model_selection.difference(own, against) for kind, own in errors.items()}
        prior = model_selection.from_prior(session.received.config.get(model_selection.PRIOR))
        beliefs = {k: model_selection.posterior(one, len(against), prior.get(k)) for k, one in differences.items()}
        chosen = reference
        if (better := model_selection.choose(beliefs)) != REFERENCE:
            place, chosen, against = better, found[better], errors[better]
        if memory.served is not None and model_selection.stays(self._errors(memory.served), against):
            place, chosen = memory.kind, memory.served
        self._keep(chosen, place, alone)
        scores = self.note_served(place, chosen.model)
        return model_selection.to_report(len(self._held[1]), differences), scores

    @cached_property
    def _held(self) -> Samples:
        """Samples and labels that are held out."""
        return self.session.samples.split(self.held_out)[1]

    def _errors(self, candidate: Candidate) -> np.ndarray:
        """The errors (n,) of a candidate on the held-out samples; outputs that are not finite are all wrong."""
        x, y = self._held
        logits = evaluation.predict(self.session.load(candidate.judged), x).float().cpu().numpy()
        wrong = ~np.isfinite(logits).all(axis=1)
        return np.maximum(model_selection.errors(logits, y.cpu().numpy()), wrong)

    def _keep(self, chosen: Candidate, kind: str, alone: Candidate | None) -> None:
        slots = {SERVED: chosen.model}
        if chosen.judged is not chosen.model:
            slots[_SERVED_JUDGED] = chosen.judged
        if alone is not None:
            slots |= {_ALONE: alone.model, _ALONE_JUDGED: alone.judged}
        self.keep_aside(Aside(slots, kind))


def _remembered(aside: Aside) -> _Memory:
    """What the choice kept aside after a message; nothing where that is lost, or was a mixture."""
    models = aside.models
    if SERVED not in models:
        return _Memory()
    alone = Candidate(models[_ALONE], models[_ALONE_JUDGED]) if _ALONE in models else None
    return _Memory(alone, Candidate(models[SERVED], models.get(_SERVED_JUDGED, models[SERVED])), aside.kind)
