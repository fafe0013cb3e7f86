"""The wire: the only place that knows the names of records and keys in a message, and checks what arrives.

The room's other modules are what this is made of, and what few need by themselves.
"""

from common.protocol.decoding import (
    Asked,
    Found,
    about,
    check_size,
    decoded,
    from_record,
    most_bytes,
    read_instruction,
    read_model,
    refusing,
    separate,
    separate_of,
    tensor_bytes,
)
from common.protocol.encoding import Encoder, holding_out, reply, to_record
from common.protocol.messages import Backbone, ClientReply, Instruction, Payload, ProtocolError, Proximal, Received
from common.protocol.names import (
    ACCURACY,
    ACCURACY_TRAINED,
    ARRAYS,
    BACKBONE,
    CLASS_FOUND,
    CLASS_SAMPLES,
    CLASS_TESTED,
    CLIENT,
    CLIENT_ID,
    CONFIG,
    DEVICE_ID,
    F1,
    GROUP,
    IDENTIFY,
    LEFT_OUT,
    LOSS,
    METRICS,
    NOTICE,
    NUM_EXAMPLES,
    REFUSES,
    RELEASE,
    ROUND,
    SPARE,
    STANDARD,
    STATE_LOST,
    TEST_EXAMPLES,
    TEST_LOSS,
    TEXT,
    TRAIN_LOSS,
    VALIDATION_ACCURACY,
    VALIDATION_EXAMPLES,
    VERSION,
    Scalar,
)
