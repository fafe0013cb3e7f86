"""Replies of a registered device that would become much larger than they are, as bytes to a real server."""

import io
import json
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict

from bouquet.common import protocol
from bouquet.common.compression.delta import PackedModel, to_bytes
from bouquet.common.protocol import tensors
from bouquet.server.run.stop import ask_to_stop

pytestmark = pytest.mark.federation

TIMES = 2  # an honest round's memory
ROUNDS = 100_000  # until it is stopped
MUCH = 2**32 - 1  # the most that a field of a packed model holds
PACKERS = ("packer-1", "packer-2")


def memory_of(run):
    """The most that the server has taken, in bytes."""
    status = Path(f"/proc/{run.server.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def header(shape):
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return written.getvalue()


class Bombs:
    """What is sent in place of a reply, by what the server says of it."""

    def __init__(self, layout):
        arrays = layout.unflatten(np.zeros(layout.dim, np.float32)).items()
        self.many = tensors.record_of({f"{k}{name}": tensors.encode(a) for k in range(100) for name, a in arrays})
        claims = Array("float32", (1,), "numpy.ndarray", header((5 * 10**8,)) + bytes(4))
        self.claims = tensors.record_of({layout.tensors[0].name: claims})

    def scripts(self):
        """Of two devices, what they send round by round, and are honest otherwise."""
        hoard = {"x": bytes(6_000_000)}  # more than two replies to this run take
        bomber = {2: ({}, self.many), 3: ({}, self.claims)}
        hoarder = {2: ({}, self.claims), 3: ({}, self.many), 5: (hoard, None)}
        return bomber, hoarder


def deflated(content, times=1):
    """A layer of a packed model, which inflates to so many times the content."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"\x01" + b"".join(deflate.compress(content) for _ in range(times)) + deflate.flush()


def packed_bombs(layout):
    """Packed models, with the beginning of what is said of each: of each codec, and of the block around them."""
    spec, layer = layout.tensors[0], layout.layers[0]
    tensor = f"Tensor {spec.name!r} cannot be decoded: "

    def block(first):
        return to_bytes({"arrays": PackedModel("", dict.fromkeys(layout.layers, b"\x00\x00") | {layer: first})}, layout)

    def head(*models, length=None):
        text = json.dumps(models).encode()
        return struct.pack("<I", length or len(text)) + text

    read = "The packed models cannot be read: "
    return [
        (block(deflated(b"\x01" + bytes(10**6), 1000)), f"Layer {layer!r} is too long: "),
        (block(deflated(b"\x02" + bytes(200_000))), f"Layer {layer!r} is cut off, too long"),
        (block(b"\x00\x03" + bytes(4)), f"{tensor}The coded values end"),
        (block(b"\x00\x04" + bytes(4)), f"{tensor}The coded values end"),
        (head(length=MUCH), f"{read}what they are takes {MUCH} bytes"),
        (head(["arrays", "", [0], [2**62], 0]), f"{read}layer 0 of {2**62} bytes"),
        (head(["arrays", "", [2**62], [0], 0]), f"{read}layer {2**62} of 0 bytes"),
        (head(["arrays", "", [], [], 0], ["again", "", [], [], 0]), f"{read}more than 1"),
    ]


def test_bombs_go_off_nowhere_and_the_honest_devices_rounds_go_on(wired):
    run = wired("bomber", "hoarder", *PACKERS, rounds=ROUNDS, grace=600, more='[wire]\nup = "int4"\n')
    measured = threading.Event()

    def script(steps):
        def answer(instruction, reply):
            if instruction.metadata.message_type != "train":
                return reply
            round_ = instruction.content["config"]["server-round"]
            if round_ == 2:  # an honest round is over
                measured.wait()
            if round_ not in steps:
                return reply
            config, arrays = steps[round_]
            records = {
                protocol.METRICS: MetricRecord({protocol.NUM_EXAMPLES: 4}),
                protocol.CLIENT: ConfigRecord({protocol.CLIENT_ID: "bomber", **config}),
            }
            if arrays is not None:
                records[protocol.ARRAYS] = arrays
            return Message(RecordDict(records), reply_to=instruction)

        return answer

    bomber, hoarder = map(script, Bombs(run.layout).scripts())
    bombs = packed_bombs(run.layout)
    rounds = (2, 3, 5, 6)  # who is refused three times in a row sits out
    packed = {name: dict(zip(rounds, bombs[i :: len(PACKERS)], strict=True)) for i, name in enumerate(PACKERS)}
    packers = {
        name: script({round_: ({"packed": block}, None) for round_, (block, _) in sent.items()})
        for name, sent in packed.items()
    }
    run.answer({"bomber": bomber, "hoarder": hoarder, **packers})
    run.commands.wait_for(lambda: run.commands.rounds("runs/wired") >= 1)
    honest = memory_of(run)
    measured.set()
    run.commands.wait_for(lambda: run.commands.rounds("runs/wired") >= 6)
    after = memory_of(run)
    ask_to_stop(run.folder)
    lines = run.end()
    assert after < TIMES * honest
    assert all({"garden-pi", "porch-pi"} <= line["by_client"].keys() for line in lines)
    failed = [line["failed"] for line in lines]
    said = {name: {round_: failed[round_ - 1].pop(name, "") for round_ in rounds} for name in PACKERS}
    wrong = {
        (name, round_): said[name][round_]
        for name, sent in packed.items()
        for round_, (_, reason) in sent.items()
        if not said[name][round_].startswith(reason)
    }
    assert not wrong
    assert [sorted(names) for names in failed[:6]] == [[], *[["bomber", "hoarder"]] * 2, [], ["hoarder"], []], failed
    assert {why.partition(": ")[0] for why in (*failed[1].values(), *failed[2].values())} == {
        "Tensor 'fc1.weight' is missing (4 of 4 are).",
        "Tensor 'fc1.weight' cannot be decoded",
    }
    assert failed[4]["hoarder"].startswith("The reply cannot be read. It takes ")
