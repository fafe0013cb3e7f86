"""Registered devices that attack a real server over gRPC: what they send is bytes, below every ClientApp.

Many attacks share a server, a device for each: a server's start is what takes time here.
"""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from bouquet.common import protocol
from bouquet.common.wire.flower import content_bytes
from bouquet.experiments.simulation.inline_grid import scripted_client

pytestmark = pytest.mark.federation


def body(content):
    """Bytes of no content."""
    return lambda instruction, reply: content


def in_turn(*scripts):
    """One after another, round by round; honest when it is asked anything else."""

    def script(instruction, reply):
        if instruction.metadata.message_type != "train":
            return reply
        return scripts[(instruction.content["config"]["server-round"] - 1) % len(scripts)](instruction, reply)

    return script


def tensor(name):
    """A model of one tensor, of a name that no model has."""

    def script(instruction, reply):
        content = RecordDict({"arrays": ArrayRecord({name: Array(np.ones((2, 2), dtype=np.float32))})})
        content["metrics"] = MetricRecord({protocol.NUM_EXAMPLES: 10})
        return Message(content, reply_to=instruction)

    return script


def error(reason):
    return lambda instruction, reply: (2, reason)


def announces(instruction, reply):
    """A large reply of which nothing comes."""

    def send(device, task):
        device.send(reply={"id": task.id, "content": {"size": 200_000, "sha256": b"x" * 32}})

    return send


def boasts(instruction, reply):
    """More samples than all others together, and half a megabyte of release."""
    told = {protocol.RELEASE: "9" * 500_000}
    metrics = {protocol.NUM_EXAMPLES: 10**9}
    return protocol.reply(instruction, "x" * 400_000, metrics, instruction.content.array_records.get("arrays"), told)


def test_nobody_replies_as_another_and_nothing_that_is_sent_ends_the_run(wired):
    refused = {
        "garbage": in_turn(body(b"\xff" * 40), body(b"\x0a" * 40), body(b"\x0a\x04\x12\x02" * 100_000)),
        "names": in_turn(tensor("$\\frac{$.weight"), tensor("9" * 5000), tensor("x\x1b[31m\n.y")),
        "words": in_turn(error("x" * 200_000), error("x" * 9_000), error("\x1b[31m\nround 9 ended"), error("")),
    }
    silent = {"silent": lambda instruction, reply: None, "announces": announces}  # a round waits ``grace`` for these
    more = "\n[protection]\nlimit_norm = 3.0\n"
    run = wired("mallory", "claims", "boasts", *refused, *silent, rounds=4, grace=10, more=more)
    as_garden = scripted_client("garden-pi", run.layout, lambda model, _: model + 1, {protocol.NUM_EXAMPLES: 77})

    def claims(instruction, reply):
        return as_garden(instruction)

    def mallory(instruction, reply):
        """Answers another's task beside its own: ids of tasks are no secret."""

        def send(device, task):
            device.send(reply={"id": "0" * 32, "error": {"code": 2, "reason": "not mine"}})
            device.deliver(task.id, content_bytes(reply.content))

        return send

    run.answer({"mallory": mallory, "claims": claims, "boasts": boasts, **refused, **silent})
    lines = run.end()
    # Each as itself, whatever it says.
    samples = {"garden-pi": 10, "porch-pi": 10, "mallory": 10, "claims": 77, "boasts": 10**9}
    for line in lines:
        assert {name: told["samples"] for name, told in line["by_client"].items()} == samples, line
        assert set(line["failed"]) == {*refused, *silent}, line["failed"]
        expected = "No reply within" if line["round"] <= 3 else "Rounds were held up by it again and again"
        assert {line["failed"][name].startswith(expected) for name in silent} == {True}, line["failed"]
        texts = [*line["failed"].values(), *line["other_releases"].values()]
        assert all(len(text) <= 300 and text.isprintable() for text in texts), line
    assert all("cannot be read" in line["failed"]["garbage"] for line in lines[:3]), lines[0]["failed"]
    assert "left out" in lines[3]["failed"]["garbage"]
    assert (run.folder / "report.html").stat().st_size > 10_000
    assert sum(file.stat().st_size for file in run.folder.glob("*.json*")) < 300_000
    assert "\x1b[31m\nround 9" not in run.commands.log("server")


def test_one_device_keeps_no_run_on_by_what_it_claims(wired):
    def says(accuracy):
        def script(instruction, reply):
            if instruction.metadata.message_type == "train":
                reply.content["metrics"]["accuracy"] = accuracy(instruction.content["config"]["server-round"])
            return reply

        return script

    # A mean and a median go up with the liar's.
    scripts = {"good": says(lambda _: 0.9), "liar": says(lambda round_: 0.5 + round_ / 1000)}
    run = wired(*scripts, rounds=20, grace=30, options=("--set", "run.patience=3"))
    run.answer(scripts, {"accuracy": 0.5})
    assert [line["by_client"]["liar"]["accuracy"] for line in run.end()] == [0.501, 0.502, 0.503, 0.504]
