"""Who holds which samples: the partitions of the papers by name, and each client's split into train and test.

Where clients come in groups, client i is in group i mod the number of groups, which is the ground truth for purity
and the adjusted Rand index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data import partition_rules as rules
from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest

Indices = NDArray[np.int64]

ALWAYS_GROUPED = ("class-groups", "rotated", "label-permuted", "mixed")
PARTITIONS = ("iid", "dirichlet", "pathological", "dominant", *ALWAYS_GROUPED, "natural")
MAY_BE_GROUPED = ("dominant", "pathological", *ALWAYS_GROUPED)
DEFAULT_GROUPS = 4


@dataclass(frozen=True, eq=False)
class ClientPart:
    """A client's part of a data set, and what is done to it.

    Attributes
    ----------
    indices : array of int
        Of its samples, sorted.
    group : int or None
        Ground-truth group from 0, None where there are none.
    rotation_degrees : float
        Counter-clockwise, applied to its images.
    label_permutation : tuple of int, or None
        The new label of each label; None leaves them as they are.
    owner : int or None
        Whose samples they are (writer, subject) in a natural partition.
    mix : (C,) array of int, or None
        How the classes weigh, in whole numbers, in what the samples were drawn from: not what a few samples happen to
        hold, but the client's part before ``samples_per_client`` cut it; `partition` fills it in.
    """

    indices: Indices
    group: int | None = None
    rotation_degrees: float = 0.0
    label_permutation: tuple[int, ...] | None = None
    owner: int | None = None
    mix: NDArray[np.int64] | None = None


def partition(
    name: str,
    labels: NDArray[Any],
    num_clients: int,
    seed: int,
    *,
    groups: int | None = None,
    beta: float = 0.5,
    classes_per_client: int = 2,
    classes_per_group: int = 8,
    heterogeneity: str | None = None,
    owners: NDArray[Any] | None = None,
    owner_groups: NDArray[Any] | None = None,
    minimum: int = 10,
    samples_per_client: int | None = None,
    num_classes: int | None = None,
) -> list[ClientPart]:
    """Share a data set among clients, no sample to two of them.

    Args:
        name: one of `PARTITIONS`; `bouquet.common.data.partition_rules` says what each does and where it is from.
        labels: (N,) label of each sample, from 0.
        num_clients: number of clients.
        seed: of everything random.
        groups: number of different distributions, which the clients share in turn. `ALWAYS_GROUPED` have 4 when it
            is None; ``dominant`` and ``pathological`` then draw one for each client, without ground truth.
        beta: ``dirichlet`` and ``mixed``: concentration β; the smaller, the more uneven.
        classes_per_client: ``pathological``.
        classes_per_group: ``class-groups``.
        heterogeneity: ``dominant``: "low", "mid" or "high", a third of the range over 100 draws; None: one draw.
        owners: ``natural``: (N,) owner of each sample.
        owner_groups: ``natural``: (N,) known group of each sample's owner, if there are any.
        minimum: samples that every client has at least.
        samples_per_client: cap on a client's samples.
        num_classes: number of classes; by default the highest label plus one.

    Raises `BouquetError`, naming the value and what is allowed, for what the data do not allow.
    """
    _check(name, labels, num_clients, groups, minimum, samples_per_client)
    mixes: NDArray[np.int64] | None = None
    if groups is None and name in ALWAYS_GROUPED:
        groups = min(DEFAULT_GROUPS, num_clients)
    turns = groups or 1
    group_of: list[int | None] = [None if groups is None else i % turns for i in range(num_clients)]
    owner_of: list[int | None] = [None] * num_clients
    rotations: list[float] = [0.0]
    permutations: list[tuple[int, ...] | None] = [None]
    match name:
        case "dirichlet" | "mixed":
            parts = rules.dirichlet(labels, num_clients, seed, beta=beta, minimum=minimum)
        case "pathological":
            parts = rules.pathological(labels, num_clients, seed, classes_per_client=classes_per_client, groups=groups)
        case "dominant":
            parts, mixes = rules.dominant(
                labels,
                num_clients,
                seed,
                groups=groups,
                samples_per_client=samples_per_client,
                heterogeneity=heterogeneity,
            )
        case "class-groups":
            parts = rules.class_groups(labels, num_clients, seed, groups=turns, classes_per_group=classes_per_group)
        case "natural":
            if owners is None:
                raise BouquetError(
                    "Partition 'natural' needs to know whose each sample is; this data set has no owners."
                )
            chosen, parts = rules.natural(owners, num_clients, seed, minimum=minimum)
            owner_of = [int(owner) for owner in chosen]
            if owner_groups is not None:
                known = np.unique(owner_groups)
                group_of = [int(np.searchsorted(known, owner_groups[part[0]])) for part in parts]
        case _:
            parts = rules.iid(labels, num_clients, seed)
    if name == "rotated":
        rotations = [group * 360 / turns for group in range(turns)]
    if name == "mixed":
        rotations = [group % 2 * 180.0 for group in range(turns)]
    if name in ("label-permuted", "mixed"):
        alike = 2 if name == "mixed" else 1  # groups in a row with one permutation
        drawn = rules.label_permutations(num_classes or int(labels.max()) + 1, -(-turns // alike), seed)
        permutations = [drawn[group // alike] for group in range(turns)]
    if mixes is None:
        mixes = np.stack([np.bincount(labels[part], minlength=int(labels.max()) + 1) for part in parts])
    parts = [_capped(part, samples_per_client, (seed, i)) for i, part in enumerate(parts)]
    _check_sizes(name, parts, minimum)
    return [
        ClientPart(
            parts[i],
            group_of[i],
            rotations[i % len(rotations)],
            permutations[i % len(permutations)],
            owner_of[i],
            mixes[i],
        )
        for i in range(num_clients)
    ]


def part_in_round(round_: int, part: int, num_parts: int, drift: Sequence[tuple[int, float]]) -> int:
    """The part of the data that client ``part`` has in a round, where data drift.

    ``drift`` are pairs (r, share), in order: from round r on the first ``share`` of the clients each have the next
    one's part, the last of them the first's. So nobody shares samples with anybody, and in a partition with groups they
    have another group's.
    """
    share = next((share for start, share in reversed(drift) if round_ >= start), 0.0)
    changed = round(share * num_parts)
    return (part + 1) % changed if part < changed else part


def split_train_test(
    indices: Indices,
    labels: NDArray[Any],
    seed: int | Sequence[int],
    *,
    test_fraction: float = 0.2,
    segments: NDArray[Any] | None = None,
) -> tuple[Indices, Indices]:
    """Split a client's samples into train and test at random, without a look at their labels.

    So what is tested is to what is trained on as the client's next samples will be, and the test says what to expect of
    them. Only segments, which go as a whole, are drawn for each label until its share is nearest.

    Args:
        indices: (n,) the client's samples.
        labels: (N,) labels of all samples.
        seed: of the choice.
        test_fraction: share of the test part, above 0 and below 1.
        segments: (N,) contiguous stretch that each sample belongs to. Where windows overlap, a stretch goes to one
            side as a whole, or the test part would repeat pieces of the training part.

    Returns the sorted indices of train and of test; each has at least one. Raises `BouquetError` if that cannot be.
    """
    stretches = np.arange(len(indices)) if segments is None else np.unique(segments[indices], return_inverse=True)[1]
    if len(indices) == 0 or stretches.max() == 0:
        what = "samples" if segments is None else "contiguous segments"
        raise BouquetError(f"{len(indices)} samples cannot be split into train and test; at least 2 {what} are needed.")
    rng = np.random.default_rng(seed)
    if segments is None:
        chosen = _at_random(len(indices), test_fraction, rng)
    else:
        chosen = _whole_segments(labels[indices], stretches, test_fraction, rng)
    return np.sort(indices[~chosen]), np.sort(indices[chosen])


def _at_random(count: int, test_fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mask (n,) of the test samples, drawn without a look at their labels (docs/decisions.md)."""
    total = min(max(round(count * test_fraction), 1), count - 1)
    chosen = np.zeros(count, dtype=bool)
    chosen[rng.permutation(count)[:total]] = True
    return chosen


