"""HypCluster's keys: ``center-k`` holds the model of cluster k, the metric ``cluster`` the one that a device took."""

from __future__ import annotations

from bouquet.common.compression.delta import MOST_MODELS
from bouquet.common.protocol import ProtocolError, Received

PROCEDURE = "hypocluster"
CHOSEN = "cluster"
LOSS_GAP = "loss-gap"  # between the worst and the best of the models on the device's training data
_PREFIX = "center-"


def center_record(cluster: int) -> str:
    """Name of the record that holds the model of a cluster."""
    return f"{_PREFIX}{cluster}"


def offered(received: Received) -> list[int]:
    """The clusters whose models are in the message, in order. Raises `ProtocolError` where there is none."""
    sent = [name for name in received.models if name.startswith(_PREFIX)]
    numbers = [k for k in range(MOST_MODELS) if center_record(k) in received.models]
    if not numbers or len(numbers) < len(sent):
        raise ProtocolError(
            f"The server asks this device to choose a cluster and sent no models of clusters, but "
            f"{', '.join(received.models) or 'nothing'}."
        )
    return numbers
