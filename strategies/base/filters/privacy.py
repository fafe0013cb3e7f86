"""The server's end of `[privacy]`: the (ε, δ) that each client's uploads have spent.

The clipping and the noise are the device's (`bouquet.client.uploads.privacy`), and so is the first count of its
releases: one whose reply was lost on the way has left it all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from bouquet.common import protocol
from bouquet.common.privacy_accounting import DELTA, RELEASES, epsilon_spent
from bouquet.common.protocol import ClientReply
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.settings.sections import PrivacySettings
from bouquet.strategies.base.filters.filter import Filter

_MOST = 10**9  # releases that a device may speak of


@dataclass
class PrivacyLedger(Filter):
    """The releases of each client in this run."""

    settings: PrivacySettings
    releases: dict[str, int] = field(default_factory=dict)

    def incoming(self, reply: ClientReply) -> ClientReply:
        """The reply. Raises `ProtocolError` for a model of a device that does not say that it clipped and noised it."""
        if reply.layers and not _said(reply.config):
            raise protocol.ProtocolError(
                "The reply does not say that the device clipped and noised its model ([privacy]): it is not Bouquet's, "
                "or of another release."
            )
        return reply

    def arrived(self, client: str, arrival: Arrival) -> None:
        """Count what has arrived, also where it cannot be used."""
        said = _said(arrival.about)
        before = self.releases.get(client, 0)
        # A device that lost its state counts from 1 again, and one that is not ours not at all.
        if said > before or arrival.uploads:
            self.releases[client] = max(said, before + 1)

    def epsilon(self, client: str) -> float | None:
        """ε of all that the client has sent in this run; None where no finite one holds."""
        epsilon = epsilon_spent(self.releases.get(client, 0), self.settings.noise_multiplier)
        return round(epsilon, 6) if math.isfinite(epsilon) else None

    def by_client(self) -> dict[str, float | None]:
        """ε of every client that has sent something."""
        return {client: self.epsilon(client) for client in sorted(self.releases)}

    def summary(self) -> dict[str, Any]:
        """What the record of a run says: the mechanism, what (ε, δ) is of, and ε by client, and the greatest."""
        spent = self.by_client()
        every = [math.inf if epsilon is None else epsilon for epsilon in spent.values()]
        most = max(every, default=0.0)
        return {
            **self.settings.model_dump(mode="json"),
            "delta": DELTA,
            "protects": "all that is sent" if self.settings.withholds else "the models, not the scores",
            "releases": dict(sorted(self.releases.items())),
            "epsilon": spent,
            "epsilon_most": most if math.isfinite(most) else None,
        }


def _said(config: Any) -> int:
    """The releases that a device speaks of; 0 where it does not, or speaks nonsense."""
    said = config.get(RELEASES)
    return said if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= _MOST else 0
