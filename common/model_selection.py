"""Which of several models a device keeps: the rule of ``[personal] serve = "best"``, and what of it crosses the wire.

A device judges models on samples that none of them was trained on. It has few, and on a handful of samples an honest
difference drowns in noise. So models are compared

- by their errors. A proper score, the cross-entropy or Brier's, tells models apart on fewer samples, but it prefers a
  model that doubts to one that is right more often and sure of it, as one is that was trained on few samples;
- in pairs on the same samples, against one `REFERENCE`;
- with the fleet as the prior: in each round the server pools the devices' mean differences and sends back their mean μ,
  its error, the variance between devices τ² and that between samples σ², four numbers a kind of model. A device's
  own mean over n samples is shrunk towards μ by σ²/n / (σ²/n + τ²): the posterior mean of the normal model of
  empirical Bayes (Efron, Morris: Stein's Estimation Rule and Its Competitors. JASA 68, 1973). A device with many
  samples believes itself, one with few the others;
- with a margin: another model takes the place of the reference where its posterior mean is better by so many posterior
  standard errors; and what the device kept before stays where it is better than the new choice by so many standard
  errors, which guards against a round that went wrong.

``benchmarks/choosing_rule.py`` holds this rule against others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

REFERENCE = "alone"
# What a device may keep beside the reference, in the order on the wire.
KINDS = ("received", "trained", "personal")
NAMES = (REFERENCE, *KINDS)
MIXTURE = "mixture"
SERVED_NAMES = (*NAMES, MIXTURE)  # what a device may serve
HELD_OUT = 0.2  # of the training data, at least a sample: what models are judged on
MARGIN = 2.0  # standard errors by which another model must be better
FEWEST = 4  # devices that make a prior; the variance of fewer says nothing

REPORT = "choosing"  # key of a reply's config: the number of samples, then mean and variance a kind
PRIOR = "choosing-prior"  # key of a message's config: the four numbers of a `Prior` a kind
CHOSEN = "chosen"  # metric: what is served, as its place in SERVED_NAMES
MIXED = "mixed"  # metric: a bit for each of NAMES that is in the mixture, and the next where REFERENCE was left out

# Without a fleet, so many samples of this variance are added to a device's own: three samples may agree by chance.
_SAMPLES_BEFORE, _VARIANCE_BEFORE = 4, 0.1
_ABSENT = -1.0  # a variance that no numbers have: this device, or this fleet, has no such model


class Difference(NamedTuple):
    """A model against the reference on one device: mean of the paired differences, and the variance of one of them."""

    mean: float
    variance: float


class Prior(NamedTuple):
    """The fleet: mean μ over devices and its squared error, variance between devices τ², between samples σ²."""

    mean: float
    squared_error: float
    between: float
    within: float


class Posterior(NamedTuple):
    """What a device believes of a model's mean difference to the reference."""

    mean: float
    error: float


def errors(outputs: NDArray[np.floating[Any]], labels: NDArray[Any]) -> NDArray[np.float64]:
    """1 for each sample whose class is not the most probable, else 0, (n,), of logits or probabilities (n, C)."""
    found: NDArray[np.float64] = (outputs.argmax(axis=1) != labels).astype(np.float64)
    return found


def difference(scores: NDArray[np.float64], reference: NDArray[np.float64]) -> Difference:
    """Of the scores (n,) of a model and of the reference on the same samples; below 0 the model is better."""
    paired = scores - reference
    return Difference(float(paired.mean()), float(paired.var(ddof=1)) if len(paired) > 1 else 0.0)


def pool(reports: Sequence[tuple[int, Mapping[str, Difference]]]) -> dict[str, Prior]:
    """The fleet's prior of each kind, from number of samples and differences of each device.

    τ² is what the variance of the means exceeds that of the sampling by (the moment estimate of a random effect), at
    least 0. A kind that fewer than `FEWEST` devices have is left out.
    """
    priors = {}
    for kind in KINDS:
        found = [(samples, by_kind[kind]) for samples, by_kind in reports if kind in by_kind]
        weight = sum(samples - 1 for samples, _ in found)
        if len(found) < FEWEST or weight == 0:
            continue
        within = sum((samples - 1) * one.variance for samples, one in found) / weight
        means = np.array([one.mean for _, one in found])
        sampling = float(np.mean([within / samples for samples, _ in found]))
        spread = float(means.var(ddof=1))
        # The variance of a mean is τ² and that of its samples: chance may make the means more alike than they can be.
        error = max(spread, sampling) / len(found)
        priors[kind] = Prior(float(means.mean()), error, max(0.0, spread - sampling), within)
    return priors


