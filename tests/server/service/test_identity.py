"""Who is who: mutual TLS, the folder of certificates, and which of two connections is the device's."""

import contextlib
import itertools
import shutil
import socket
import ssl
import struct
import threading

import grpc
import pytest
from cryptography import x509
from flwr.app import ConfigRecord, RecordDict

from bouquet.common.errors import BouquetError
from bouquet.common.trust.certificates import fingerprint, read
from bouquet.common.wire.fleet_pb2 import DeviceFrame, Refused, ServerFrame
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import METHOD
from bouquet.keys.store import add_device, init_keys, remove_device, renew_device, renew_server
from bouquet.server.service.certificates import Certificates
from bouquet.server.service.connections import Refusals
from bouquet.server.service.devices import node_of
from bouquet.server.service.running import serving
from tests.helpers.waiting_for import eventually
from tests.helpers.wire_device import SECONDS, Ended, WireDevice


@pytest.fixture
def fleet(fleets):
    """A service with keys, for two devices."""
    return fleets("garden", "porch")


def another_authoritys(fleet, name):
    init_keys(fleet.folder / "others", ["127.0.0.1"])
    folder = add_device(fleet.folder / "others", name)
    shutil.copy(fleet.keys / "ca.crt", folder / "ca.crt")  # it knows the server all the same
    return folder


def test_without_a_certificate_or_with_another_authoritys_there_is_no_handshake(fleet):
    authority = (fleet.keys / "ca.crt").read_bytes()
    channel = grpc.secure_channel(fleet.address, grpc.ssl_channel_credentials(authority))
    with channel, pytest.raises(grpc.RpcError) as refused:
        next(channel.stream_stream(METHOD)(iter([b""]), timeout=SECONDS))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    # Another authority's, under the name of a device that is registered here.
    device = WireDevice(fleet.address, another_authoritys(fleet, "garden"))
    with pytest.raises(Ended):
        device.wait_for("welcome", "refused")
    assert fleet.grid.devices() == []


def test_a_server_does_not_take_the_servers_own_certificate_for_a_devices(fleet, tmp_path):
    for name, file in {"ca.crt": "ca.crt", "device.crt": "server.crt", "device.key": "server.key"}.items():
        shutil.copy(fleet.keys / file, tmp_path / name)
    with pytest.raises(Ended):
        WireDevice(fleet.address, tmp_path).wait_for("welcome")


def test_an_unregistered_certificate_is_refused_by_its_fingerprint(fleet):
    (fleet.keys / "registered" / "porch.crt").unlink()
    eventually(lambda: "removed porch: it is shut out" in fleet.said, "it is removed")
    refused = fleet.device("porch").wait_for("refused")
    print_ = fingerprint(read(fleet.keys_of("porch") / "device.crt")[0])
    assert refused.code == Refused.NOT_REGISTERED
    assert print_[:16] in refused.text
    eventually(lambda: any("is refused" in line and print_[:16] in line for line in fleet.said), "it is said")


def test_a_removed_devices_stream_is_closed_and_no_other(fleet):
    garden, porch = fleet.welcome("garden"), fleet.welcome("porch")
    remove_device(fleet.keys, "porch")
    assert porch.wait_for_end() == ["its certificate was removed"]
    eventually(lambda: [*fleet.grid.get_node_ids()] == [garden.node], "it does not count as one that may be back")
    fleet.push(garden)
    garden.wait_for("task")


def test_a_device_is_what_its_certificate_says_whatever_it_says_itself(fleet):
    garden = fleet.welcome("garden")
    mallory = fleet.welcome("porch", session=garden.session, hello={"tags": ["garden"], "release": "garden"})
    assert mallory.node != garden.node
    assert {device.name for device in fleet.grid.devices()} == {"garden", "porch"}
    identifier = fleet.push(garden)
    mallory.send(reply={"id": identifier, "error": {"code": 2, "reason": "stolen"}})
    mallory.wait_for("received", id=identifier)  # nobody waits for that of this device
    garden.send(reply={"id": identifier, "error": {"code": 2, "reason": "own"}})
    (reply,) = fleet.pull(identifier)
    assert (reply.error.reason, reply.metadata.src_node_id) == ("own", garden.node)