def _whole_segments(
    labels: NDArray[Any], stretches: NDArray[Any], test_fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Mask (n,) of the test samples: for each label, random whole stretches until its share is nearest.

    A label of a single stretch stays in train, and every label keeps one stretch there.
    """
    sizes = np.bincount(stretches)
    label_of = np.array([np.bincount(labels[stretches == s]).argmax() for s in range(len(sizes))])
    test: list[int] = []
    for label in np.unique(label_of):
        candidates = rng.permutation(np.flatnonzero(label_of == label))
        wanted, taken = test_fraction * sizes[candidates].sum(), 0
        for stretch in candidates[:-1]:
            if abs(taken + sizes[stretch] - wanted) < abs(taken - wanted):
                test.append(int(stretch))
                taken += sizes[stretch]
    if not test:
        test = [int(sizes.argmin())]
    mask: NDArray[np.bool_] = np.isin(stretches, test)
    return mask


def _capped(part: Indices, cap: int | None, seed: tuple[int, int]) -> Indices:
    if cap is None or len(part) <= cap:
        return part
    return np.sort(np.random.default_rng(seed).choice(part, cap, replace=False))


def _check(
    name: str, labels: NDArray[Any], num_clients: int, groups: int | None, minimum: int, samples_per_client: int | None
) -> None:
    if name not in PARTITIONS:
        raise BouquetError(f"Unknown partition {name!r}; {nearest(name, PARTITIONS)}.")
    if num_clients * minimum > len(labels):
        raise BouquetError(
            f"{num_clients} clients of at least {minimum} samples need {num_clients * minimum} samples, the data set "
            f"has {len(labels)}; take fewer clients or a lower minimum."
        )
    if samples_per_client is not None and samples_per_client < minimum:
        raise BouquetError(f"samples_per_client is {samples_per_client}; minimum is {minimum}, so allow at least that.")
    if groups is not None and name not in MAY_BE_GROUPED:
        raise BouquetError(f"Partition {name!r} has no groups to set; {', '.join(MAY_BE_GROUPED)} have.")
    if groups is not None and not 1 <= groups <= num_clients:
        raise BouquetError(f"groups is {groups}; with {num_clients} clients 1 to {num_clients} are allowed.")


def _check_sizes(name: str, parts: list[Indices], minimum: int) -> None:
    client = min(range(len(parts)), key=lambda i: len(parts[i]))
    if len(parts[client]) < minimum:
        raise BouquetError(
            f"Partition {name!r} leaves client {client} with {len(parts[client])} samples, fewer than the minimum of "
            f"{minimum}; take fewer clients, a lower minimum or another seed."
        )