def posterior(own: Difference, samples: int, prior: Prior | None) -> Posterior:
    """What a device believes after ``samples`` paired differences; without a prior, what it saw, with more doubt."""
    if prior is None:
        before, seen = _SAMPLES_BEFORE, samples - 1
        variance = (seen * own.variance + before * _VARIANCE_BEFORE) / (seen + before)
        return Posterior(own.mean, math.sqrt(variance / samples))
    sampling = prior.within / samples
    share = prior.between / (prior.between + sampling) if prior.between else 0.0
    mean = share * own.mean + (1 - share) * prior.mean
    return Posterior(mean, math.sqrt(share * sampling + (1 - share) ** 2 * prior.squared_error))


def choose(beliefs: Mapping[str, Posterior]) -> str:
    """The kind with the least mean among those below 0 by `MARGIN` errors; of equals the first, else `REFERENCE`."""
    better = {kind: belief.mean for kind, belief in beliefs.items() if belief.mean + MARGIN * belief.error < 0}
    return min(better, key=lambda kind: better[kind]) if better else REFERENCE


def stays(kept: NDArray[np.float64], new: NDArray[np.float64]) -> bool:
    """Whether what was kept before, by its scores (n,), stays in spite of a new choice."""
    belief = posterior(difference(kept, new), len(new), None)
    return belief.mean + MARGIN * belief.error < 0


# --- what is served, in the record ----------------------------------------------------------------------------------


def mixed_bits(kinds: Iterable[str], is_left_out: bool) -> int:
    """The number of `MIXED`: which of `NAMES` a mixture holds, and whether the model alone was left out of it."""
    return sum(1 << NAMES.index(kind) for kind in kinds) + (is_left_out << len(NAMES))


def served(metrics: Mapping[str, float]) -> dict[str, Any]:
    """What a device says that it serves, for the record; empty where it serves the method's own model.

    ``kept`` is one of `SERVED_NAMES`, ``mixed`` the models of a mixture, and ``alone_left_out`` is 1 where the model
    alone is none of them because the received one was judged better.
    """
    place, bits = metrics.get(CHOSEN), metrics.get(MIXED)
    if place is None or not 0 <= place < len(SERVED_NAMES):
        return {}
    found: dict[str, Any] = {"kept": SERVED_NAMES[int(place)]}
    if bits is None or found["kept"] != MIXTURE or not 0 < bits < 2 << len(NAMES):
        return found
    found["mixed"] = [kind for k, kind in enumerate(NAMES) if int(bits) >> k & 1]
    return found | ({"alone_left_out": 1} if int(bits) >> len(NAMES) else {})


def served_text(said: Mapping[str, Any]) -> str:
    """What `served` gave as people read it: ``received + trained, without alone``; empty where nothing was said."""
    text = " + ".join(said.get("mixed") or ()) or str(said.get("kept") or "")
    return f"{text}, without {REFERENCE}" if said.get("alone_left_out") else text


# --- on the wire -----------------------------------------------------------------------------------------------------


def to_report(samples: int, differences: Mapping[str, Difference]) -> list[float]:
    """A device's differences as the numbers of its reply."""
    pairs = (differences.get(kind, Difference(0.0, _ABSENT)) for kind in KINDS)
    return [float(samples), *(value for pair in pairs for value in pair)]


def from_report(values: Any) -> tuple[int, dict[str, Difference]] | None:
    """The inverse of `to_report`; None for what no honest device sends."""
    if not _are_numbers(values, 1 + 2 * len(KINDS)):
        return None
    samples, pairs = values[0], [Difference(*values[i : i + 2]) for i in range(1, len(values), 2)]
    if not 1 <= samples <= 1e9 or samples != int(samples) or any(abs(p.mean) > 1 or p.variance > 1 for p in pairs):
        return None
    found = {kind: pair for kind, pair in zip(KINDS, pairs, strict=True) if pair.variance >= 0}
    return int(samples), found


def to_prior(priors: Mapping[str, Prior]) -> list[float]:
    """The fleet's priors as the numbers of a message."""
    numbers = (priors.get(kind, Prior(0.0, 0.0, 0.0, _ABSENT)) for kind in KINDS)
    return [value for four in numbers for value in four]


def from_prior(values: Any) -> dict[str, Prior]:
    """The inverse of `to_prior`; empty where nothing, or nothing sensible, was sent."""
    if not _are_numbers(values, 4 * len(KINDS)):
        return {}
    found = [Prior(*values[i : i + 4]) for i in range(0, len(values), 4)]
    return {kind: p for kind, p in zip(KINDS, found, strict=True) if min(p.squared_error, p.between, p.within) >= 0}


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, float) and math.isfinite(value) for value in values)
    )
