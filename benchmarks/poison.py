"""A fifth of the clients send bad updates: the accuracy of the honest ones, without and with each protection.

    python benchmarks/poison.py --seeds 3 --out DIR

Rotated digits, four groups, one bad client in each group of five. ``sign`` sends the update with its sign flipped,
``hundredfold`` a hundred times itself, ``labels`` trains honestly on flipped labels. The figure is the mean over the
honest clients of the test accuracy of the model that each is sent in the end (its own, where the method has one).
Restartable: what DIR holds is not run again, and a run that was cut short is begun anew.
"""

import argparse
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")

from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict

from bouquet.client import context as device_context
from bouquet.client.app import make_client_app
from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol.records import records_of
from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation import run as simulation
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.app import make_server_app

ATTACKS = ("none", "sign", "hundredfold", "labels")
PROTECTIONS = {
    "none": {},
    "limit_norm = 2": {"protection.limit_norm": 2.0},
    "median": {"protection.aggregation": "median"},
    "trimmed-mean": {"protection.aggregation": "trimmed-mean"},
    "krum": {"protection.aggregation": "krum"},
    "limit_norm = 2, median": {"protection.limit_norm": 2.0, "protection.aggregation": "median"},
}
STRATEGIES = ("fedavg", "fesem", "dc-pfl")
CLIENTS, GROUPS = 20, 4


def settings(strategy, protection, seed, rounds):
    values = {
        "strategy.name": strategy,
        "data.partition": "rotated",
        "data.clients": CLIENTS,
        "data.groups": GROUPS,
        "train.learning_rate": 0.05,
        "run.rounds": rounds,
        "run.seed": seed,
        "simulation.engine": "inline",
        **PROTECTIONS[protection],
    }
    if strategy == "fesem":
        values["strategy.num_clusters"] = GROUPS
    return parse_settings({}, values)


def bad_parts():
    """One client of each group: rotated groups go round, so these are the last of each."""
    return set(range(CLIENTS - GROUPS, CLIENTS))


def run(strategy, attack, protection, seed, rounds, folder):
    own = settings(strategy, protection, seed, rounds)
    layout, _ = state_vector(initial_model(own))
    app = make_client_app(own, folder / "devices")
    bad = bad_parts() if attack != "none" else set()

    def handler(part):
        config = {"partition-id": part, "num-partitions": CLIENTS}
        context = Context(1, simulation.FIRST_NODE + part, config, RecordDict(), {})

        def handle(message):
            reply = app(message, context)
            if part in bad and attack in ("sign", "hundredfold") and message.metadata.message_type == MessageType.TRAIN:
                return changed(message, reply, layout, -1.0 if attack == "sign" else 100.0)
            return reply

        return handle

    server = make_server_app(own, folder / "run")
    handlers = {simulation.FIRST_NODE + part: handler(part) for part in range(CLIENTS)}
    with flipped_labels(bad if attack == "labels" else set()):
        server(InlineGrid(handlers), Context(1, 1, {}, RecordDict(), {}))
    summary = json.loads((folder / "run" / "summary.json").read_text())
    honest = [a for client, a in summary["accuracy_by_client"].items() if int(client.rpartition("-")[2]) not in bad]
    return float(np.mean(honest))


def changed(message, reply, layout, factor):
    """The reply with its update multiplied."""
    sent = records_of(message.content, ArrayRecord).get(protocol.ARRAYS)
    up = records_of(reply.content, ArrayRecord).get(protocol.ARRAYS) if reply.has_content() else None
    if sent is None or up is None:
        return reply
    before, after = protocol.from_record(sent), protocol.from_record(up)
    common = [name for name in after if name in before]
    arrays = {n: (before[n] + factor * (after[n] - before[n])).astype(after[n].dtype) for n in common}
    content = reply.content
    layers = sorted({spec.layer for spec in layout.tensors if spec.name in arrays})
    vector = layout.flatten({**layout.unflatten(np.zeros(layout.dim, np.float32)), **arrays})
    content[protocol.ARRAYS] = protocol.to_record(layout, vector, layers)
    return Message(content, reply_to=message)


class flipped_labels:
    """While it lasts, the bad clients' training labels are y → 9 − y."""

    def __init__(self, parts):
        self.parts, self.original = parts, device_context._part

    def __enter__(self):
        def part(given, partition_id, count):
            data = self.original(given, partition_id, count)
            bad = partition_id in self.parts
            return replace(data, train_y=data.num_classes - 1 - data.train_y) if bad else data

        device_context._part = part

    def __exit__(self, *_):
        device_context._part = self.original


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in range(given.seeds):  # seed by seed, so that a run cut short has whole tables of the first ones
        for strategy in STRATEGIES:
            for protection in PROTECTIONS:
                for attack in ATTACKS:
                    once(given.out, strategy, attack, protection, seed, given.rounds)
    for strategy in STRATEGIES:
        print(f"\n| {strategy} | " + " | ".join(ATTACKS) + " |\n| --- |" + " --- |" * len(ATTACKS))
        for protection in PROTECTIONS:
            cells = []
            for attack in ATTACKS:
                found = [once(given.out, strategy, attack, protection, s, given.rounds) for s in range(given.seeds)]
                spread = f" ± {np.std(found, ddof=1):.3f}" if len(found) > 1 else ""
                cells.append(f"{np.mean(found):.3f}{spread}")
            print(f"| {protection} | " + " | ".join(cells) + " |")


def once(out, strategy, attack, protection, seed, rounds):
    """The figure of one run, from its folder if it was there before."""
    folder = out / f"{strategy}-{attack}-{protection}-{seed}".replace(" ", "")
    done = folder / "honest.json"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        accuracy = run(strategy, attack, protection, seed, rounds, folder)
        done.write_text(json.dumps(accuracy))
        print(f"{strategy}, {attack}, {protection}, seed {seed}: {accuracy:.3f}", flush=True)
    return float(json.loads(done.read_text()))


if __name__ == "__main__":
    main()
