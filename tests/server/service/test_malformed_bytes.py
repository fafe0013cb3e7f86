"""Bytes of all kinds on the stream: refused with their device named, or borne; `test_fuzz` makes up more of them."""

import pytest

from bouquet.common.wire.fleet_pb2 import DeviceFrame, Refused
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import CHUNK_BYTES, FRAME_BYTES, MAJOR, MINOR, content_of
from bouquet.server.service.connections import Refusals
from tests.helpers.served_fleet import content
from tests.helpers.waiting_for import eventually

SMALL, LARGE = content_bytes(content(1000)), content_bytes(content(3 * CHUNK_BYTES))


@pytest.fixture
def fleet(fleets, monkeypatch):
    """A service with keys, for an attacker and an honest device; every refusal is said."""
    monkeypatch.setattr(Refusals, "LINES_A_MINUTE", 10**9)
    return fleets("mallory", "garden")


def frames(identifier):
    """One honest frame of each kind."""
    return {
        "hello": {"major": MAJOR, "minor": MINOR, "session": b"12345678", "release": "test"},
        "reply": {"id": identifier, "content": content_of(SMALL)},
        "chunk": {"id": identifier, "offset": 0, "data": b"x" * 100},
        "credit": {"id": identifier, "offset": 0, "end": 100},
        "not_now": {"id": identifier, "reason": "r", "seconds": 1.0},
        "pong": {},
        "goodbye": {"reason": "r"},
    }


def still_works(fleet, device, garden):
    """The honest device notices nothing, and the attacker may come back."""
    identifier = fleet.push(garden)
    garden.deliver(identifier, SMALL)
    assert fleet.pull(identifier)[0].has_content()
    device.close(goodbye=False)
    device.connect()
    device.wait_for("welcome")


def test_of_each_kind_of_frame_the_part_that_is_no_frame_is_refused_by_name(fleet):
    garden, device = fleet.welcome("garden"), fleet.welcome("mallory")
    for kind, what in frames("0" * 32).items():
        data = DeviceFrame(**{kind: what}).SerializeToString()
        if len(data) == 2:  # nothing is inside
            data += b"\x0a"
        before = len(fleet.said)
        device.send_bytes(data[: len(data) // 2] if len(data) > 3 else data)
        assert any("cannot be read" in text for text in device.wait_for_end()), kind
        assert [line for line in fleet.said[before:] if line.startswith("mallory is refused")], kind
        still_works(fleet, device, garden)


@pytest.mark.parametrize(("times", "is_named"), [(1, True), (2, False)])
def test_what_is_larger_than_a_frame_is_not_taken(fleet, times, is_named):
    """By name; what is much larger, gRPC cuts off before it is read."""
    garden, device = fleet.welcome("garden"), fleet.welcome("mallory")
    device.send_bytes(b"\x00" * (times * FRAME_BYTES + 1))
    device.wait_for_end()
    assert any(line.startswith("mallory is refused") for line in fleet.said) == is_named
    still_works(fleet, device, garden)


@pytest.mark.parametrize("kind", [*frames("0" * 32)][1:])
def test_what_is_said_before_hello_is_refused(fleet, kind):
    device = fleet.device("mallory", hello=None)
    device.send(**{kind: frames("0" * 32)[kind]})
    assert device.wait_for_end() == ["its first frame is no Hello"]


@pytest.mark.parametrize("first", [b"", b"\xff" * 100, DeviceFrame(hello={"session": b"1" * 65}).SerializeToString()])
def test_a_first_frame_that_is_no_hello_is_refused(fleet, first):
    device = fleet.device("mallory", hello=None)
    device.send_bytes(first)
    assert device.wait_for("refused").code == Refused.MALFORMED
    eventually(lambda: any(line.startswith("mallory is refused") for line in fleet.said), "it is said")


def test_who_says_nothing_is_sent_away(fleet, monkeypatch):
    monkeypatch.setattr("bouquet.server.service.greeting.HELLO_SECONDS", 0.05)
    assert fleet.device("mallory", hello=None).wait_for_end() == ["it said nothing"]


def test_another_major_version_is_refused_by_name_and_another_minor_one_is_borne(fleet):
    refused = fleet.device("mallory", hello={"major": MAJOR + 1, "release": "bouquet-fl 9"}).wait_for("refused")
    assert refused.code == Refused.VERSION
    assert f"version {MAJOR + 1} of the protocol (bouquet-fl 9)" in refused.text
    fleet.welcome("garden", hello={"minor": MINOR + 5})


def test_frames_and_fields_that_are_not_known_and_a_second_hello_are_borne(fleet):
    device = fleet.welcome("mallory")
    identifier = fleet.push(device)
    device.send_bytes(b"\xba\x3e\x03abc")  # field 999: a frame of a later version
    device.send_bytes(b"")
    device.send(hello=frames("")["hello"] | {"session": b"another session"})
    device.send_bytes(
        DeviceFrame(reply={"id": identifier, "content": content_of(SMALL)}).SerializeToString() + b"\xba\x3e\x03abc"
    )
    device.wait_for("received")
    assert fleet.pull(identifier)[0].has_content()


@pytest.mark.parametrize("text", ["\x1b[31m\n", "x" * 10**5, "\u202e"])
def test_the_reason_of_an_error_is_fit_for_a_terminal(fleet, text):
    device = fleet.welcome("mallory")
    device.send(reply={"id": (identifier := fleet.push(device)), "error": {"code": -1, "reason": text}})
    (reply,) = fleet.pull(identifier)
    assert reply.error.reason.isprintable()
    assert len(reply.error.reason) < 2000
