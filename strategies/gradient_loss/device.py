"""The device chooses its cluster by gradient and loss, then trains its model (joint gradient and loss, and IFCA).

Lin, Chen, Yang, Wu, Liu: A Joint Gradient and Loss Based Clustered Federated Learning Design, section II-B. What the
strategy does with it, and where this differs from the paper, is in `bouquet.strategies.gradient_loss.strategy`.

The device keeps the models that it compared. When it compares again, how each of them moved since then (Δ_k) is
computed here and need not be sent; over several rounds it is the mean step a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from bouquet.client.rounds.session import Session
from bouquet.client.state.device_state import Arrays, Kept
from bouquet.client.training import evaluation, sgd
from bouquet.client.training.sgd import sgd_options
from bouquet.common import protocol
from bouquet.common.model.freezing import training_mode
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Received
from bouquet.strategies.gradient_loss.wire import (
    ALL_BATCHES,
    CHOSEN,
    HELD,
    LOSS_GAP,
    NOTHING,
    SIMILARITY_GAP,
    TOLD,
    TRAINED,
    Choice,
    Relocation,
    Similarity,
    center_record,
    step_record,
)

_CENTERS = "centers"  # what the device keeps aside

Centers = dict[int, Vector]
Batches = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Memory:
    """Facts beside the centers that the device keeps: the version that it compared last, and the one before that.

    And what it found of each cluster, where the server asks it to remember: means over its comparisons.
    """

    compared: int = NOTHING
    earlier: int = NOTHING
    losses: tuple[float, ...] = ()
    similarities: tuple[float, ...] = ()

    @classmethod
    def of(cls, kept: Kept | None) -> _Memory:
        facts = {} if kept is None else kept.facts
        found = (tuple(map(float, facts.get(name, ()))) for name in ("losses", "similarities"))
        return cls(int(facts.get("compared", NOTHING)), int(facts.get("earlier", NOTHING)), *found)

    def after(self, relocations: Sequence[Relocation]) -> _Memory:
        """What was found of a cluster's model holds for the one that began where it was."""
        losses, similarities = [*self.losses], [*self.similarities]
        for version, cluster, origin in relocations:
            for values in (losses, similarities):
                if version > self.compared and values:
                    values[cluster] = values[origin]
        return replace(self, losses=tuple(losses), similarities=tuple(similarities))

    def base(self, version: int) -> int:
        """The version since which the centers of ``version`` moved; `NOTHING` where the device knows none.

        A round with too few replies leaves the centers as they were, and the device compares the same ones again.
        """
        known = self.earlier if self.compared == version else self.compared
        return known if known < version else NOTHING


def chooses(received: Received) -> bool:
    """Always, by its losses and gradients."""
    return True


