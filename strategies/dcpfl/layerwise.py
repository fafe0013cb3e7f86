"""Which layers travel, and their means: slow layers, sending, aggregation (DC-PFL, section IV, Eq. 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, Instruction, Payload, Scalar
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.dcpfl import PROCEDURE, WHOLE_ROUND
from bouquet.strategies.dcpfl.state import DCPFLState, rows_of, verdict_of
from bouquet.strategies.mathematics.aggregation import Matrix, Vector, column_blocks
from bouquet.strategies.mathematics.robust import Aggregation

Scaling = Literal["model", "layer"]
Scales = tuple[NDArray[np.float64], NDArray[np.float64]]  # of each row: its minimum, and 1 / (its range)


def layer_discrepancies(W: Matrix, average: Vector, layout: ParameterLayout, scaling: Scaling) -> dict[str, float]:
    """D_{g,l} of each layer l, Eq. 5: the mean over the members W (m × d) of ‖S(w_l,i) − S(w_l^g)‖₁ / dim(w_l).

    ``average`` (d,) is the group's model w^g. The paper does not say what its scaling S = (w − min) / (max − min) runs
    over. ``"model"``: one scale for the whole model and for both sides, so that a layer's part is the mean of
    `|w_l,i − w_l^g|` over the range of w^g. ``"layer"``: each side's layer alone, by its own minimum and maximum. Under
    the latter the large fully connected layers do not stand out as in the paper. Only parameters take part, and a layer
    without any has no value; where a range is 0 the scaled values are 0.
    """
    parameters = [spec for spec in layout.tensors if spec.kind == "parameter"]
    low = min((float(average[spec.columns].min()) for spec in parameters), default=0.0)
    high = max((float(average[spec.columns].max()) for spec in parameters), default=0.0)
    discrepancies: dict[str, float] = {}
    for layer in dict.fromkeys(spec.layer for spec in parameters):
        columns = [spec.columns for spec in parameters if spec.layer == layer]
        members, center = [W[:, c] for c in columns], [average[None, c] for c in columns]
        if scaling == "layer":
            scales, center_scale = _own_scales(members), _own_scales(center)
        else:
            scales = center_scale = np.array([low]), _reciprocal(np.array([high - low]))
        total = 0.0
        for part, reference in zip(members, center, strict=True):
            for block_columns, block in column_blocks(part):
                total += np.abs(_scaled(block, scales) - _scaled(reference[:, block_columns], center_scale)).sum()
        discrepancies[layer] = float(total / sum(part.size for part in members))
    return discrepancies


def slow_layers(discrepancies: Mapping[str, float], slow_ratio: float, apart: Mapping[str, int]) -> list[str]:
    """The layers with D_{g,l} < ``slow_ratio`` · D_g, where D_g is the mean of D_{g,l} over the layers, Eq. 6.

    Beyond the paper, each D_{g,l} is first divided by the rounds that the layer's copies have been ``apart``, that is,
    since they were last averaged. A slow layer has drifted α times as long as a fast one when its turn comes, and would
    not be found slow twice (measured on FashionMNIST: after three rounds its discrepancy is twice that of one round).
    """
    drift = {layer: discrepancy / apart[layer] for layer, discrepancy in discrepancies.items()}
    mean = np.mean(list(drift.values()))
    return [layer for layer, value in drift.items() if value < slow_ratio * mean]


def _own_scales(parts: Sequence[Matrix]) -> Scales:
    """The scale of each row over all parts of its layer."""
    if not parts:
        return np.zeros(1), np.zeros(1)
    low = np.min([part.min(axis=1) for part in parts], axis=0).astype(np.float64)
    return low, _reciprocal(np.max([part.max(axis=1) for part in parts], axis=0) - low)


def _scaled(rows: Matrix, scales: Scales) -> NDArray[np.float64]:
    low, reciprocal = scales
    return (rows - low[:, None]) * reciprocal[:, None]


def _reciprocal(widths: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, widths, out=np.zeros_like(widths), where=widths > 0)


def instruction(
    state: DCPFLState, client: str, full: set[int], config: Mapping[str, Scalar] | None = None
) -> Instruction:
    """What a client is sent with this config; the ``full`` groups upload the whole model.

    Fast layers travel both ways, and all of them up in a full round and down after it; alone, nothing does. A client
    that is new, missed the full round or lost its layers is sent the whole model, whatever the others are sent.
    """
    config = {} if config is None else config
    group = state.assignment.get(client, 0 if state.gamma == 1 else None)
    if group is None:
        return one_model(state.common_model(), procedure=PROCEDURE, config=config)
    alone = state.is_alone(client)
    if alone and state.is_current(client):
        return Instruction(start="personal", upload=(), procedure=PROCEDURE, config=config)
    upload = () if alone else None if group in full else state.travelling(group)
    if state.is_sent_whole(client):
        return one_model(state.centers[group], upload=upload, procedure=PROCEDURE, config=config)
    fast = Payload(state.centers[group], state.travelling(group))
    config = {**config, WHOLE_ROUND: state.whole[client]}
    return Instruction({ARRAYS: fast}, upload=upload, procedure=PROCEDURE, config=config)


def group_means(state: DCPFLState, usable: Replies, aggregation: Aggregation) -> tuple[Matrix, dict[int, list[int]]]:
    """The groups' new models (K, d), and of each group whose members sent all layers the rows of the replies.

    A layer that a member of the group did not send, and a group that sent nothing, stay as they were.
    """
    sent = [row for row, reply in enumerate(usable.received) if reply.layers and reply.client in state.assignment]
    if not sent:
        return state.centers, {}
    labels = np.array([state.assignment[usable.clients[row]] for row in sent])
    centers = aggregation.cluster_means(
        rows_of(usable.W, sent), labels, len(state.groups), usable.num_examples[sent], previous=state.centers
    )
    whole = {}
    for g in np.unique(labels).tolist():
        rows = [sent[member] for member in np.flatnonzero(labels == g)]
        missing = {x for row in rows for x in state.layers if x not in usable.received[row].layers}
        if missing:
            columns = usable.layout.columns(missing)
            centers[g, columns] = state.centers[g, columns]
        else:
            whole[g] = rows
    return centers, whole


def with_whole_models(state: DCPFLState, round_: int, usable: Replies, lost: set[str]) -> DCPFLState:
    """Account for who got the whole model in which round, and ``lost`` it; in one group for all, everybody is in it."""
    replied = usable.clients
    samples = {reply.client: reply.num_examples for reply in usable.received}
    uploads = any(reply.layers for reply in usable.received)
    state = replace(state, communication_rounds=state.communication_rounds + uploads, samples=state.samples | samples)
    if state.gamma == 1:
        state = replace(state, assignment={**dict.fromkeys(replied, 0), **state.assignment})
    verdict = verdict_of(state, round_)
    tried = set(verdict.clients) if verdict else set()
    whole = {client: at for client, at in state.whole.items() if client not in lost}
    for client in replied:
        if client in state.assignment and (client in tried or state.is_sent_whole(client)):
            whole[client] = round_
    return replace(state, whole=whole)
