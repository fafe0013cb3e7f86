"""What a comparison may claim: paired differences with an interval, ranks, and the critical difference of ranks.

Pure functions of accuracies by seed and client. Two rows of a table have the same clients with the same data in each
seed, so that their difference is taken client by client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

ByClient = Mapping[str, float]
BySeed = Mapping[int, ByClient]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean over seeds of a row's mean difference to another over clients, with its interval.

    ``seeds`` were compared, in ``ahead`` of them the row is ahead; ``pairs`` are the clients over all seeds.
    """

    mean: float
    low: float
    high: float
    seeds: int
    ahead: int
    pairs: int

    @property
    def is_noise(self) -> bool:
        """Whether the interval holds 0, the seeds do not agree on who is ahead, or all clients differ by the same.

        The last has an interval of no width, which says that there are few test samples, and nothing of noise.
        """
        return self.low <= 0 <= self.high or self.high - self.low < 1e-9 or self.ahead not in (0, self.seeds)


@dataclass(frozen=True)
class Ranks:
    """Mean ranks, 1 the best, over ``blocks`` of a data set and a seed, and the least difference that is one."""

    mean: Mapping[str, float]
    critical_difference: float
    p_value: float | None  # of Friedman's test that no row differs; None for two rows
    blocks: int


def paired_difference(row: BySeed, other: BySeed) -> Difference | None:
    """``row`` minus ``other`` over the seeds and clients that both have; None without two clients in one seed.

    The interval is Student's for a mean of the seeds' means, with the variance over clients inside each seed
    (a stratified mean; degrees of freedom after Welch and Satterthwaite). It is about these partitions and seeds: what
    another partition would bring shows in whether the seeds agree. A seed with one client, which says nothing of the
    noise, is left out.
    """
    strata = []
    for seed in sorted(set(row) & set(other)):
        clients = sorted(set(row[seed]) & set(other[seed]))
        if len(clients) > 1:
            strata.append(np.array([row[seed][client] - other[seed][client] for client in clients]))
    if not strata:
        return None
    means = [float(one.mean()) for one in strata]
    mean = float(np.mean(means))
    shares = [(one.var(ddof=1) / len(one), len(one) - 1) for one in strata]
    squared = sum(share for share, _ in shares) / len(strata) ** 2
    half = 0.0
    if squared > 0:
        freedom = sum(s for s, _ in shares) ** 2 / sum(share**2 / degrees for share, degrees in shares)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(squared)
    pairs = sum(map(len, strata))
    return Difference(mean, mean - half, mean + half, len(strata), sum(m > 0 for m in means), pairs)


def ranks(blocks: Sequence[Mapping[str, float]]) -> Ranks | None:
    """Mean ranks over blocks, each a row's label → accuracy; None with fewer than two blocks or rows.

    Rows that some block lacks are left out. The critical difference is Nemenyi's at 5 % (Demšar: Statistical
    Comparisons of Classifiers over Multiple Data Sets. JMLR 7, 2006, section 3.2.2). Seeds of one data set are not
    independent data sets, so that it is too small rather than too large where blocks are seeds.
    """
    rows = [row for row in (blocks[0] if blocks else {}) if all(row in block for block in blocks)]
    if len(rows) < 2 or len(blocks) < 2:
        return None
    accuracies = np.array([[block[row] for row in rows] for block in blocks])
    found = stats.rankdata(-accuracies, axis=1)
    k, n = len(rows), len(blocks)
    quantile = float(stats.studentized_range.ppf(CONFIDENCE, k, math.inf)) / math.sqrt(2)
    p_value = float(stats.friedmanchisquare(*accuracies.T).pvalue) if k > 2 else None
    mean = dict(sorted(zip(rows, found.mean(axis=0).tolist(), strict=True), key=lambda item: item[1]))
    return Ranks(mean, quantile * math.sqrt(k * (k + 1) / (6 * n)), p_value, n)
