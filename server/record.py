"""The record of a run: what the server writes into ``runs/NAME`` while it trains.

``settings.json``, ``rounds.jsonl`` (one line a round, written when the round is over), ``summary.json``,
``similarity.json`` where the method has one, ``models/`` with a safetensors file per cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray
from safetensors.numpy import save

from common import choosing, metrics, protocol
from common.continuing import check_continues
from common.errors import BouquetError
from common.files import make_folder, sweep, write_atomically, write_json
from common.incoming import read_classes
from common.layout import ParameterLayout, contiguous
from common.payload import payload_bytes, unpacked_bytes
from common.settings import Settings
from server import run_folder
from server.diagnosis import all_warnings
from server.run_folder import CHECKPOINTS, MODELS, ROUNDS, SETTINGS, SIMILARITY, SUMMARY, holds_run
from strategies.clustered import ClusteredStrategy


class Bytes:
    """Payload bytes of messages, summed by direction, layer and client."""

    def __init__(self, layout: ParameterLayout | None = None) -> None:
        self.layout = layout
        self.up = self.down = 0
        self.up_plain = self.down_plain = 0  # what they would have been without compression
        self.by_layer: dict[str, dict[str, int]] = {"up": {}, "down": {}}
        self.by_client: dict[str, list[int]] = {}
        self._known = frozenset(layout.layers if layout else ())

    def count(self, messages: Iterable[Message], names: Mapping[int, str]) -> None:
        """Add messages; one that goes to a node counts as down, one that comes from a node as up."""
        for message in messages:
            if not message.has_content():
                continue
            total, by_layer = payload_bytes(message.content, self.layout)
            plain = unpacked_bytes(message.content, self.layout, total)
            upwards = message.metadata.reply_to_message_id != ""
            node = message.metadata.src_node_id if upwards else message.metadata.dst_node_id
            client = self.by_client.setdefault(names.get(node, f"node-{node}"), [0, 0])
            client[0 if upwards else 1] += total
            layers = self.by_layer["up" if upwards else "down"]
            for layer, count in by_layer.items():
                if not upwards or layer in self._known:  # what a device calls something else is in the sums alone
                    layers[layer] = layers.get(layer, 0) + count
            if upwards:
                self.up += total
                self.up_plain += plain
            else:
                self.down += total
                self.down_plain += plain


def holds_rounds(folder: Path) -> bool:
    """Whether a run in this folder has a result, be it that of one round.

    One that ended in its first round has nothing that could be lost, and may be begun anew, with other settings.
    """
    begun = RunRecord(folder)
    finished = bool(begun.rounds()) or (folder / SUMMARY).exists() or any(begun.checkpoints.glob("*"))
    return holds_run(folder) and finished


def check_new(folder: Path) -> None:
    """Raise `BouquetError` when the folder holds a run with a result (`holds_rounds`)."""
    if holds_rounds(folder):
        raise BouquetError(
            f"The run folder {folder} holds a run already: give another --out, remove it, or go on with --resume."
        )


class RunRecord:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.folder / CHECKPOINTS

    def create(self, settings: Settings) -> None:
        """Make the folder for a new run; one that holds a run is never overwritten (`check_new`)."""
        check_new(self.folder)
        for name in run_folder.OF_A_FALSE_START:
            (self.folder / name).unlink(missing_ok=True)
        self._make(settings)

    def check_continues(self, settings: Settings) -> None:
        """Raise `BouquetError` where the run in this folder cannot go on with these settings."""
        if old := self.settings():
            check_continues(old, settings.model_dump(mode="json"), str(self.folder))

    def reopen(self, settings: Settings, last_round: int) -> None:
        """Go on with a run: rounds after the checkpoint will be run again, so their lines go."""
        lines = self.rounds()
        self._make(settings)
        (self.folder / SUMMARY).unlink(missing_ok=True)
        kept = [json.dumps(line) for line in lines if line["round"] <= last_round]
        write_atomically(self.folder / ROUNDS, "".join(f"{line}\n" for line in kept).encode())

    def settings(self) -> dict[str, Any]:
        """The settings that the run was begun or last gone on with; empty where that cannot be read."""
        try:
            content = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def rounds(self) -> list[dict[str, Any]]:
        """The lines written so far; a last line that was cut off is passed over."""
        path = self.folder / ROUNDS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rounds = []
        for line in lines:
            try:
                rounds.append(json.loads(line))
            except ValueError:
                break
        return rounds

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Append one line and sync it. Raises `BouquetError` where that cannot be done, on a full disk."""
        path = self.folder / ROUNDS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BouquetError(f"{path} cannot be written: {error.strerror}.") from None

    def finish(
        self,
        summary: Mapping[str, Any],
        strategy: ClusteredStrategy[Any],
        frozen: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        """Write the models, the similarity and, last of all, the summary: a run without one did not end.

        ``frozen`` are the tensors that all models share and the strategy knows nothing of.
        """
        self._write_models(strategy, frozen)
        if (similarity := strategy.client_similarity(strategy.state, strategy.replies)) is not None:
            kind, clients, matrix = similarity
            rounded = [[round(float(value), 6) for value in row] for row in matrix]
            write_json(self.folder / SIMILARITY, {"kind": kind, "clients": list(clients), "matrix": rounded})
        write_json(self.folder / SUMMARY, dict(summary))

    def _make(self, settings: Settings) -> None:
        make_folder(self.folder, "the run folder")
        for folder in (self.folder, self.checkpoints, self.folder / MODELS):
            sweep(folder)
        write_json(self.folder / SETTINGS, settings.model_dump(mode="json"))

    def _write_models(self, strategy: ClusteredStrategy[Any], frozen: Mapping[str, NDArray[Any]]) -> None:
        assert strategy.state is not None
        assert strategy.layout is not None
        folder = self.folder / MODELS
        folder.mkdir(exist_ok=True)
        layout = strategy.layout
        assignment = strategy.assignment(strategy.state)
        for cluster, center in enumerate(strategy.centers(strategy.state)):
            members = sorted(client for client, k in assignment.items() if k == cluster)
            metadata = {"clients": json.dumps(members), "layout": json.dumps(layout.to_json())}
            arrays = {name: contiguous(a) for name, a in {**frozen, **layout.unflatten(center)}.items()}
            write_atomically(folder / f"cluster-{cluster}.safetensors", save(arrays, metadata))


def round_line(
    round_: int, strategy: ClusteredStrategy[Any], groups: Mapping[str, int], traffic: Bytes, seconds: float
) -> dict[str, Any]:
    """One line of ``rounds.jsonl``.

    ``accuracy_*`` is the test accuracy of the models that the devices started the round from, which is the outcome of
    the round before; ``accuracy_trained_*`` that of each device's own model after its local training.
    """
    assert strategy.state is not None
    assignment = strategy.assignment(strategy.state)
    replies = strategy.replies
    reported = [reply.metrics for reply in replies.received] if replies else []
    examples = [m.get(protocol.NUM_EXAMPLES, 0) for m in reported]
    tested = [m.get(protocol.TEST_EXAMPLES, 0) for m in reported]
    return {
        "round": round_,
        "replies": len(reported),
        "failures": len(strategy.failures),
        "failed": dict(sorted(strategy.failures.items())),
        "limited": dict(sorted(strategy.limited.items())),
        "late": dict(sorted(strategy.came_late.items())),
        **({"epsilon": strategy.privacy.by_client()} if strategy.privacy else {}),
        "clusters": len(set(assignment.values())) or 1,
        **agreement(assignment, groups),
        "warnings": list(strategy.warnings),
        "loss": _mean(reported, protocol.LOSS, examples),
        "train_loss": _mean(reported, protocol.TRAIN_LOSS, examples),
        "accuracy_micro": _mean(reported, protocol.ACCURACY, tested),
        "accuracy_macro": _mean(reported, protocol.ACCURACY),
        "accuracy_trained_micro": _mean(reported, protocol.ACCURACY_TRAINED, tested),
        "accuracy_trained_macro": _mean(reported, protocol.ACCURACY_TRAINED),
        "bytes_up": traffic.up,
        "bytes_down": traffic.down,
        "bytes_up_plain": traffic.up_plain,
        "bytes_down_plain": traffic.down_plain,
        "bytes_by_layer": traffic.by_layer,
        "bytes_by_client": dict(sorted(traffic.by_client.items())),
        "seconds": round(seconds, 3),
        "tested": int(sum(tested)),
        "assignment": dict(sorted(assignment.items())),
        "by_client": {r.client: _shown(r.metrics, r.config) for r in replies.received} if replies else {},
        "strategy": strategy.record(strategy.state),
    }


def _shown(reported: Mapping[str, float], said: Mapping[str, Any]) -> dict[str, Any]:
    """A device's own numbers of a round, under the names of the record; what it kept, where it chooses."""
    named = {
        "samples": protocol.NUM_EXAMPLES,
        "tested": protocol.TEST_EXAMPLES,
        "loss": protocol.LOSS,
        "accuracy": protocol.ACCURACY,
        "accuracy_trained": protocol.ACCURACY_TRAINED,
        "left_out": protocol.LEFT_OUT,
        "accuracy_kept": choosing.ACCURACY_CHOSEN,
    }
    shown: dict[str, Any] = {n: round(float(reported[key]), 6) for n, key in named.items() if key in reported}
    if reported.get(protocol.STATE_LOST):
        shown["state_lost"] = 1
    if classes := read_classes(said):
        shown["classes"] = classes
    return shown | ({"kept": kept} if (kept := _kept(reported)) else {})


def _kept(reported: Mapping[str, float]) -> str | None:
    """Which model a device that chooses has kept."""
    place = reported.get(choosing.CHOSEN)
    return choosing.NAMES[int(place)] if place is not None and 0 <= place < len(choosing.NAMES) else None


def summarise(
    settings: Settings,
    strategy: ClusteredStrategy[Any],
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
    evaluation = dict(sorted(strategy.evaluation.items()))
    tested = [m.get(protocol.NUM_EXAMPLES, 0) for m in evaluation.values()]
    accuracies = [m[protocol.ACCURACY] for m in evaluation.values() if protocol.ACCURACY in m]
    reported = list(evaluation.values())
    return {
        "strategy": settings.strategy.name,
        "dataset": settings.data.dataset,
        "partition": settings.data.partition,
        "model": settings.model.name,
        "clients": len(evaluation),
        "rounds": len(rounds),
        "seed": settings.run.seed,
        "accuracy_micro": _mean(reported, protocol.ACCURACY, tested),
        "accuracy_macro": _mean(reported, protocol.ACCURACY),
        "f1_micro": _mean(reported, protocol.F1, tested),
        "f1_macro": _mean(reported, protocol.F1),
        "accuracy_worst_decile": metrics.worst_decile(accuracies),
        "accuracy_deviation": metrics.deviation(accuracies),
        "clusters": len(set(assignment.values())) or 1,
        "assignment": dict(sorted(assignment.items())),
        "groups": dict(sorted(groups.items())) or None,
        **agreement(assignment, groups),
        "accuracy_by_client": {c: m[protocol.ACCURACY] for c, m in evaluation.items() if protocol.ACCURACY in m},
        **_choice(evaluation),
        "not_evaluated": {
            client: failed.get(client) or _not_asked(settings.server.fraction_evaluate)
            for client in sorted({*assignment, *failed} - set(evaluation))
        },
        "warnings": all_warnings(rounds),
        "bytes_up": sum(line["bytes_up"] for line in rounds) + final_traffic.up,
        "bytes_down": sum(line["bytes_down"] for line in rounds) + final_traffic.down,
        "bytes_up_plain": sum(line["bytes_up_plain"] for line in rounds) + final_traffic.up_plain,
        "bytes_down_plain": sum(line["bytes_down_plain"] for line in rounds) + final_traffic.down_plain,
        "seconds": round(seconds, 3),
        "strategy_record": strategy.record(strategy.state),
        **({"privacy": strategy.privacy.summary()} if strategy.privacy else {}),
    }


def _not_asked(fraction: float) -> str:
    """Why a device without a result or a failure has none."""
    if fraction == 1:
        return "It was not connected."
    return f"It was not connected, or not one of those that were asked (server.fraction_evaluate = {fraction:g})."


def _choice(evaluation: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Of devices that choose, what each kept, and the accuracy that the method's own models would have had.

    The summary's other accuracies are then those of what was kept.
    """
    kept = {client: kind for client, values in evaluation.items() if (kind := _kept(values))}
    if not kept:
        return {}
    return {
        "kept_by_client": kept,
        "accuracy_method_macro": _mean(list(evaluation.values()), choosing.ACCURACY_METHOD),
    }


def agreement(assignment: Mapping[str, int], groups: Mapping[str, int]) -> dict[str, float | None]:
    """Purity and adjusted Rand index over the clients whose true group is known; None where none is."""
    known = sorted(client for client in assignment if client in groups)
    if not known:
        return {"purity": None, "ari": None}
    true = np.array([groups[client] for client in known])
    found: NDArray[np.int64] = np.array([assignment[client] for client in known])
    return {"purity": metrics.purity(true, found), "ari": metrics.adjusted_rand_index(true, found)}


def _mean(reported: list[Any], name: str, weights: list[Any] | None = None) -> float | None:
    """Mean of a metric over the clients that reported it, weighted or plain; None where none did."""
    chosen = [i for i, m in enumerate(reported) if name in m]
    values = [float(reported[i][name]) for i in chosen]
    if weights is None:
        return metrics.macro(values)
    return metrics.micro(values, [float(weights[i]) for i in chosen])
