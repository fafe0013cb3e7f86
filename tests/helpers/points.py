"""Clients whose models are points in the plane, for updates that are checked by hand."""

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply
from bouquet.strategies.base.replies import Replies

POINT = ParameterLayout.of({"w.weight": np.zeros((1, 2), dtype=np.float32)})
FOUR = {"a": (0, 0), "b": (0, 2), "c": (10, 0), "d": (10, 2)}


def replies(rows, examples=None, layout=POINT, plan=None, **metrics):
    """Client → its model; metrics are client → value, of those that report them."""
    received = [
        ClientReply(
            client=name,
            node=i,
            vector=np.asarray(row, dtype=np.float32),
            layers=layout.layers,
            num_examples=(examples or {}).get(name, 10),
            metrics={key: values[name] for key, values in metrics.items() if name in values},
            config={},
        )
        for i, (name, row) in enumerate(sorted(rows.items()))
    ]
    return Replies(layout, tuple(received), plan or {})


def begin(strategy, start=(0, 0)):
    """The state before the first round, in which all stand at ``start``."""
    strategy.layout = POINT
    return strategy.initial_state(POINT, np.asarray(start, dtype=np.float32))


def half_way(strategy, state, round_, goals, clients=None, examples=None):
    """The replies of clients that each move from what they are sent half of the way to a goal of their own."""
    plan = strategy.plan(state, round_, sorted(goals if clients is None else clients))
    sent = {client: asked.models[ARRAYS].vector for client, asked in plan.items()}
    rows = {client: w + (np.asarray(goals[client], dtype=np.float32) - w) / 2 for client, w in sent.items()}
    return replies(rows, examples, plan=plan)


def go(strategy, state, rounds, goals, **more):
    """The state after some rounds of `half_way`."""
    for round_ in rounds:
        state = strategy.update(state, round_, half_way(strategy, state, round_, goals, **more))
    return state
