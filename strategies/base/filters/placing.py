"""A device that is new, or whose data have changed, says which cluster's model fits it, before it trains.

It is sent the models of all clusters once, and takes the one with the least loss on its training data, as in IFCA. So a
newcomer has its cluster, and a model that fits, before its first training. Where clusters are told by the models that
devices send, a device whose data changed would stay where it was: what it makes of its old center is nearest to that.

That data changed, as where a camera was turned, is told by the loss of the model that the device is sent: it does not
get worse from round to round on data that stay as they were. In 5,000 rounds of devices on digits it was never more
than 1.05 times the largest of the three before. Where a device took another group's data it was 1.8 to 6 times that,
and 1.1 to 1.4 times where the model had learned next to nothing. To tell it too often costs little: K models, and that
device's model for a round. After a division, or where a device came to another cluster, its losses are of another
model: of a common one they were so large that no jump would be seen. Then its first one is compared with the last ones
of the others in its cluster, whose model it was sent, too.

Where the losses of several devices double in one round, the season has turned, or somebody moved all cameras of a hall.
Then those who did not train in that round are asked, too: of few in a round the last would be found out after weeks.
They are asked at most once in `REST` rounds, whatever devices say; and each device whose cluster is doubted at most
once in `AGAIN`: a doubt after that is of newer updates, and judged by models that have learned more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.compression.delta import MOST_MODELS
from bouquet.common.metrics import written
from bouquet.common.protocol import LOSS, ClientReply, Instruction, Payload
from bouquet.common.protocol.names import CENTER, CHOOSE
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction

Matrix = NDArray[np.float32]
Model = tuple[int, int]  # which center, of how many

JUMP, LEAST, REMEMBERED = 1.25, 0.05, 3  # LEAST: where next to nothing is left to learn, a loss flickers
DOUBLED, SEVERAL, SHARE = 2.0, 2, 0.25  # SHARE: of the devices whose last losses are known
REST, AGAIN = 10, 5


class Placing(Filter):
    """The last losses by client, beside which of how many clusters' models they are of.

    ``changed`` are those whose data have, and who were not asked since. ``beside`` are to be asked, too: who did not
    train when several changed, which all may be in ``rest`` rounds, and whose cluster was doubted, which ``doubted``
    were in so many. Who chose its cluster and did not train since begins ``anew``.
    """

    key = "_placing"

    def __init__(self) -> None:
        self.losses: dict[str, tuple[Model, list[float]]] = {}
        self.changed: set[str] = set()
        self.beside: set[str] = set()
        self.anew: set[str] = set()
        self.rest = 0
        self.doubted: dict[str, int] = {}

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """Who chose its cluster trains its model first: it has no model of its own, or one of other data."""
        if not message.is_train or message.client not in self.anew or message.instruction.procedure == CHOOSE:
            return message
        return replace(message, instruction=replace(message.instruction, start="received", newcomer=True))

    def incoming(self, reply: ClientReply) -> ClientReply:
        """A usable one: who sends a model has trained."""
        if reply.layers:
            self.anew.discard(reply.client)
        return reply

    def doubt(self, clients: Collection[str]) -> None:
        """Ask these as well, each at most once in `AGAIN` rounds."""
        self.doubted = {client: rounds - 1 for client, rounds in self.doubted.items() if rounds > 1}
        new = {*clients} - self.doubted.keys()
        self.beside |= new
        self.doubted |= dict.fromkeys(new, AGAIN)

    def questions(self, clients: Sequence[str], placed: Collection[str], centers: Matrix) -> dict[str, Instruction]:
        """What those of the clients are sent that are not ``placed``, have changed, or are to be asked ``beside``."""
        due = self.changed | self.beside
        new = [client for client in clients if client not in placed or client in due]
        if not new or not _are_several(centers):
            return {}
        self.changed -= {*new}
        self.beside -= {*new}
        for client in new:
            self.losses.pop(client, None)
        models = {f"{CENTER}{k}": Payload(center) for k, center in enumerate(centers)}
        return dict.fromkeys(new, Instruction(models, procedure=CHOOSE, upload=()))

    def judge(
        self, replies: Sequence[ClientReply], clusters: Mapping[str, int], centers: Matrix
    ) -> tuple[list[bool], str]:
        """Whose models count in this round: with several centers not those of who has jumped; and who has, in words.

        ``clusters`` are those of the clients whose models they were sent.
        """
        said = {one.client: loss for one in replies if (loss := one.metrics.get(LOSS)) is not None}
        models = {client: (clusters.get(client, 0), len(centers)) for client in said}
        before = {client: self._before(client, model) for client, model in models.items()}
        jumped = {c: loss for c, loss in said.items() if _jumps(loss, before[c], JUMP)}
        known = {client: self.losses[client][1] for client in said if client in self.losses}
        doubled = [client for client, losses in known.items() if _jumps(said[client], losses, DOUBLED)]
        self.rest = max(0, self.rest - 1)
        for client, loss in said.items():
            model, own = self.losses.pop(client, (None, []))
            if client not in jumped:
                own = own[1 - REMEMBERED :] if model == models[client] else []
                # At the end: the clients are in the order of their last losses.
                self.losses[client] = models[client], [*own, loss]
            elif not _are_several(centers):  # one model may swing between kinds of devices: their data are as before
                self.losses[client] = models[client], [loss]
        self.changed |= {*jumped}
        if not jumped:
            return [True] * len(replies), ""
        named = ", ".join(
            f"{client} ({written(before[client][-1])} → {written(loss)})" for client, loss in jumped.items()
        )
        text = f"The loss of the model that they are sent jumped on {named}: have their data changed?"
        if not _are_several(centers):
            return [True] * len(replies), text
        text += " They do not count in this round, and choose their clusters anew."
        elsewhere = clusters.keys() - said.keys()
        if elsewhere and not self.rest and len(doubled) >= max(SEVERAL, SHARE * len(known)):
            self.beside |= elsewhere
            self.rest = REST
            text += f" As several changed at once, so do the {len(elsewhere)} that did not train."
        return [reply.client not in jumped for reply in replies], text

    def _before(self, client: str, model: Model) -> list[float]:
        """The last losses with which one of a client is compared: its own of this model, or else those of others.

        Nothing where none of its losses counts: it is new, has jumped or was asked.
        """
        known, own = self.losses.get(client, (model, []))
        if known == model:
            return own
        return [losses[-1] for of, losses in self.losses.values() if of == model][-REMEMBERED:]

    def dump(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For a checkpoint: no arrays."""
        sets = {"changed": sorted(self.changed), "beside": sorted(self.beside), "anew": sorted(self.anew)}
        return {}, {"losses": self.losses, **sets, "rest": self.rest, "doubted": self.doubted}

    def load(self, arrays: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Continue from what `dump` gave."""
        self.losses = {client: ((k, count), list(own)) for client, ((k, count), own) in rest["losses"].items()}
        self.changed = set(rest["changed"])
        # A checkpoint of an earlier release has none of these.
        self.beside, self.anew, self.rest = {*rest.get("beside", [])}, {*rest.get("anew", [])}, rest.get("rest", 0)
        self.doubted = dict(rest.get("doubted", {}))


def _are_several(centers: Matrix) -> bool:
    return 1 < len(centers) <= MOST_MODELS


def _jumps(loss: float, before: Sequence[float], factor: float) -> bool:
    return bool(before) and loss > factor * max(before) + LEAST
