"""A device that is new, or whose data have changed, says which cluster's model fits it, before it trains.

It is sent the models of all clusters once, and takes the one with the least loss on its training data, as in IFCA. So a
newcomer has its cluster, and a model that fits, before its first training. Where clusters are told by the models that
devices send, a device whose data changed would stay where it was: what it makes of its old center is nearest to that.

That data changed, as where a camera was turned, is told by the loss of the model that the device is sent: it does not
get worse from round to round on data that stay as they were. In 5,000 rounds of devices on digits it was never more
than 1.05 times the largest of the three before. Where a device took another group's data it was 1.8 to 6 times that,
and 1.1 to 1.4 times where the model had learned next to nothing. To tell it too often costs little: K models, and that
device's model for a round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.compression.delta import MOST_MODELS
from bouquet.common.metrics import written
from bouquet.common.protocol import LOSS, ClientReply, Instruction, Payload
from bouquet.common.protocol.names import CENTER, CHOOSE
from bouquet.strategies.base.filters.filter import Filter

Matrix = NDArray[np.float32]

JUMP, LEAST, REMEMBERED = 1.25, 0.05, 3  # LEAST: where next to nothing is left to learn, a loss flickers


class Placing(Filter):
    """The last losses by client; who has ``jumped`` in this round, from which loss to which.

    ``changed`` are those that have, and were not asked for their cluster since.
    """

    key = "_placing"

    def __init__(self) -> None:
        self.losses: dict[str, list[float]] = {}
        self.jumped: dict[str, tuple[float, float]] = {}
        self.changed: set[str] = set()

    def begin(self, round_: int) -> None:
        """Nobody has jumped yet."""
        self.jumped = {}

    def incoming(self, reply: ClientReply) -> ClientReply:
        """Compare its loss with those before, which count no more where it jumped."""
        if (loss := reply.metrics.get(LOSS)) is not None:
            before = self.losses.get(reply.client, [])
            if before and loss > JUMP * max(before) + LEAST:
                self.jumped[reply.client] = (before[-1], loss)
                self.changed.add(reply.client)
            self.losses[reply.client] = [] if reply.client in self.jumped else [*before[1 - REMEMBERED :], loss]
        return reply

    def questions(self, clients: Sequence[str], placed: Collection[str], centers: Matrix) -> dict[str, Instruction]:
        """What those of the clients are sent that are not ``placed``, or have changed."""
        new = [client for client in clients if client not in placed or client in self.changed]
        if not new or not _are_several(centers):
            return {}
        self.changed -= {*new}
        models = {f"{CENTER}{k}": Payload(center) for k, center in enumerate(centers)}
        return dict.fromkeys(new, Instruction(models, procedure=CHOOSE, upload=()))

    def judge(self, clients: Sequence[str], centers: Matrix) -> tuple[list[bool], str]:
        """Whose models count in this round: with several centers not those of who has jumped; and who has, in words."""
        jumped = {client: self.jumped[client] for client in clients if client in self.jumped}
        if not jumped:
            return [True] * len(clients), ""
        named = ", ".join(f"{client} ({written(old)} → {written(new)})" for client, (old, new) in jumped.items())
        said = f"The loss of the model that they are sent jumped on {named}: have their data changed?"
        if not _are_several(centers):  # one model may swing between kinds of devices: their data are then as before
            self.losses |= {client: [loss] for client, (_, loss) in jumped.items()}
            return [True] * len(clients), said
        said += " They do not count in this round, and choose their clusters anew."
        return [client not in jumped for client in clients], said

    def dump(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For a checkpoint: no arrays."""
        return {}, {"losses": dict(sorted(self.losses.items())), "changed": sorted(self.changed)}

    def load(self, arrays: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Continue from what `dump` gave."""
        self.losses, self.changed = {client: list(own) for client, own in rest["losses"].items()}, set(rest["changed"])


def _are_several(centers: Matrix) -> bool:
    return 1 < len(centers) <= MOST_MODELS
