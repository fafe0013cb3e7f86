"""Replies to the joint gradient and loss method, and scripted devices that answer it, of models of two numbers."""

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply
from bouquet.common.protocol.error_replies import refusal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.state import GradientLossState
from bouquet.strategies.gradient_loss.strategy import GradientLoss
from bouquet.strategies.gradient_loss.wire import Choice, center_record

POINT = ParameterLayout.of({"w.weight": np.zeros((1, 2), dtype=np.float32)})
CENTERS = np.array([[0, 0], [10, 10]], dtype=np.float32)


def replies(answers):
    """``{"a": (row, chosen)}`` or ``(row, chosen, further metrics)`` as usable replies."""
    received = []
    for node, (client, (row, chosen, *more)) in enumerate(sorted(answers.items())):
        metrics = {choice.CHOSEN: chosen, choice.TRAINED: chosen, **(more[0] if more else {})}
        vector = np.asarray(row, dtype=np.float32)
        received.append(ClientReply(client, node, vector, POINT.layers, 10, metrics, {}))
    return Replies(POINT, tuple(received))


def begin(strategy, centers=CENTERS):
    return GradientLossState(np.array(centers, dtype=np.float32))


def asked(instruction):
    return {k.removeprefix("center-") for k in instruction.models if k.startswith("center")}


def steps(instruction):
    return {k: p.vector.tolist() for k, p in instruction.models.items() if k.startswith("step")}


GOALS = {"a": (0.0, 0.0), "b": (0.0, 0.0), "c": (8.0, 8.0), "d": (8.0, 8.0)}


def node(name, seen, broken=(), goals=GOALS):
    """A device that chooses the center nearest to its goal and moves half way to it."""

    def handle(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, name, {})
        received = protocol.read_instruction(message, POINT)
        question = Choice.read(received)
        seen.append((received.round, name, received))
        if received.round in broken:
            return refusal(message, "broken")
        goal = np.array(goals[name], dtype=np.float32)
        sent = {k: received.models[center_record(k)].vector for k in range(question.num_clusters)}
        chosen = min(sent, key=lambda k: float(np.abs(sent[k] - goal).sum()))
        trained = chosen if question.told is None else question.told
        metrics = {
            protocol.NUM_EXAMPLES: 10,
            choice.CHOSEN: chosen,
            choice.TRAINED: trained,
            choice.TOLD: int(question.told is not None),
        }
        return protocol.reply(message, name, metrics, protocol.to_record(POINT, (sent[trained] + goal) / 2))

    return handle


def grid(seen, broken=None, names="abcd", goals=GOALS):
    return InlineGrid(
        {i: node(name, seen, (broken or {}).get(name, ()), goals) for i, name in enumerate(names, start=1)}
    )


def fresh(**options):
    return GradientLoss(num_clusters=2, seed=1, identify=True, **options)


POINTS = protocol.to_record(POINT, np.array([1, 9], dtype=np.float32))
