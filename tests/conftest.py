"""Shared fixtures: a tiny model, and scripted clients on an in-memory grid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from bouquet.common import protocol
from bouquet.common.data.datasets import DATA_DIR_VARIABLE
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.system import ports
from bouquet.experiments.simulation.inline_grid import Handler, InlineGrid, scripted_client
from bouquet.strategies.base.exchange import exchange
from tests.helpers.made_runs import edit_round as edit_round
from tests.helpers.made_runs import write_run as write_run

# A shell starts background jobs with SIGINT ignored, which children inherit, and CI may be such a job.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests make their own data; a folder of the user's, as `make bench` takes it, would be read in its place.
os.environ.pop(DATA_DIR_VARIABLE, None)
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else ONNX Runtime asks a proxy that a test has set for its maker's server

# A port is drawn some seconds before somebody listens there: each process of tests has a range of its own for that,
# whose first port it holds.
_held = socket.socket()
for first in range(10_000, 20_000, 200):
    with contextlib.suppress(OSError):
        _held.bind(("127.0.0.1", first))
        ports.OWN_PORTS = range(first + 1, first + 200)
        break

# How long an example takes, or is made, says how busy the machine is; and a newcomer's tests are those of everybody.
# BOUQUET_FUZZ, which `make fuzz` sets, looks for what nobody has seen, in any test.
hypothesis_settings.register_profile(
    "any-load",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="BOUQUET_FUZZ" not in os.environ,
)
hypothesis_settings.load_profile("any-load")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes wait for each other, on a busy machine for long: nothing but a hang takes an hour."""
    for item in items:
        if item.get_closest_marker("federation"):
            item.add_marker(pytest.mark.timeout(3600))


TINY = {
    "first.weight": np.zeros((2, 2), dtype=np.float32),
    "first.bias": np.zeros(2, dtype=np.float32),
    "last.weight": np.zeros((1, 2), dtype=np.float32),
}


@pytest.fixture
def layout() -> ParameterLayout:
    """Two layers: ``first`` with six columns, ``last`` with two."""
    return ParameterLayout.of(TINY)


@pytest.fixture
def initial(layout: ParameterLayout) -> ArrayRecord:
    return protocol.to_record(layout, np.zeros(layout.dim, dtype=np.float32))


Trainer = Callable[[np.ndarray, protocol.Received], np.ndarray]


@pytest.fixture
def scripted(layout: ParameterLayout) -> Callable[..., Handler]:
    """A client that answers with ``train(received vector)``; it says who it is, and keeps its messages in ``seen``."""

    def make(
        name: str,
        train: Trainer,
        metrics: Mapping[str, float] | None = None,
        seen: list[protocol.Received] | None = None,
    ) -> Handler:
        return scripted_client(name, layout, train, metrics, seen)

    return make


@pytest.fixture
def play(initial: ArrayRecord) -> Callable[..., None]:
    """Drive a strategy for some rounds on a grid, as the server's loop does."""

    def run(strategy: Any, grid: InlineGrid, rounds: range, arrays: ArrayRecord = initial) -> None:
        for round_ in rounds:
            messages = list(strategy.configure_train(round_, arrays, ConfigRecord(), grid))
            replies, silent = exchange(grid, messages, strategy.round_patience)
            strategy.give_up(silent)
            strategy.aggregate_train(round_, replies)

    return run
