"""How far apart pairs of clients are, as a mean over the rounds in which both were there.

A round's distances are those of a sample of the clients, or of those that trained one model; what is kept is n × n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bouquet.strategies.mathematics.similarity import Distances


def add_meeting(
    total: Distances | None,
    meetings: Distances | None,
    known: Sequence[str],
    met: Sequence[str],
    distances: Distances,
    fill_in: bool = False,
) -> tuple[Distances, Distances, list[str]]:
    """Add one round's ``distances`` of the clients ``met`` to the sums over rounds, and to the counts of meetings.

    ``total`` and ``meetings`` (n × n) are those of the clients ``known`` so far; new ones are appended. ``fill_in``
    adds only pairs that never met before. For their mean see `mean_distances`.
    """
    clients = [*known, *(client for client in met if client not in set(known))]
    sums = np.zeros((2, len(clients), len(clients)))
    if total is not None and meetings is not None:
        sums[:, : len(known), : len(known)] = total, meetings
    place = {client: index for index, client in enumerate(clients)}
    rows = [place[client] for client in met]
    block = np.ix_([0, 1], rows, rows)
    counts = sums[block][1] == 0 if fill_in else np.ones(distances.shape, dtype=bool)
    sums[block] += np.stack([distances * counts, counts])
    return sums[0], sums[1], clients


def mean_distances(total: Distances, meetings: Distances) -> Distances:
    """D_ij (n × n): the mean over the rounds in which a pair met.

    Pairs that never met get an estimate: the least max(D_ik, D_kj) over the clients k that met both, which in a
    hierarchy D_ij does not exceed; the largest known distance where nobody met both.
    """
    mean = np.divide(total, meetings, out=np.full_like(total, np.nan), where=meetings > 0)
    np.fill_diagonal(mean, 0.0)
    unknown = np.isnan(mean)
    largest = float(np.nanmax(mean))
    filled = mean.copy()
    for i in np.flatnonzero(unknown.any(axis=1)):
        others = np.flatnonzero(unknown[i])
        bound = np.maximum(mean[i], mean[others])
        filled[i, others] = np.where(np.isnan(bound), np.inf, bound).min(axis=1)
    filled[np.isinf(filled)] = largest
    return filled
