"""Replies of a registered device that would become much larger than they are, as bytes to a real server."""

import contextlib
import io
import threading
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict

from common import protocol
from common.protocol import tensors
from server.app import RUN_FOLDER
from server.run.stop import ask_to_stop

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]

TIMES = 2  # an honest round's memory
ROUNDS = 100_000  # until it is stopped


def memory_of(run):
    """The most that each of the run's processes has taken, in bytes: SuperLink, what starts programs, the ServerApp."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{RUN_FOLDER}={run.folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                (line,) = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
                found[process.name] = int(line.split()[1]) * 1024
    return found


def header(shape):
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return written.getvalue()


class Bombs:
    """What is sent in place of a reply, by what the server says of it."""

    def __init__(self, layout):
        names = ",".join(spec.name for spec in layout.tensors)
        arrays = {
            name: tensors.encode_part(a) for name, a in layout.unflatten(np.zeros(layout.dim, np.float32)).items()
        }
        ((_, whole),) = tensors.joined(arrays).items()
        again = Array("uint8", (100 * len(whole.data),), whole.stype, 100 * whole.data)
        self.joined = tensors.record_of({",".join([names] * 100): again})
        claims = Array("float32", (1,), "numpy.ndarray", header((5 * 10**8,)) + bytes(4))
        self.claims = tensors.record_of({layout.tensors[0].name: claims})

    def scripts(self):
        """Of two devices, what they send round by round, and are honest otherwise."""
        hoard = {"x": bytes(6_000_000)}  # more than two replies to this run take
        bomber = {2: ({}, self.joined), 3: ({}, self.claims)}
        hoarder = {2: ({}, self.claims), 3: ({}, self.joined), 5: (hoard, None)}
        return bomber, hoarder


def test_bombs_go_off_nowhere_and_the_honest_devices_rounds_go_on(wired):
    run = wired("bomber", "hoarder", rounds=ROUNDS, grace=30)
    measured = threading.Event()

    def script(steps):
        def answer(instruction, reply):
            if instruction.metadata.message_type != "train":
                return reply
            round_ = instruction.content["config"]["server-round"]
            if round_ == 2:  # an honest round is over
                assert measured.wait(300)
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
    run.answer({"bomber": bomber, "hoarder": hoarder})
    log, node = run.folder / "superlink" / "superlink.log", run.devices["hoarder"].node.node_id
    run.commands.wait_for(lambda: run.commands.rounds("runs/wired") >= 1)
    honest = memory_of(run)
    measured.set()
    run.commands.wait_for(lambda: run.commands.rounds("runs/wired") >= 5)
    run.commands.wait_for(lambda: f"Node {node} has" in log.read_text())  # it is told at once, and none of it is kept
    after = memory_of(run)
    ask_to_stop(run.folder)
    lines = run.end()
    assert len(honest) >= 2
    assert all(after[process] < TIMES * most for process, most in honest.items()), (honest, after)
    assert all({"garden-pi", "porch-pi"} <= line["by_client"].keys() for line in lines)
    failed = [line["failed"] for line in lines]
    assert [sorted(names) for names in failed[:5]] == [[], *[["bomber", "hoarder"]] * 2, [], ["hoarder"]], failed
    assert {why.partition(": ")[0] for why in (*failed[1].values(), *failed[2].values())} == {
        "The tensors cannot be decoded",
        "Tensor 'fc1.weight' cannot be decoded",
    }
    assert failed[4]["hoarder"].startswith("No reply within")
