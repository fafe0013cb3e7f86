"""A round as a line of the record, and a run as its summary."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common import metrics, model_selection, protocol
from bouquet.common.settings import Settings
from bouquet.common.task.score import ACCURACY, Score
from bouquet.common.task.task import task_of
from bouquet.common.texts import LONGEST
from bouquet.server.record.gains import ALONE, OWN, RECEIVED, of_device
from bouquet.server.record.traffic import Bytes
from bouquet.strategies.base.filters.privacy import PrivacyLedger
from bouquet.strategies.base.reply_checks import read_classes, read_texts
from bouquet.strategies.base.strategy import MethodStrategy

LONGEST_CLASS = 60


def round_line(
    round_: int,
    strategy: MethodStrategy[Any],
    groups: Mapping[str, int],
    traffic: Bytes,
    seconds: float,
    score: Score = ACCURACY,
    classes: int = 0,
) -> dict[str, Any]:
    """One line of ``rounds.jsonl``.

    ``accuracy_*`` (or as the task's score is called) is that of the models that the devices started the round from, on
    their test parts, which is the outcome of the round before; ``accuracy_trained_*`` that of each device's own model
    after its local training.
    """
    assert strategy.state is not None
    assignment = strategy.assignment(strategy.state)
    trained = strategy.train_round
    received = trained.replies.received if trained.replies else ()
    reported = [reply.metrics for reply in received]
    examples = [m.get(protocol.NUM_EXAMPLES, 0) for m in reported]
    tested = [m.get(protocol.TEST_EXAMPLES, 0) for m in reported]
    return {
        "round": round_,
        "replies": len(reported),
        "failures": len(trained.failures),
        "failed": dict(sorted(trained.failures.items())),
        "not_now": {client: rest.reason for client, rest in sorted(trained.not_now.items())},
        "limited": dict(sorted(trained.limited.items())),
        "late": dict(sorted(trained.came_late.items())),
        **({"steps": dict(sorted(strategy.budget.steps.items()))} if strategy.budget else {}),
        **({"epsilon": ledger.by_client()} if (ledger := strategy.filter_of(PrivacyLedger)) else {}),
        "clusters": len(set(assignment.values())) or 1,
        **agreement(assignment, groups),
        "warnings": list(trained.warnings),
        "loss": _mean(reported, protocol.LOSS, examples),
        "train_loss": _mean(reported, protocol.TRAIN_LOSS, examples),
        score.of("micro"): _mean(reported, score.key, tested),
        score.of("macro"): _mean(reported, score.key),
        score.of("trained_micro"): _mean(reported, score.trained, tested),
        score.of("trained_macro"): _mean(reported, score.trained),
        **_naive(reported),
        **score.facts(),
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "bytes_up_plain": traffic.up_plain,
        "bytes_down_plain": traffic.down_plain,
        "bytes_by_layer": traffic.by_layer,
        "bytes_by_client": dict(sorted(traffic.by_client.items())),
        "seconds": round(seconds, 3),
        "tested": int(sum(tested)),
        "assignment": dict(sorted(assignment.items())),
        "by_client": {r.client: _shown(r.metrics, r.config, score, classes) for r in received},
        "strategy": strategy.record(strategy.state),
    }


def _naive(reported: list[Any]) -> dict[str, float]:
    """The mean score of what is foretold without a model, where devices report it."""
    mean = _mean(reported, protocol.NAIVE)
    return {} if mean is None else {"naive_macro": mean}


def _shown(reported: Mapping[str, float], said: Mapping[str, Any], score: Score, classes: int) -> dict[str, Any]:
    """A device's own numbers of a round, under the names of the record; what it kept, where it chooses."""
    named = {
        "samples": protocol.NUM_EXAMPLES,
        "tested": protocol.TEST_EXAMPLES,
        "loss": protocol.LOSS,
        score.key: score.key,
        score.of("trained"): score.trained,
        "left_out": protocol.LEFT_OUT,
        "temperature": protocol.TEMPERATURE,
        "battery": protocol.BATTERY,
        score.of("kept"): score.served,
        "naive": protocol.NAIVE,
    }
    shown: dict[str, Any] = {n: round(float(reported[key]), 6) for n, key in named.items() if key in reported}
    if reported.get(protocol.STATE_LOST):
        shown["state_lost"] = 1
    if beside := of_device(reported, score, reported.get(protocol.TEST_EXAMPLES, 0)):
        shown["beside"] = beside
    if by_class := read_classes(said, classes):
        shown["classes"] = by_class
    texts = {
        "unknown_classes": (protocol.UNKNOWN_CLASSES, LONGEST_CLASS),
        "warnings": (protocol.DATA_WARNINGS, LONGEST),
    }
    shown |= {name: lines for name, (key, longest) in texts.items() if (lines := read_texts(said, key, longest))}
    return shown | model_selection.served(reported)


def summarise(
    settings: Settings,
    strategy: MethodStrategy[Any],
    groups: Mapping[str, int],
    rounds: list[dict[str, Any]],
    final_traffic: Bytes,
    seconds: float,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The summary of a finished run: accuracies are those of the final evaluation of every device.

    ``failed`` says why of those that failed it.
    """
    assert strategy.state is not None
    assignment = strategy.assignment(strategy.state)
    evaluation = dict(sorted(strategy.evaluate_round.scores.items()))
    tested = [m.get(protocol.NUM_EXAMPLES, 0) for m in evaluation.values()]
    score = task_of(settings).score
    scores = [m[score.key] for m in evaluation.values() if score.key in m]
    of_method = [m.get(score.of_method, m[score.key]) for m in evaluation.values() if score.key in m]
    reported = list(evaluation.values())
    return {
        "strategy": settings.strategy.name,
        "dataset": settings.data.dataset,
        "partition": settings.data.partition,
        "model": settings.model.name,
        "clients": len(evaluation),
        "rounds": len(rounds),
        "seed": settings.run.seed,
        score.of("micro"): _mean(reported, score.key, tested),
        score.of("macro"): _mean(reported, score.key),
        "f1_micro": _mean(reported, protocol.F1, tested),
        "f1_macro": _mean(reported, protocol.F1),
        **_naive(reported),
        **score.facts(),
        score.of("worst_decile"): metrics.worst_decile(scores, score.higher_is_better),
        score.of("deviation"): metrics.deviation(scores),
        "best_round": best_round(rounds, of_method, score),
        "clusters": len(set(assignment.values())) or 1,
        "assignment": dict(sorted(assignment.items())),
        "groups": dict(sorted(groups.items())) or None,
        **agreement(assignment, groups),
        score.of("by_client"): {c: m[score.key] for c, m in evaluation.items() if score.key in m},
        **_choice(evaluation, score),
        **_beside(evaluation, score),
        "not_evaluated": {
            client: failed.get(client) or _not_asked(settings.server.fraction_evaluate)
            for client in sorted({*assignment, *failed} - set(evaluation))
        },
        "warnings": [
            f"Round {line['round']}: {text}" for line in rounds[-1:] for text in (line.get("diagnosis") or {}).values()
        ],
        "bytes_up": sum(line["bytes_up"] for line in rounds) + final_traffic.up,
        "bytes_down": sum(line["bytes_down"] for line in rounds) + final_traffic.down,
        "bytes_up_plain": sum(line["bytes_up_plain"] for line in rounds) + final_traffic.up_plain,
        "bytes_down_plain": sum(line["bytes_down_plain"] for line in rounds) + final_traffic.down_plain,
        "seconds": round(seconds, 3),
        "strategy_record": strategy.record(strategy.state),
        **({"privacy": ledger.summary()} if (ledger := strategy.filter_of(PrivacyLedger)) else {}),
    }


def best_round(rounds: list[dict[str, Any]], last: list[float], score: Score = ACCURACY) -> dict[str, Any] | None:
    """After how many rounds the mean score of the tests was best, and what it was; of equals, the first.

    A line tests the models that the rounds before it have led to; ``last`` are the scores after all of them.
    """
    key = score.of("macro")
    tested = [(line["round"] - 1, line[key]) for line in rounds if line[key] is not None]
    if last and (mean := metrics.macro(last)) is not None:
        tested.append((rounds[-1]["round"] if rounds else 0, mean))
    if not tested:
        return None
    best = score.best(value for _, value in tested)
    return next({"round": round_, key: value} for round_, value in tested if value == best)


def _not_asked(fraction: float) -> str:
    """Why a device without a result or a failure has none."""
    if fraction == 1:
        return "It was not connected."
    return f"It was not connected, or not one of those that were asked (server.fraction_evaluate = {fraction:g})."


def _choice(evaluation: Mapping[str, Mapping[str, float]], score: Score) -> dict[str, Any]:
    """Of devices that do not serve the method's own models: what each serves, and the score that those would have had.

    The summary's other scores are then those of what is served.
    """
    served = {client: choice for client, values in evaluation.items() if (choice := model_selection.served(values))}
    if not served:
        return {}
    mixed = {client: choice["mixed"] for client, choice in served.items() if "mixed" in choice}
    left_out = [client for client, choice in served.items() if "alone_left_out" in choice]
    return {
        "kept_by_client": {client: choice["kept"] for client, choice in served.items()},
        **({"mixed_by_client": mixed, "alone_left_out_by": left_out} if mixed else {}),
        score.of("method_macro"): _mean(list(evaluation.values()), score.of_method),
    }


def _beside(evaluation: Mapping[str, Mapping[str, float]], score: Score) -> dict[str, Any]:
    """Of devices that compare, what each has beside what it would have alone; and the means over them."""
    devices = {
        client: beside
        for client, values in evaluation.items()
        if (beside := of_device(values, score, values.get(protocol.NUM_EXAMPLES, 0)))
    }
    if not devices:
        return {}
    names = {"in_use_macro": OWN, "alone_macro": ALONE, "received_macro": RECEIVED}
    means = {score.of(key): _mean(list(devices.values()), name) for key, name in names.items()}
    return {**means, "beside_by_client": devices}


def agreement(assignment: Mapping[str, int], groups: Mapping[str, int]) -> dict[str, float | None]:
    """Purity and adjusted Rand index over the clients whose true group is known; None where none is."""
    known = sorted(client for client in assignment if client in groups)
    if not known:
        return {"purity": None, "ari": None}
    true = np.array([groups[client] for client in known])
    clusters: NDArray[np.int64] = np.array([assignment[client] for client in known])
    return {"purity": metrics.purity(true, clusters), "ari": metrics.adjusted_rand_index(true, clusters)}


def _mean(reported: list[Any], name: str, weights: list[Any] | None = None) -> float | None:
    """Mean of a metric over the clients that reported it, weighted or plain; None where none did."""
    chosen = [i for i, m in enumerate(reported) if name in m]
    values = [float(reported[i][name]) for i in chosen]
    if weights is None:
        return metrics.macro(values)
    return metrics.micro(values, [float(weights[i]) for i in chosen])
