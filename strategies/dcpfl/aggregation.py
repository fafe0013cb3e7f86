"""The aggregation of DC-PFL: the mean of each group over the layers that its members sent."""

from __future__ import annotations

import numpy as np

from strategies.base.replies import Matrix, Replies
from strategies.dcpfl.state import DCPFLState, rows_of
from strategies.mathematics.robust import Aggregation


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
