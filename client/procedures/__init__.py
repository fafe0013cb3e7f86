"""What a device can be asked to do in a round, by name.

A procedure is a module with two functions of a `client.session.Session`: ``train``, which answers a train message,
and ``evaluate``, which answers an evaluate message. Most methods need only the standard one.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from common.protocol import ProtocolError

PROCEDURES = {
    "standard": "client.procedures.standard",
    "ditto": "client.procedures.ditto",
    "identity": "client.procedures.identity",
    "layer-wise": "client.procedures.layerwise",
    "trial": "client.procedures.trial",
    "low-rank": "client.procedures.low_rank",
}


def procedure(name: str) -> ModuleType:
    """The module of a procedure. Raises `ProtocolError` for one that this device does not know."""
    if name not in PROCEDURES:
        raise ProtocolError(
            f"The server asks for the procedure {name!r}; this device knows {', '.join(PROCEDURES)}: "
            "install the same release of Bouquet at both ends."
        )
    return importlib.import_module(PROCEDURES[name])
