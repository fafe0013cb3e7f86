"""What DC-PFL sends a client outside of trials: the whole model, the layers that travel, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from common.protocol import ARRAYS, Instruction, Payload, Scalar
from strategies.base.method import one_model
from strategies.dcpfl.state import DCPFLState
from strategies.dcpfl.wire import PROCEDURE, WHOLE_ROUND


def instruction(
    state: DCPFLState, client: str, full: set[int], config: Mapping[str, Scalar] | None = None
) -> Instruction:
    """What a client is sent with this config; the ``full`` groups upload the whole model.

    Fast layers travel both ways, and all of them up in a full round and down after it; alone, nothing does. A client
    that is new, missed the full round or lost its layers is sent the whole model, whatever the others are sent.
    """
    config = {} if config is None else config
    group = state.assignment.get(client, 0 if state.gamma == 1 else None)
    if group is None:
        return one_model(state.common_model(), procedure=PROCEDURE, config=config)
    alone = state.is_alone(client)
    if alone and state.is_current(client):
        return Instruction(start="personal", upload=(), procedure=PROCEDURE, config=config)
    upload = () if alone else None if group in full else state.travelling(group)
    if state.is_sent_whole(client):
        return one_model(state.centers[group], upload=upload, procedure=PROCEDURE, config=config)
    fast = Payload(state.centers[group], state.travelling(group))
    config = {**config, WHOLE_ROUND: state.whole[client]}
    return Instruction({ARRAYS: fast}, upload=upload, procedure=PROCEDURE, config=config)