def said_over(secure):
    """What the server says first to a Hello, in HTTP/2 written by hand."""

    def frame(kind, flags, stream, data):
        return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data

    headers = {":method": "POST", ":scheme": "https", ":path": METHOD, ":authority": "server.local"}
    headers |= {"content-type": "application/grpc", "te": "trailers"}
    block = b"".join(bytes([0, len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in headers.items())
    hello = DeviceFrame(hello={"major": 1, "session": b"12345678"}).SerializeToString()
    data = b"\0" + struct.pack(">I", len(hello)) + hello
    secure.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, block) + frame(0, 0, 1, data)
    )
    told = secure.makefile("rb")
    while True:
        length, kind, _, _ = int.from_bytes(told.read(3), "big"), *told.read(2), told.read(4)
        data = told.read(length)
        if kind == 0:
            return ServerFrame.FromString(data[5:])


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_resumed_tls_session_is_its_own_devices_and_of_no_use_after_a_removal(fleet, version):
    context = ssl.create_default_context(cafile=fleet.keys / "ca.crt")
    context.load_cert_chain(fleet.keys_of("garden") / "device.crt", fleet.keys_of("garden") / "device.key")
    context.set_alpn_protocols(["h2"])
    context.maximum_version = ssl.TLSVersion[version]
    host, port = fleet.address.split(":")

    def connect(session=None):
        plain = socket.create_connection((host, int(port)), SECONDS)
        with context.wrap_socket(plain, server_hostname=host, session=session) as secure:
            return said_over(secure), secure.session, secure.session_reused

    first, session, _ = connect()
    # The other's certificate is at hand, but the handshake was the first one's.
    context.load_cert_chain(fleet.keys_of("porch") / "device.crt", fleet.keys_of("porch") / "device.key")
    second, _, is_resumed = connect(session)
    garden, porch = node_of(b"garden"), node_of(b"porch")
    assert first.welcome.node == garden
    assert second.welcome.node == (garden if is_resumed else porch)
    remove_device(fleet.keys, "garden")
    eventually(lambda: "removed garden: it is shut out" in fleet.said, "it is removed")
    third, _, is_resumed = connect(session)
    assert third.refused.code == Refused.NOT_REGISTERED if is_resumed else third.welcome.node == porch


def test_a_renewed_certificate_is_sent_and_both_are_good_until_the_old_one_goes(fleet):
    garden = fleet.welcome("garden")
    renew_device(fleet.keys, "garden")
    new = garden.wait_for("certificate").pem
    assert fingerprint(new) == fingerprint(read(fleet.keys / "registered" / "garden.crt")[0])
    garden.close()
    garden.connect()  # `keys renew` has put the new one into its folder, too
    garden.wait_for("welcome")
    fleet.push(garden)
    garden.wait_for("task")
    assert not [frame for frame in garden.frames if frame.HasField("certificate")]


