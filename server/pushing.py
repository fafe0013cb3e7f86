"""Parts of a message that SuperLink did not take at the first try.

Flower 1.39 ends the run then (`ObjectPushError`), though it says so in two cases that pass: where the database was
locked for more than five seconds, as on a machine with too much to do, and where the part was taken and the answer was
lost, so that Flower's own repetition of the request is turned away.
"""

from __future__ import annotations

import time
from typing import Any

from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest, PushObjectResponse

from common.pulling import PAUSES


class PatientSuperLink:
    """A connection to SuperLink whose ``PushObject`` is tried again until the part is there."""

    def __init__(self, superlink: Any) -> None:
        self.superlink = superlink

    def __getattr__(self, name: str) -> Any:
        return getattr(self.superlink, name)

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse:
        """Store a part; ``stored`` is False where it is still not there after the last try."""
        for pause in PAUSES:
            if self._push(request):
                return PushObjectResponse(stored=True)
            time.sleep(pause)
        return PushObjectResponse(stored=self._push(request))

    def _push(self, request: PushObjectRequest) -> bool:
        if self.superlink.PushObject(request).stored:
            return True
        there = PullObjectRequest(node=request.node, run_id=request.run_id, object_id=request.object_id)
        return bool(self.superlink.PullObject(there).object_available)
