"""The rules by which samples are shared among clients; `bouquet.common.data.partitions.partition` calls them by name.

Each takes the labels (N,) of all samples and a seed and gives one sorted index array a client, no sample in two.
Most are a matrix of counts, clients × classes, which is then dealt from each class's shuffled samples.
"""

from __future__ import annotations

from itertools import permutations
from math import comb, factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.heterogeneity import draw_at_level, heterogeneity_of_counts
from bouquet.common.errors import BouquetError

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]

PRIMARY_SHARE = (0.4, 0.6)  # of ``dominant``: the range of σp, its primary class's share of a client's samples
SECONDARY_SHARE = (0.2, 0.4)  # the range of σs, its secondary class's
_DRAWS_FOR_LEVEL = 100
_ATTEMPTS = 1000


def iid(labels: NDArray[Any], num_clients: int, seed: int) -> list[Indices]:
    """Random parts, equal up to one sample."""
    return _even(np.arange(len(labels)), num_clients, np.random.default_rng(seed))


def dirichlet(labels: NDArray[Any], num_clients: int, seed: int, *, beta: float, minimum: int) -> list[Indices]:
    """Each class is shared among the clients by a draw from Dir(β) (FedTSDP, section Experimental settings).

    A client that comes out below ``minimum`` is filled up with random samples of the one that then has most.
    """
    rng = np.random.default_rng(seed)
    supply = np.bincount(labels)
    counts = np.stack([apportion(rng.dirichlet(np.full(num_clients, beta)), int(n)) for n in supply], axis=1)
    for client in range(num_clients):
        while (missing := minimum - int(counts[client].sum())) > 0:
            donor = int(counts.sum(axis=1).argmax())
            given = min(missing, int(counts[donor].sum()) - minimum)
            moved = rng.multivariate_hypergeometric(counts[donor], given)
            counts[donor] -= moved
            counts[client] += moved
    return deal(labels, counts, rng)


def pathological(
    labels: NDArray[Any], num_clients: int, seed: int, *, classes_per_client: int, groups: int | None = None
) -> list[Indices]:
    """Each client holds ``classes_per_client`` classes, and each class is split evenly among those who hold it.

    Classes are given out so that each is held about equally often. With ``groups``, only that many sets of classes.
    """
    rng = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    if not 1 <= classes_per_client <= num_classes:
        raise BouquetError(f"classes_per_client is {classes_per_client}; the data allow 1 to {num_classes}.")
    held = _class_sets(rng, num_classes, classes_per_client, groups or num_clients, distinct=groups is not None)
    holders = held[np.arange(num_clients) % len(held)]
    supply = np.bincount(labels)
    counts = np.stack([_split_among(holders[:, c], int(supply[c])) for c in range(num_classes)], axis=1)
    return deal(labels, counts, rng)


