"""Flower's own FedAvg behind the same checks, record and checkpoint as every other strategy.

McMahan, Moore, Ramage, Hampson, y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017. https://arxiv.org/abs/1602.05629 The aggregation is Flower's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.common.protocol.tensors import HeldArray, record_of
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy


@dataclass(frozen=True)
class GlobalState:
    """One model for all."""

    centers: Matrix  # (1, d)
    clients: list[str]

    @property
    def assignment(self) -> dict[str, int]:
        """Everybody is in the one cluster."""
        return dict.fromkeys(self.clients, 0)


class FedAvg(MethodStrategy[GlobalState]):
    """Flower's `FedAvg`: one model, the mean of the clients' weighted by their number of samples."""

    state_class = GlobalState
    takes_late_replies = True

    def __post_init__(self) -> None:
        super().__post_init__()
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
            return GlobalState(self.aggregation.center(replies.W), clients)
        messages = _as_messages(replies, self.aggregation.weights(replies.num_examples).tolist())
        aggregated, _ = self.inner.aggregate_train(round_, messages)
        assert aggregated is not None  # Flower returns None only where there is no reply
        for message in messages:
            # Flower's views of it refer to themselves: until Python looks for such, they would keep the replies.
            message.content[protocol.ARRAYS].clear()
        return GlobalState(aggregated[protocol.ARRAYS].numpy()[None, :], clients)


def _as_messages(replies: Replies, weights: Sequence[int]) -> list[Message]:
    """The checked replies as Flower expects them, with these weights: one ArrayRecord and one MetricRecord each.

    A model is one array, the reply's own, not a copy of it: a mean is of each number by itself.
    """
    return [
        Message(
            RecordDict(
                {
                    protocol.ARRAYS: record_of({protocol.ARRAYS: HeldArray(reply.vector)}),
                    protocol.METRICS: MetricRecord({protocol.NUM_EXAMPLES: weight}),
                }
            ),
            dst_node_id=0,
            message_type="train",
        )
        for reply, weight in zip(replies.received, weights, strict=True)
    ]
