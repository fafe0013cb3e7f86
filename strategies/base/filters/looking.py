"""What devices' samples look like (`bouquet.common.data.looks`), so that one without labels can be given a cluster.

A device is asked once, when there are several clusters, and again after it came into another one: its data may have
changed. It says 64 numbers, with which a device that lies spoils no model, but where others without labels are placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.looks import Looks, from_bytes
from bouquet.common.protocol import LOOK, ClientReply
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction


class Looking(Filter):
    """The looks (64,) by client, and the cluster that each was in after it said it, None until a round has begun since.

    ``assignment`` is who is where now, ``count_clusters`` of how many clusters.
    """

    key = "_looks"

    def __init__(self, assignment: Callable[[], Mapping[str, int]], count_clusters: Callable[[], int]) -> None:
        self.assignment, self.count_clusters = assignment, count_clusters
        self.looks: dict[str, NDArray[np.float32]] = {}
        self.seen_in: dict[str, int | None] = {}
        self._asks = False
        self._now: Mapping[str, int] = {}
        self._known: tuple[Mapping[str, int], Looks | None] | None = None  # of these clusters; None where looks are new

    def begin(self, round_: int) -> None:
        """Note in which clusters those are that said it in the round before."""
        self._asks, self._now = self.count_clusters() > 1, self.assignment()
        for client, cluster in self.seen_in.items():
            if cluster is None:
                self.seen_in[client] = self._now.get(client)

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """Ask a device that has not said it, or not in this cluster."""
        client = message.client
        is_known = client in self.looks and self.seen_in[client] in (None, self._now.get(client))
        if not message.is_train or not self._asks or is_known:
            return message
        config = {**message.instruction.config, LOOK: True}
        return replace(message, instruction=replace(message.instruction, config=config))

    def incoming(self, reply: ClientReply) -> ClientReply:
        """Keep what it said; of what no honest device says, nothing."""
        if self._asks and (look := from_bytes(reply.config.get(LOOK))) is not None:
            self.looks[reply.client], self.seen_in[reply.client], self._known = look, None, None
        return reply

    def known(self) -> Looks | None:
        """What clusters look like now; None where that is not known of each.

        It is asked in each round, and with 1,000 devices takes a second: so only where something changed.
        """
        clusters = self.assignment()
        if self._known is None or self._known[0] != clusters:
            self._known = dict(clusters), Looks.known(self.looks, clusters)
        return self._known[1]

    def dump(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """For a checkpoint."""
        return dict(sorted(self.looks.items())), {"seen_in": dict(sorted(self.seen_in.items()))}

    def load(self, arrays: Mapping[str, NDArray[Any]], rest: Mapping[str, Any]) -> None:
        """Continue from what `dump` gave."""
        self.looks, self.seen_in, self._known = dict(arrays), dict(rest["seen_in"]), None
