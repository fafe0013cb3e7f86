"""``bouquet keys``, in this process: what it makes, and what it refuses."""

import shutil
import socket
import ssl
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from bouquet.common.errors import BouquetError
from bouquet.common.trust.certificates import common_name, expires, fingerprint
from bouquet.keys.store import DeviceKeys, add_device, device_keys, init_keys, list_devices, remove_device, renew_device
from tests.helpers.key_store import check_pair, days_left, key_of, names, run

INVALID_PURPOSE = 26  # OpenSSL's X509_V_ERR_INVALID_PURPOSE


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_names_leave_the_servers_certificate_only_when_asked_to(keys):
    def server(*arguments):
        return run("server", "--dir", keys, *arguments)

    server("--remove-host", "192.168.1.10", "--host", "10.0.0.2")
    assert names(keys) == ["server.local", "localhost", "127.0.0.1", "10.0.0.2"]
    before = (keys / "server.crt").read_bytes()
    server()  # before it expires
    assert names(keys) == ["server.local", "localhost", "127.0.0.1", "10.0.0.2"]
    assert (keys / "server.crt").read_bytes() != before
    check_pair(keys)
    with pytest.raises(
        BouquetError, match=r"'192\.168\.1\.10' cannot be taken .* it is not in it\. It holds server\.loc"
    ):
        server("--remove-host", "192.168.1.10")
    with pytest.raises(BouquetError, match=r"the server's own machine reaches it by that"):
        server("--remove-host", "127.0.0.1")


