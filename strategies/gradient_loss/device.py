"""The device chooses its cluster by gradient and loss, then trains its model (joint gradient and loss, and IFCA).

Lin, Chen, Yang, Wu, Liu: A Joint Gradient and Loss Based Clustered Federated Learning Design, section II-B. What the
strategy does with it, and where this differs from the paper, is in `bouquet.strategies.gradient_loss.strategy`.

The device keeps the models that it compared. How each of them moved until the next round (Δ_k) is computed here and
need not be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from bouquet.client.rounds.session import Session
from bouquet.client.state.device_state import Arrays
from bouquet.client.training import evaluation, sgd
from bouquet.client.training.sgd import sgd_options
from bouquet.common import protocol
from bouquet.common.model.freezing import training_mode
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Received
from bouquet.strategies.gradient_loss.wire import (
    ALL_BATCHES,
    CHOSEN,
    LOSS_GAP,
    SIMILARITY_GAP,
    TOLD,
    TRAINED,
    Choice,
    Similarity,
    center_record,
    step_record,
)

_CENTERS = "centers"  # the name under which the device keeps them

Centers = list[Vector]  # of all clusters, in order
Batches = Sequence[tuple[Tensor, Tensor]]


def chooses(received: Received) -> bool:
    """Always, by its losses and gradients."""
    return True


def train(session: Session) -> Message:
    """Answer a train message: steps 2 and 3 of the paper's procedure."""
    choice = Choice.read(session.received)
    centers = _received_centers(session, choice)
    batches = _mini_batches(session, choice.batches)
    session.metrics[protocol.STATE_LOST] = 0
    chosen = _choose(session, choice, centers, batches)
    if choice.gradient_weight:
        session.node.state.save_arrays(session.run, _CENTERS, choice.version, _to_arrays(session, centers))
    trained_cluster = chosen if choice.told is None else choice.told
    session.report_start(centers[chosen])
    trained, loss = _train(session, choice, centers[trained_cluster], batches[0])
    session.report_trained(trained, loss)
    session.keep(trained)
    session.metrics |= {CHOSEN: chosen, TRAINED: trained_cluster, TOLD: int(choice.told is not None)}
    return session.reply(trained, base=center_record(trained_cluster))


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the model with the least loss on the device's training data.

    All of the training data, so that no mini-batch decides; never the test data, as IFCA's own evaluation does.
    """
    centers = _received_centers(session, Choice.read(session.received))
    chosen = 0
    if len(centers) > 1:
        losses = [session.training_loss(center) for center in centers]
        chosen = choose_identity(losses, [0.0] * len(losses), gradient_weight=0.0)
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


def _choose(session: Session, choice: Choice, centers: Centers, batches: Batches) -> int:
    """Loss and gradient of every model on the mini-batches, and the identity that follows."""
    steps = _steps(session, choice, centers)
    trainable = [name for name, parameter in session.model.named_parameters() if parameter.requires_grad]
    spans = {spec.name: spec.columns for spec in session.layout.tensors}
    samples = sum(len(y) for _, y in batches) if choice.batch_loss == "sum" else 1
    losses, similarities = [], []
    if choice.batches == ALL_BATCHES and not steps:
        losses = [samples * session.training_loss(center) for center in centers]
    for cluster, center in enumerate(centers) if not losses else ():
        loss, gradient = _loss_and_gradient(session, center, batches, with_gradient=bool(steps))
        losses.append(samples * loss)
        if steps:
            step = np.concatenate([steps[cluster][spans[name]] for name in trainable])
            similarities.append(step_similarity(samples * gradient, step, choice.similarity))
    session.metrics[LOSS_GAP] = _gap(losses)
    if steps:
        session.metrics[SIMILARITY_GAP] = _gap(similarities)
    return choose_identity(losses, similarities or [0.0] * len(losses), choice.gradient_weight)


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


def _received_centers(session: Session, choice: Choice) -> Centers:
    return [session.whole(center_record(k)) for k in range(choice.num_clusters)]


def _steps(session: Session, choice: Choice, centers: Centers) -> Centers:
    """Δ_k of every cluster: as sent, else since the centers of the round before; empty where there is none."""
    if choice.gradient_weight == 0 or choice.version == 0:
        return []
    if step_record(0) in session.received.models:
        return [session.whole(step_record(k)) for k in range(choice.num_clusters)]
    kept = session.node.state.load_arrays(session.run, _CENTERS, choice.version - 1)
    if kept is None:
        session.metrics[protocol.STATE_LOST] = 1  # this once, the loss alone decides
        return []
    return [center - before for center, before in zip(centers, _from_arrays(session, kept), strict=True)]


def _to_arrays(session: Session, centers: Centers) -> Arrays:
    arrays = [session.layout.unflatten(center) for center in centers]
    return {f"{k}/{name}": array for k, tensors in enumerate(arrays) for name, array in tensors.items()}


def _from_arrays(session: Session, arrays: Arrays) -> Centers:
    by_cluster: dict[int, Arrays] = {}
    for key, array in arrays.items():
        cluster, _, name = key.partition("/")
        by_cluster.setdefault(int(cluster), {})[name] = array
    return [session.layout.flatten(by_cluster[k]) for k in sorted(by_cluster)]


def _mini_batches(session: Session, count: int) -> Batches:
    """The first mini-batches of this device in this round, at most all of them; `ALL_BATCHES` are all."""
    x, y = session.train_data
    generator = torch.Generator().manual_seed(session.node.seed(session.received.round))
    size = sgd_options(session.received.config, session.node.settings.train).batch_size
    return [(x[part], y[part]) for part in islice(sgd.mini_batches(len(y), size, generator), count or None)]


def _train(session: Session, choice: Choice, start: Vector, batch: tuple[Tensor, Tensor]) -> tuple[Vector, float]:
    """Eq. 5: one gradient step on the mini-batch; or local epochs."""
    if choice.local_update == "epochs":
        return session.train(start)
    return session.train(start, data=batch, local_epochs=1, batch_size=len(batch[1]))


def _gap(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return max(finite) - min(finite)
