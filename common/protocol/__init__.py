"""The wire: the only place that knows the names of records and keys in a message, and checks what arrives.

The room's other modules are what this is made of, and what few need by themselves.
"""

from bouquet.common.protocol.decoding import (
    Asked,
    Found,
    about,
    check_size,
    from_record,
    most_bytes,
    read_instruction,
    read_model,
    refusing,
)
from bouquet.common.protocol.encoding import Encoder, holding_out, reply, to_record
from bouquet.common.protocol.messages import (
    Backbone,
    ClientReply,
    Instruction,
    Payload,
    ProtocolError,
    Proximal,
    Received,
)
from bouquet.common.protocol.names import *  # noqa: F403