@pytest.mark.parametrize("host", ["server.local:9092", "http://server", "a b", ""])
def test_a_host_that_is_none(tmp_path, host):
    with pytest.raises(BouquetError, match="neither a host name nor an IP address"):
        init_keys(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_a_device_from_its_first_day_to_its_last(keys):
    assert f"copy {keys}/devices/pi-1 to it" in run("add", "pi-1", "pi-2", "--dir", keys)
    folder, file = keys / "devices" / "pi-1", keys / "registered" / "pi-1.crt"
    assert sorted(each.name for each in folder.iterdir()) == ["ca.crt", "device.crt", "device.key"]
    assert [mode(path) for path in (keys / "devices", folder, folder / "device.key")] == [0o700, 0o700, 0o600]
    assert (folder / "ca.crt").read_bytes() == (keys / "ca.crt").read_bytes()
    assert (folder / "device.key").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----\n")
    certificate = file.read_bytes()
    assert certificate == (folder / "device.crt").read_bytes()
    assert common_name(certificate) == "pi-1"
    assert days_left(certificate) == 3650
    assert key_of(certificate).curve.name == "secp256r1"
    assert device_keys(folder, insecure=False) == DeviceKeys(
        folder / "device.key", folder / "device.crt", folder / "ca.crt", "pi-1"
    )
    first = fingerprint(certificate)
    assert [(d.name, d.fingerprint == first) for d in list_devices(keys)] == [("pi-1", True), ("pi-2", False)]
    assert f"pi-1  {first[:16]}  until {expires(certificate):%Y-%m-%d} " in run("list", "--dir", keys)

    run("remove", "pi-1", "--dir", keys)
    assert [device.name for device in list_devices(keys)] == ["pi-2"]
    assert not folder.exists()
    assert not file.exists()
    run("add", "pi-1", "--dir", keys, "--days", "7")
    assert days_left(file.read_bytes()) == 7
    assert key_of(file.read_bytes()) != key_of(certificate)


def test_a_device_that_made_its_own_key(keys, tmp_path):
    request = tmp_path / "device.csr"
    command = (
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout device.key -subj /CN=ignored "
        f"-out {request}"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    folder = keys / "devices" / "own"
    assert f"copy what is in {folder} to it, beside its device.key" in run(
        "add", "own", "--dir", keys, "--request", request
    )
    assert sorted(each.name for each in folder.iterdir()) == ["ca.crt", "device.crt"]
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    assert device_keys(tmp_path, insecure=False).name == "own"
    with pytest.raises(BouquetError, match=r"The key of .*device\.csr is that of own already"):
        add_device(keys, "twin", request)
    renew_device(keys, "own", 4000)
    with pytest.raises(BouquetError, match=r"is that of own already"):
        add_device(keys, "twin", request)
    remove_device(keys, "own")
    add_device(keys, "twin", request)
    assert common_name((keys / "registered" / "twin.crt").read_bytes()) == "twin"


def test_a_request_that_is_none(keys, tmp_path):
    def ask(*arguments):
        command = f"openssl req -new -nodes -keyout {tmp_path}/k -subj /CN=x".split()
        return subprocess.run([*command, *arguments], check=True, capture_output=True).stdout

    good = ask("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    altered = x509.load_pem_x509_csr(good).public_bytes(serialization.Encoding.DER).replace(b"\x0c\x01x", b"\x0c\x01y")
    for content, reason in (
        (ask("-newkey", "rsa:2048"), r"is not ECDSA on P-256\. .*openssl req -new"),
        (ask("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"), "is not ECDSA on P-256"),
        ((keys / "server.crt").read_bytes(), r"is no certificate request .*openssl req -new"),
        (good[:-60], "is no certificate request"),
        (x509.load_der_x509_csr(altered).public_bytes(serialization.Encoding.PEM), "The signature .* is false"),
    ):
        (tmp_path / "device.csr").write_bytes(content)
        with pytest.raises(BouquetError, match=reason):
            add_device(keys, "other", tmp_path / "device.csr")
    with pytest.raises(BouquetError, match=r"nowhere\.csr cannot be read"):
        add_device(keys, "other", tmp_path / "nowhere.csr")
    assert list_devices(keys) == []
    assert not (keys / "devices").exists()


def handshake(keys, server, client):
    """What each end says of a handshake on loopback: None, or its error. Names are not looked at."""
    folders = {"server": (keys / "server.crt", keys / "server.key")} | {
        folder.name: (folder / "device.crt", folder / "device.key") for folder in (keys / "devices").iterdir()
    }
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)]
    for context, pair in zip(contexts, (server, client), strict=True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(keys / "ca.crt")
        context.load_cert_chain(*folders[pair])

    def ends(context, raw, server_side):
        try:
            with context.wrap_socket(raw, server_side=server_side) as end:
                end.sendall(b"x")
                end.recv(1)  # in TLS 1.3 a client learns only here that it was refused
        except OSError as error:
            return error
        return None

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        to_server = socket.create_connection(listener.getsockname(), timeout=30)
        accepted, _ = listener.accept()
        accepted.settimeout(30)
        return [
            done.result()
            for done in (
                threads.submit(ends, contexts[0], accepted, True),
                threads.submit(ends, contexts[1], to_server, False),
            )
        ]


def test_a_device_cannot_pass_itself_off_as_the_server_nor_the_server_as_a_device(keys):
    add_device(keys, "pi")
    add_device(keys, "thief")
    assert handshake(keys, "server", "pi") == [None, None]
    _, refused = handshake(keys, "thief", "pi")
    assert isinstance(refused, ssl.SSLCertVerificationError)
    assert refused.verify_code == INVALID_PURPOSE
    refused, _ = handshake(keys, "server", "server")
    assert isinstance(refused, ssl.SSLCertVerificationError)
    assert refused.verify_code == INVALID_PURPOSE
    for file, purpose in (
        ("server.crt", ExtendedKeyUsageOID.SERVER_AUTH),
        ("registered/pi.crt", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        extensions = x509.load_pem_x509_certificate((keys / file).read_bytes()).extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
    renew_device(keys, "pi", 4000)
    assert handshake(keys, "server", "pi") == [None, None]


@pytest.mark.parametrize("name", ["", "../pi", ".pi", "a/b", "a b", "x" * 64])
def test_a_name_that_is_no_file_name(keys, name):
    with pytest.raises(BouquetError, match="cannot be used"):
        add_device(keys, name)
    with pytest.raises(BouquetError, match=r"No device .* is registered"):
        remove_device(keys, name)


def test_a_devices_files_belong_together(keys):
    folder, other = add_device(keys, "pi"), add_device(keys, "other")
    shutil.copy(keys / "server.crt", folder / "device.crt")
    with pytest.raises(BouquetError, match=r"device\.crt is not a device's certificate: it is for 'Bouquet server'"):
        device_keys(folder, insecure=False)
    shutil.copy(other / "device.crt", folder)
    with pytest.raises(BouquetError, match=r"device\.key cannot be read, or is not the private key of .*device\.crt"):
        device_keys(folder, insecure=False)
    shutil.copy(other / "device.key", folder)
    assert device_keys(folder, insecure=False).name == "other"
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    for content in (b"garbage", locked):  # where there is a terminal, OpenSSL would ask for the password
        (folder / "device.key").write_bytes(content)
        with pytest.raises(BouquetError, match=r"device\.key cannot be read, or is not"):
            device_keys(folder, insecure=False)
    for name in ("ca.crt", "device.crt"):
        (folder / name).write_text("garbage")
        with pytest.raises(BouquetError, match=rf"{name} is no certificate"):
            device_keys(folder, insecure=False)


def test_a_name_twice_and_a_folder_without_keys(keys, tmp_path):
    add_device(keys, "pi")
    with pytest.raises(BouquetError, match=r"No device '\.\./registered/pi' is registered"):
        remove_device(keys, "../registered/pi")
    with pytest.raises(BouquetError, match=r"There is a device pi already .*bouquet keys remove pi"):
        add_device(keys, "pi")
    with pytest.raises(BouquetError, match="bouquet keys init"):
        add_device(tmp_path / "none", "pi")
    with pytest.raises(BouquetError, match="holds no keys"):
        list_devices(tmp_path / "none")
    with pytest.raises(BouquetError, match="give one name"):
        run("add", "a", "b", "--request", "x.csr", "--dir", keys)
    remove_device(keys, "pi")
    (keys / "devices" / "pi").mkdir(parents=True)
    with pytest.raises(BouquetError, match=r"devices/pi is there already and is not overwritten"):
        add_device(keys, "pi")
    assert list_devices(keys) == []
    (keys / "registered" / "torn.crt").write_text("garbage")
    with pytest.raises(BouquetError, match=r"torn\.crt is no certificate"):
        list_devices(keys)
    remove_device(keys, "torn")
    assert list_devices(keys) == []
