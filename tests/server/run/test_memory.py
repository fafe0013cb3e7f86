"""A round's replies are taken in as they arrive: the server holds the models once, and little beside."""

import tracemalloc

import numpy as np
import pytest

from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds

CLIENTS = 60


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fesem"])
def test_the_replies_of_a_round_are_not_held_twice(strategy, tmp_path):
    changes = [f"strategy.name={strategy}", "run.rounds=2", f"data.clients={CLIENTS}", f"model.hidden={[125] * 10}"]
    settings = load_settings(None, [*changes, *(["strategy.num_clusters=1"] if strategy == "fesem" else [])])
    layout, start = state_vector(initial_model(settings))
    handlers = {
        node: scripted_client(f"client-{node:02d}", layout, lambda start, _, node=node: start + np.float32(node))
        for node in range(2, 2 + CLIENTS)
    }
    initial = protocol.to_record(layout, start)
    lines = []

    def second_round(line):
        if not lines:
            tracemalloc.start()
        lines.append((line["replies"], tracemalloc.get_traced_memory()[1]))

    try:
        run_rounds(InlineGrid(handlers), settings, initial, RunRecord(tmp_path / "run"), follow=second_round)
    finally:
        tracemalloc.stop()
    replies, peak = lines[1]
    assert replies == CLIENTS
    assert peak < 1.5 * CLIENTS * layout.dim * 4  # small models: a few copies of one, and Flower's share, weigh more