def test_the_servers_own_certificate_is_replaced_while_it_runs(fleet):
    def shown():
        context = ssl.create_default_context(cafile=fleet.keys / "ca.crt")
        host, port = fleet.address.split(":")
        plain = socket.create_connection((host, int(port)), SECONDS)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            return x509.load_der_x509_certificate(secure.getpeercert(True)).serial_number

    garden, before = fleet.welcome("garden"), shown()
    renew_server(fleet.keys)
    assert shown() != before
    fleet.push(garden)
    garden.wait_for("task")
    # Half of a pair, as in the middle of a copy, is not taken.
    now = shown()
    (fleet.keys / "server.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    assert shown() == now
    fleet.welcome("porch")


def test_of_two_devices_with_one_certificate_the_first_stays_and_both_are_told(fleet, monkeypatch):
    monkeypatch.setattr("bouquet.server.service.service.PING_SECONDS", SECONDS)  # the first answers before
    first = fleet.welcome("garden")
    second = fleet.device("garden")
    refused = second.wait_for("refused")
    assert refused.code == Refused.IN_USE
    assert refused.text == first.wait_for("notice").text
    assert "garden: two devices show its certificate" in refused.text
    fleet.push(first)
    first.wait_for("task")


def test_a_device_with_the_same_session_takes_its_old_connections_place(fleet, monkeypatch):
    monkeypatch.setattr("bouquet.server.service.service.PING_SECONDS", SECONDS)  # nobody waits for that
    old = fleet.welcome("garden")
    old.is_alive = False
    identifier = fleet.push(old)
    again = fleet.welcome("garden", session=old.session)
    assert again.wait_for("task").id == identifier
    old.wait_for_end()
    assert fleet.known(again).stream is not None


def test_a_device_whose_old_connection_is_dead_takes_its_place(fleet, monkeypatch):
    monkeypatch.setattr("bouquet.server.service.service.PING_SECONDS", 0.2)
    old = fleet.welcome("garden")
    old.is_alive = False
    identifier = fleet.push(old)
    assert fleet.welcome("garden").wait_for("task").id == identifier  # a new session: it was started again
    old.wait_for_end()


def test_who_only_asks_is_told_and_takes_nobodys_place(fleet):
    garden = fleet.welcome("garden")
    probe = fleet.welcome("garden", hello={"probe": True})
    assert probe.wait_for_end() == []
    fleet.push(garden)
    garden.wait_for("task")
    assert not [frame for frame in garden.frames if frame.HasField("notice")]


def test_certificates_that_cannot_be_used_are_named_at_the_start(fleet, tmp_path):
    files = Certificates(*(fleet.keys / name for name in ("ca.crt", "server.crt", "nothing.key")))
    with pytest.raises(BouquetError, match=r"nothing\.key"), serving("127.0.0.1:1", tmp_path, certificates=files):
        pass


@pytest.mark.parametrize("flood", ["another session", "no Hello", "garbage", "its own session"])
def test_a_welcomed_device_that_opens_call_after_call_holds_up_nobody(fleet, flood, monkeypatch):
    """All on the connection where it is welcome, which is closed to no device."""
    monkeypatch.setattr(fleet.service._refusals, "_clock", lambda: fleet.service._refusals._since)  # one minute
    mallory, garden = fleet.welcome("porch"), fleet.welcome("garden")
    hello = DeviceFrame(hello={"major": 1, "session": b"another session", "release": "x" * 100_000})
    if flood == "its own session":
        hello.hello.session = mallory.session
    first = {"no Hello": DeviceFrame(pong={}).SerializeToString(), "garbage": b"\xff" * 100_000}
    over, calls = threading.Event(), []

    def storm():
        while not over.is_set() and len(calls) < 5000:
            with contextlib.suppress(grpc.RpcError):
                frames = itertools.chain([first.get(flood, hello.SerializeToString())], [b"\xff" * 200_000] * 4)
                calls.append(next(mallory.channel.stream_stream(METHOD)(frames, timeout=SECONDS), None))

    storming = threading.Thread(target=storm)
    storming.start()
    try:
        eventually(lambda: len(calls) >= 20, "it storms")
        for number in range(20):
            identifier = fleet.push(garden)
            task, _ = garden.task()
            garden.deliver(task.id, content_bytes(RecordDict({"r": ConfigRecord({"k": number})})))
            (reply,) = fleet.pull(identifier)
            assert reply.content["r"]["k"] == number
    finally:
        over.set()
        storming.join(SECONDS)
    assert not storming.is_alive()
    assert sorted(device.name for device in fleet.grid.devices()) == ["garden", "porch"]
    eventually(lambda: fleet.in_loop(lambda: len(fleet.service._streams)) <= 2, "no call of the storm is left")
    assert len([line for line in fleet.said if "refused" in line]) <= Refusals.LINES_A_MINUTE