def dominant(
    labels: NDArray[Any],
    num_clients: int,
    seed: int,
    *,
    groups: int | None = None,
    samples_per_client: int | None = None,
    heterogeneity: str | None = None,
) -> tuple[list[Indices], Counts]:
    """A primary class with share σp, a secondary one with σs, the rest evenly over the others (DC-PFL, section V).

    All clients hold equally many samples: as many as every class's supply allows, at most ``samples_per_client``.
    With ``groups``, only that many distributions, no two of them with the same pair of classes. ``heterogeneity``
    picks one of 100 draws by the third of their range that it lies in; None takes the first.

    Returns the clients' indices, and (num_clients, C) each class's share that was drawn for them, in millionths.
    """
    rng = np.random.default_rng(seed)
    supply = np.bincount(labels)
    if len(supply) < 2:
        raise BouquetError("Partition 'dominant' needs at least 2 classes; the data set has 1.")
    if groups is not None and groups > comb(len(supply), 2):
        raise BouquetError(f"groups is {groups}; {len(supply)} classes have only {comb(len(supply), 2)} pairs.")
    size = min(len(labels) // num_clients, samples_per_client or len(labels))
    draws = [
        _draw_shares(rng, len(supply), groups or num_clients, groups)
        for _ in range(1 if heterogeneity is None else _DRAWS_FOR_LEVEL)
    ]
    counts = [_equal_sized_counts(shares, supply, num_clients, size) for shares in draws]
    chosen = 0
    if heterogeneity is not None:
        chosen = draw_at_level([heterogeneity_of_counts(one) for one in counts], heterogeneity)
    drawn = draws[chosen][np.arange(num_clients) % len(draws[chosen])]
    return deal(labels, counts[chosen], rng), np.rint(drawn * 10**6).astype(np.int64)


def class_groups(
    labels: NDArray[Any], num_clients: int, seed: int, *, groups: int, classes_per_group: int
) -> list[Indices]:
    """Each group of clients sees its own set of classes (gradient-loss, section IV).

    Any two sets of c out of C classes share at least 2c − C. A class is split among the groups that see it in
    proportion to their clients, and a group's samples evenly and at random among its clients.
    """
    rng = np.random.default_rng(seed)
    num_classes = int(labels.max()) + 1
    if not 1 <= classes_per_group <= num_classes:
        raise BouquetError(f"classes_per_group is {classes_per_group}; the data allow 1 to {num_classes}.")
    if groups > comb(num_classes, classes_per_group):
        raise BouquetError(
            f"groups is {groups}; there are only {comb(num_classes, classes_per_group)} sets of {classes_per_group} "
            f"out of {num_classes} classes."
        )
    seen = _class_sets(rng, num_classes, classes_per_group, groups, distinct=True)
    members = np.bincount(np.arange(num_clients) % groups)
    supply = np.bincount(labels)
    counts = np.stack([_split_among(seen[:, c] * members, int(supply[c])) for c in range(num_classes)], axis=1)
    parts = [_even(pool, int(n), rng) for pool, n in zip(deal(labels, counts, rng), members, strict=True)]
    return [parts[i % groups][i // groups] for i in range(num_clients)]


def natural(owners: NDArray[Any], num_clients: int, seed: int, *, minimum: int) -> tuple[Indices, list[Indices]]:
    """One owner a client: the owners (n,), in ascending order, and their indices.

    When there are more owners with at least ``minimum`` samples than clients, a random choice of them.
    """
    known, sizes = np.unique(owners, return_counts=True)
    eligible = known[sizes >= minimum]
    if num_clients > len(eligible):
        raise BouquetError(
            f"{num_clients} clients, but only {len(eligible)} of {len(known)} owners hold {minimum} samples or more; "
            "take fewer clients or a lower minimum."
        )
    chosen = np.sort(np.random.default_rng(seed).choice(eligible, num_clients, replace=False)).astype(np.int64)
    return chosen, [np.flatnonzero(owners == owner) for owner in chosen]


def label_permutations(num_classes: int, groups: int, seed: int) -> list[tuple[int, ...]]:
    """One permutation of the labels for each group, all different (CFL, Sattler et al. 2021, section VI)."""
    if groups > factorial(num_classes):
        raise BouquetError(f"groups is {groups}; {num_classes} labels have {factorial(num_classes)} permutations.")
    rng = np.random.default_rng(seed)
    if factorial(num_classes) <= _ATTEMPTS:
        every = list(permutations(range(num_classes)))
        return [every[i] for i in rng.permutation(len(every))[:groups]]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < groups:
        drawn[tuple(int(label) for label in rng.permutation(num_classes))] = None
    return list(drawn)


def apportion(shares: NDArray[Any], total: int) -> Counts:
    """Whole numbers (n,) in proportion to ``shares`` (n,) that add up to ``total``, by largest remainder."""
    exact = np.asarray(shares, dtype=np.float64) / np.sum(shares) * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def systematic(sizes: NDArray[Any], total: int, start: int) -> Counts:
    """Whole numbers (n,) that add up to ``total``, each its share by ``sizes`` (n,) rounded down or up.

    Systematic sampling: every N/total-th of N = Σ sizes samples in a row. Over the N starts, from 0 to N − 1, each
    number is on average exactly its share, which by largest remainder a small one is not.
    """
    until = np.cumsum(sizes, dtype=np.int64)
    counts: Counts = np.diff((until * total + start) // until[-1], prepend=0)
    return counts


def apportion_at_random(sizes: NDArray[Any], total: int, rng: np.random.Generator) -> Counts:
    """`systematic` in a random order from a random start: no two labels are tied to each other by their numbers."""
    order = rng.permutation(len(sizes))
    counts = np.empty(len(sizes), dtype=np.int64)
    counts[order] = systematic(np.asarray(sizes)[order], total, int(rng.integers(np.sum(sizes))))
    return counts


def deal(labels: NDArray[Any], counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """Give client i ``counts[i, c]`` random samples of class c; sorted indices for each client."""
    parts: list[list[Indices]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == c))
        for part, piece in zip(parts, np.split(pool, np.cumsum(counts[:, c]))[:-1], strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _even(pool: Indices, num_parts: int, rng: np.random.Generator) -> list[Indices]:
    return [np.sort(part) for part in np.array_split(rng.permutation(pool), num_parts)]


def _split_among(weights: NDArray[Any], total: int) -> Counts:
    """Share ``total`` samples by weight; a class that nobody is to hold stays unused."""
    return apportion(weights, total) if weights.any() else np.zeros(len(weights), dtype=np.int64)


def _class_sets(
    rng: np.random.Generator, num_classes: int, size: int, num_sets: int, *, distinct: bool
) -> NDArray[np.int64]:
    """Membership (num_sets, C), 0 or 1, of random sets of ``size`` classes, each class used about equally often."""
    for _ in range(_ATTEMPTS):
        sets = np.zeros((num_sets, num_classes), dtype=np.int64)
        for row in range(num_sets):
            rarest_first = np.lexsort((rng.random(num_classes), sets.sum(axis=0)))
            sets[row, rarest_first[:size]] = 1
        if not distinct or len(np.unique(sets, axis=0)) == num_sets:
            return sets
    raise BouquetError(f"Found no {num_sets} different sets of {size} out of {num_classes} classes; take fewer groups.")


def _draw_shares(
    rng: np.random.Generator,
    num_classes: int,
    num_distributions: int,
    groups: int | None,
) -> NDArray[np.float64]:
    """Class shares (num_distributions, C) of one draw of ``dominant``."""
    shares = np.empty((num_distributions, num_classes))
    taken: set[frozenset[int]] = set()
    for row in shares:
        while True:
            primary, secondary = (int(c) for c in rng.choice(num_classes, 2, replace=False))
            if groups is None or frozenset((primary, secondary)) not in taken:
                break
        taken.add(frozenset((primary, secondary)))
        first, second = rng.uniform(*PRIMARY_SHARE), rng.uniform(*SECONDARY_SHARE)
        row[:] = (1 - first - second) / max(num_classes - 2, 1)
        row[primary], row[secondary] = first, second
    return shares / shares.sum(axis=1, keepdims=True)  # with two classes there are no others to take the rest


def _equal_sized_counts(shares: NDArray[np.float64], supply: Counts, num_clients: int, size: int) -> Counts:
    """Counts (n, C) for clients that take the rows of ``shares`` in turn: the largest equal size that is there."""
    turn = np.arange(num_clients) % len(shares)
    with np.errstate(divide="ignore"):
        size = min(size, int((supply / shares[turn].sum(axis=0)).min()))
    while size > 0:
        counts = np.stack([apportion(row, size) for row in shares])[turn]
        if (counts.sum(axis=0) <= supply).all():
            return counts
        size -= 1
    return np.zeros((num_clients, len(supply)), dtype=np.int64)
