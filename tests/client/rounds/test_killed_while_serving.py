"""A device that dies at any step of a message in which it serves a mixture: it goes on as one that never died."""

import json
import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest

from bouquet.client.rounds.mixture import Mixing
from bouquet.client.rounds.session import Session
from bouquet.common.protocol import ARRAYS, Instruction, Payload
from tests.helpers.scripted_server import Device, samples

MIXTURE = {"privacy.clip_norm": None, "personal.serve": "mixture", "personal.compare": False, "train.local_epochs": 2}
STEPS = ((Session, "train"), (Mixing, "_errors"), (os, "replace"), (os, "rename"), (os, "unlink"))


def device_in(folder):
    return Device(folder, (), samples())


def ask(folder, kind, round_):
    """The reply to a message of a server whose model moves from round to round: its metrics and its arrays."""
    device = device_in(folder)
    _, initial = device.model(**MIXTURE)
    model = initial + np.float32(0.01 * (round_ + (kind == "evaluate")))
    reply = device.ask(Instruction({ARRAYS: Payload(model)}), kind, round_, **MIXTURE)
    content = reply.content
    arrays = {name: array.numpy().tobytes() for r in content.array_records.values() for name, array in r.items()}
    return {name: dict(record) for name, record in content.metric_records.items()}, arrays


def files(folder):
    """All that the device has kept of the run, by name; its data's copy is named by where they are."""
    found = [path for path in (folder / "state").rglob("*") if path.is_file() and path.parent.name != "prepared"]
    return {str(path.relative_to(folder)): content(path) for path in found}


def content(path):
    """What is in a file, to the bit; the metadata of models have no order.

    The name of the data's copy is by where the folder of this test is, and with it the checksum.
    """
    found = path.read_bytes()
    if path.suffix != ".safetensors":
        return found
    end = 8 + int.from_bytes(found[:8], "little")
    head = json.loads(found[8:end])
    if data := head["__metadata__"].get("data"):
        assert data.startswith("data-")
        head["__metadata__"] |= {"data": "there", "crc32": ""}
    return head, found[end:]


def watched(folder, kind, round_, dies_at, names):
    """Ask a device that is killed before, or after, the call of this number of one of `STEPS`; the calls it made."""
    made = []

    def noted(name):
        made.append(name)
        if len(made) - 1 == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner, name in STEPS:

        def wrapped(*arguments, _call=getattr(owner, name), _name=name, **named):
            noted(f"before {_name}")
            found = _call(*arguments, **named)
            noted(f"after {_name}")
            return found

        setattr(owner, name, wrapped)
    ask(folder, kind, round_)
    names.send(made)


def in_a_process(folder, kind, round_, dies_at=-1):
    """`watched`, in a process of its own: its exit status, and the calls, None where it died."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["bouquet.client.app", "bouquet.client.rounds.mixture", "tests.helpers.scripted_server"]
    )
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=watched, args=(folder, kind, round_, dies_at, sending))
    process.start()
    sending.close()
    process.join()
    made = None if process.exitcode else receiving.recv()
    return process.exitcode, made


@pytest.mark.parametrize(("kind", "round_"), [("train", 2), ("evaluate", 2)])
def test_killed_at_any_step_it_keeps_and_says_what_it_would_have(tmp_path, kind, round_):
    before = tmp_path / "before"
    ask(before, "train", 1)
    if kind == "evaluate":
        ask(before, "train", 2)
    whole = tmp_path / "whole"
    shutil.copytree(before, whole)
    expected = ask(whole, kind, round_)
    kept, later = files(whole), ask(whole, "train", 3)

    shutil.copytree(before, tmp_path / "counted")
    code, steps = in_a_process(tmp_path / "counted", kind, round_)
    assert code == 0
    assert files(tmp_path / "counted") == kept
    needed = {"train": ("train", "_errors", "replace"), "evaluate": ("_errors", "replace")}[kind]
    assert all(steps.count(f"before {name}") >= 1 for name in needed)
    assert kind == "evaluate" or steps.count("before train") == 2  # the method's training, and the one alone
    for step, name in enumerate(steps):
        killed = tmp_path / f"killed-{step}"
        shutil.copytree(before, killed)
        code, made = in_a_process(killed, kind, round_, step)
        assert (code, made) == (-signal.SIGKILL, None), name
        assert ask(killed, kind, round_) == expected, name
        assert files(killed) == kept, name
        assert ask(killed, "train", 3) == later, name
        shutil.rmtree(killed)
