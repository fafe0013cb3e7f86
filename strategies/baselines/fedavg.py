"""Flower's own FedAvg behind the same checks, record and checkpoint as every other strategy.

McMahan, Moore, Ramage, Hampson, y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017. https://arxiv.org/abs/1602.05629 The aggregation is Flower's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

from common import protocol
from common.layout import ParameterLayout, Vector
from common.protocol import Instruction
from strategies.clustered import ClusteredStrategy
from strategies.method import one_model
from strategies.replies import Matrix, Replies
from strategies.sampling import Sampling

VALUES_AT_ONCE = 2**22  # of all clients


@dataclass(frozen=True)
class GlobalState:
    """One model for all."""

    centers: Matrix  # (1, d)
    clients: list[str]


class FedAvg(ClusteredStrategy[GlobalState]):
    """Flower's `FedAvg`: one model, the mean of the clients' weighted by their number of samples."""

    state_class = GlobalState
    takes_late_replies = True

    def __init__(self, **sampling: Unpack[Sampling]) -> None:
        super().__init__(**sampling)
        self.inner: flower.FedAvg = flower.FedAvg(weighted_by_key=self.weighted_by_key)

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> GlobalState:
        """The initial model."""
        return GlobalState(initial[None, :].copy(), [])

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model to everybody."""
        return {client: one_model(state.centers[0]) for client in clients}

    def update(self, state: GlobalState, round_: int, replies: Replies) -> GlobalState:
        """Flower's aggregation of the replies that passed the checks; another one where a server asks for it."""
        clients = sorted({*state.clients, *replies.clients})
        if self.aggregation.rule != "mean":
            return GlobalState(self.aggregation.cluster_means(replies.W, [0] * len(replies), 1), clients)
        arrays: dict[str, NDArray[Any]] = {}
        for layers in _portions(replies):
            aggregated, _ = self.inner.aggregate_train(round_, _as_messages(replies, layers))
            assert aggregated is not None  # Flower returns None only where there is no reply
            arrays |= protocol.from_record(aggregated)
        return GlobalState(replies.layout.flatten(arrays)[None, :], clients)

    def centers(self, state: GlobalState) -> Matrix:
        """The global model, (1, d)."""
        return state.centers

    def assignment(self, state: GlobalState) -> dict[str, int]:
        """Everybody is in the one cluster."""
        return dict.fromkeys(state.clients, 0)


def _portions(replies: Replies) -> Iterator[list[str]]:
    """The layers, as many at a time as Flower is given: as messages, they are in memory once more."""
    portion: list[str] = []
    values = 0
    for layer in replies.layout.layers:
        more = len(replies) * len(replies.layout.layer_columns[layer])
        if portion and values + more > VALUES_AT_ONCE:
            yield portion
            portion, values = [], 0
        portion.append(layer)
        values += more
    yield portion


def _as_messages(replies: Replies, layers: Sequence[str]) -> Iterable[Message]:
    """Layers of the checked replies as Flower expects them: one ArrayRecord and one MetricRecord each."""
    return [
        Message(
            RecordDict(
                {
                    protocol.ARRAYS: protocol.to_record(replies.layout, reply.vector, layers),
                    protocol.METRICS: MetricRecord({protocol.NUM_EXAMPLES: reply.num_examples}),
                }
            ),
            dst_node_id=0,
            message_type="train",
        )
        for reply in replies.received
    ]
