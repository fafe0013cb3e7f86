"""Registered devices that attack a real server over gRPC: what they send is bytes, below every ClientApp.

Many attacks share a server, a device for each: a server's start is what takes time here.
"""

import json

import pytest
from wire_device import Reply

from common import protocol
from experiments.inline import scripted_client

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]


def inside(**values):
    """Other metadata in the reply itself, beside what SuperLink is told."""

    def script(instruction, reply):
        with reply.inside() as message:
            for name, value in values.items():
                setattr(message.metadata, name, value)
        return reply

    return script


def body(kind, content):
    """Garbage with the right digest."""

    def script(instruction, reply):
        reply.part(kind).body = content
        return reply

    return script


def one_chunk_again_and_again(instruction, reply):
    if instruction.metadata.message_type != "train":
        return reply
    reply.part("ArrayChunk").body = b"x" * 2**19
    array = reply.part("Array")
    array.body = json.dumps({**json.loads(array.body), "arraychunk_ids": [0] * 100_000}).encode()  # 50 GB
    return reply


def of_no_object(instruction, reply):
    reply.announced.metadata.message_id = "f" * 64  # announced as one that is not there
    return reply


def test_nobody_replies_as_another_and_nothing_unreadable_ends_the_run(wired):
    garbage = {
        "record": body("ConfigRecord", b"\xff" * 40),
        "message": body("Message", b"\xff" * 40),
        "bomb": one_chunk_again_and_again,
        "nothing": of_no_object,
    }
    run = wired("mallory", "nobody", "claims", *garbage, rounds=5)
    garden = run.devices["garden-pi"].node.node_id
    as_garden = scripted_client("garden-pi", run.layout, lambda model, _: model + 1, {protocol.NUM_EXAMPLES: 77})

    def claims(instruction, reply):
        return inside(src_node_id=12345)(instruction, Reply.of(as_garden(instruction)))

    run.answer(
        {"mallory": inside(src_node_id=garden), "nobody": inside(src_node_id=12345), "claims": claims, **garbage}
    )
    lines = run.end()
    trained = {"garden-pi", "porch-pi", "mallory", "nobody", "claims"}  # each of them as itself, whatever it says
    for line in lines:
        assert trained <= set(line["by_client"]) <= trained | {"bomb"}, line
        assert {name: line["by_client"][name]["samples"] for name in trained} == {
            **dict.fromkeys(trained, 10),
            "claims": 77,
        }
        assert set(line["failed"]) == set(garbage), line["failed"]
    assert all("cannot be read" in lines[0]["failed"][name] for name in ("record", "message", "bomb")), lines[0]
    assert "left out" in lines[3]["failed"]["bomb"]
    assert (run.folder / "report.html").exists()