def train(session: Session) -> Message:
    """Answer a train message: steps 2 and 3 of the paper's procedure."""
    asked = Choice.read(session.received)
    centers = {k: session.whole(center_record(k)) for k in asked.offered(session.received)}
    memory = _Memory.of(session.recall()).after(asked.relocations)
    batches = _mini_batches(session, asked.batches)
    session.metrics[protocol.STATE_LOST] = 0
    chosen = next(iter(centers))
    # A device whose identity is stable may be sent its own cluster's model only: then there is nothing to choose.
    if len(centers) == asked.num_clusters:
        chosen, memory = _choose(session, asked, centers, batches, memory)
        if asked.gradient_weight:
            session.node.state.keep_aside(session.run, _CENTERS, asked.version, _to_arrays(session, centers))
    trained_cluster = chosen if asked.told is None else asked.told
    session.report_start(centers[chosen])
    trained, loss = _train(session, asked, centers[trained_cluster], batches[0])
    session.report_trained(trained, loss)
    session.keep(trained, facts=asdict(memory))
    told = int(asked.told is not None)
    session.metrics |= {CHOSEN: chosen, TRAINED: trained_cluster, TOLD: told, HELD: memory.compared}
    return session.reply(trained, base=center_record(trained_cluster))


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the model with the least loss on the device's training data.

    All of the training data, so that no mini-batch decides; never the test data, as IFCA's own evaluation does.
    """
    asked = Choice.read(session.received)
    centers = {k: session.whole(center_record(k)) for k in asked.offered(session.received)}
    chosen = next(iter(centers))
    if len(centers) > 1:
        losses = [session.training_loss(center) for center in centers.values()]
        chosen = list(centers)[choose_identity(losses, [0.0] * len(losses), gradient_weight=0.0)]
    session.metrics[CHOSEN] = chosen
    return session.reply_evaluation(centers[chosen])


def choose_identity(losses: Sequence[float], similarities: Sequence[float], gradient_weight: float) -> int:
    """argmax_k ( λ S_k + (1 − λ)(−L_k) ), Eq. 4; of equals the one with the least loss, then the first.

    A model whose loss is not finite is not chosen. Raises `BouquetError` when that is so of all.
    """
    usable = evaluation.finite_losses(dict(enumerate(losses)))
    scores = {k: gradient_weight * similarities[k] - (1 - gradient_weight) * losses[k] for k in usable}
    return max(usable, key=lambda k: (scores[k], -losses[k]))


def step_similarity(gradient: NDArray[np.floating], step: NDArray[np.floating], kind: Similarity) -> float:
    """S_k of a gradient ∇L_k and a step Δ_k, both (p,), Eq. 3 with the sign corrected.

    ``"cosine"`` is cos(−∇L, Δ), 0 where either is 0; ``"euclidean"`` is −‖−∇L − Δ‖.
    """
    descent, step = -gradient.astype(np.float64), step.astype(np.float64)
    if kind == "euclidean":
        value = -float(np.linalg.norm(descent - step))
    else:
        norms = float(np.linalg.norm(descent) * np.linalg.norm(step))
        value = float(descent @ step) / norms if norms > 0 else 0.0
    return value if np.isfinite(value) else 0.0  # the loss of such a model is not finite either


def remembered(found: Sequence[float], before: Sequence[float], memory: float) -> list[float]:
    """memory · before + (1 − memory) · found for each cluster; what was found alone where either is not finite."""
    if len(before) != len(found):
        return list(found)
    means = [memory * old + (1 - memory) * new for old, new in zip(before, found, strict=True)]
    return [mean if np.isfinite(mean) else new for mean, new in zip(means, found, strict=True)]


def _choose(
    session: Session, asked: Choice, centers: Centers, batches: Batches, memory: _Memory
) -> tuple[int, _Memory]:
    """Loss and gradient of every model on the mini-batches, the identity that follows, and what to remember of it."""
    base = memory.base(asked.version)
    steps = _steps(session, asked, centers, base)
    trainable = [name for name, parameter in session.model.named_parameters() if parameter.requires_grad]
    spans = {spec.name: spec.columns for spec in session.layout.tensors}
    samples = sum(len(y) for _, y in batches) if asked.batch_loss == "sum" else 1
    losses, similarities = [], []
    if asked.batches == ALL_BATCHES and not steps:
        losses = [samples * session.training_loss(center) for center in centers.values()]
    for cluster, center in centers.items() if not losses else ():
        loss, gradient = _loss_and_gradient(session, center, batches, with_gradient=bool(steps))
        losses.append(samples * loss)
        if steps:
            step = np.concatenate([steps[cluster][spans[name]] for name in trainable])
            similarities.append(step_similarity(samples * gradient, step, asked.similarity))
    session.metrics[LOSS_GAP] = _gap(losses)
    if steps:
        session.metrics[SIMILARITY_GAP] = _gap(similarities)
    memory = replace(memory, compared=asked.version, earlier=base)
    if asked.memory:
        losses = remembered(losses, memory.losses, asked.memory)
        similarities = remembered(similarities, memory.similarities, asked.memory) if steps else [*memory.similarities]
        memory = replace(memory, losses=tuple(losses), similarities=tuple(similarities))
    chosen = choose_identity(losses, similarities or [0.0] * len(losses), asked.gradient_weight)
    return list(centers)[chosen], memory


def _loss_and_gradient(
    session: Session, center: Vector, batches: Batches, with_gradient: bool
) -> tuple[float, NDArray[np.float32]]:
    """Mean loss of the mini-batches' samples and, where asked for, its gradient (p,) over the trainable parameters.

    In training mode, as the gradient step is; every model meets the same dropout.
    """
    model, loss_of = training_mode(session.load(center)), session.loss_of.as_they_are
    shares = np.array([len(y) for _, y in batches]) / sum(len(y) for _, y in batches)
    losses, mean = [], np.empty(0, dtype=np.float32)
    for place, batch in enumerate(batches):
        with session.seeded(f"choice/{place}" if place else ""):
            if not with_gradient:
                with torch.no_grad():
                    losses.append(float(loss_of(model, *batch)))
                continue
            loss, gradients = sgd.loss_and_gradients(model, *batch, loss_of)
            losses.append(loss)
            flat = torch.cat([g.flatten() for g in gradients.values()]).float().cpu().numpy() * np.float32(
                shares[place]
            )
            mean = mean + flat if place else flat
    return float(shares @ losses), mean


def _steps(session: Session, asked: Choice, centers: Centers, base: int) -> Centers:
    """Δ_k of every cluster: as sent, else since version ``base`` of the centers; empty where there is none."""
    if asked.gradient_weight == 0 or asked.version == 0:
        return {}
    if step_record(0) in session.received.models:
        return {k: session.whole(step_record(k)) for k in centers}
    kept = session.node.state.recall_aside(session.run, _CENTERS, base) if base > NOTHING else None
    if kept is None:
        session.metrics[protocol.STATE_LOST] = 1  # this once, the loss alone decides
        return {}
    before = _from_arrays(session, kept)
    return {k: (center - before[k]) / np.float32(asked.version - base) for k, center in centers.items()}


def _to_arrays(session: Session, centers: Centers) -> Arrays:
    arrays = {k: session.layout.unflatten(center) for k, center in centers.items()}
    return {f"{k}/{name}": array for k, tensors in arrays.items() for name, array in tensors.items()}


def _from_arrays(session: Session, arrays: Arrays) -> Centers:
    by_cluster: dict[int, Arrays] = {}
    for key, array in arrays.items():
        cluster, _, name = key.partition("/")
        by_cluster.setdefault(int(cluster), {})[name] = array
    return {k: session.layout.flatten(tensors) for k, tensors in by_cluster.items()}


def _mini_batches(session: Session, count: int) -> Batches:
    """The first mini-batches of this device in this round, at most all of them; `ALL_BATCHES` are all."""
    x, y = session.train_data
    generator = torch.Generator().manual_seed(session.node.seed(session.received.round))
    size = sgd_options(session.received.config, session.node.settings.train).batch_size
    return [(x[part], y[part]) for part in islice(sgd.mini_batches(len(y), size, generator), count or None)]


def _train(session: Session, asked: Choice, start: Vector, batch: tuple[Tensor, Tensor]) -> tuple[Vector, float]:
    """Eq. 5: one gradient step on the mini-batch; or local epochs."""
    if asked.local_update == "epochs":
        return session.train(start)
    return session.train(start, data=batch, local_epochs=1, batch_size=len(batch[1]))


def _gap(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return max(finite) - min(finite)
