"""``bouquet keys``, in this process: what it makes, and what it refuses."""

import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.keys.store import (
    DeviceKeys,
    add_device,
    device_keys,
    init_keys,
    list_devices,
    remove_device,
    renew_server,
    server_keys,
)
from common.errors import BouquetError
from common.trust.public_keys import read_public_key


@pytest.fixture
def keys(tmp_path):
    init_keys(tmp_path / "keys", ["server.local", "192.168.1.10"])
    return tmp_path / "keys"


def names(keys):
    certificate = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes())
    alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in alternative]


def check_pair(keys):
    """OpenSSL accepts the server's certificate and key, and the authority as their authority."""
    context = ssl.create_default_context(cafile=keys / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    server = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes()))


def test_init_names_the_server_as_devices_and_its_own_programs_reach_it(keys):
    assert names(keys) == ["server.local", "192.168.1.10", "localhost", "127.0.0.1"]
    check_pair(keys)
    for secret in ("ca.key", "server.key"):
        assert stat.S_IMODE((keys / secret).stat().st_mode) == 0o600


def test_init_overwrites_nothing_and_server_renews_from_the_same_authority(keys):
    authority = (keys / "ca.crt").read_bytes()
    with pytest.raises(BouquetError, match=r"is there already and is not overwritten.*bouquet keys server"):
        init_keys(keys, ["other"])
    runner = CliRunner()
    done = runner.invoke(app, ["keys", "server", "--dir", str(keys), "--host", "fd00::1", "--days", "30"])
    assert done.exit_code == 0, done.output
    # what it held stays, and it says what it holds
    assert names(keys) == ["server.local", "192.168.1.10", "localhost", "127.0.0.1", "fd00::1"]
    assert "holds    server.local, 192.168.1.10, localhost, 127.0.0.1, fd00::1" in done.output.replace("\n", " ")
    assert (keys / "ca.crt").read_bytes() == authority
    check_pair(keys)
    (keys / "ca.key").write_bytes((keys / "server.key").read_bytes())
    with pytest.raises(BouquetError, match=r"is not that of its certificate"):
        renew_server(keys, ["server.local"])


def test_names_leave_the_servers_certificate_only_when_asked_to(keys):
    runner = CliRunner()

    def server(*arguments):
        return runner.invoke(app, ["keys", "server", "--dir", str(keys), *arguments], catch_exceptions=False)

    assert server("--remove-host", "192.168.1.10", "--host", "10.0.0.2").exit_code == 0
    assert names(keys) == ["server.local", "localhost", "127.0.0.1", "10.0.0.2"]
    before = (keys / "server.crt").read_bytes()
    assert server().exit_code == 0  # before it expires
    assert names(keys) == ["server.local", "localhost", "127.0.0.1", "10.0.0.2"]
    assert (keys / "server.crt").read_bytes() != before
    check_pair(keys)
    with pytest.raises(
        BouquetError, match=r"'192\.168\.1\.10' cannot be taken .* it is not in it\. It holds server\.loc"
    ):
        server("--remove-host", "192.168.1.10")
    with pytest.raises(BouquetError, match=r"SuperLink's own programs reach it by that"):
        server("--remove-host", "127.0.0.1")


@pytest.mark.parametrize("host", ["server.local:9092", "http://server", "a b", ""])
def test_a_host_that_is_none(tmp_path, host):
    with pytest.raises(BouquetError, match="neither a host name nor an IP address"):
        init_keys(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_a_device_from_its_first_day_to_its_last(keys):
    runner = CliRunner()
    done = runner.invoke(app, ["keys", "add", "pi-1", "pi-2", "--dir", str(keys)])
    assert done.exit_code == 0, done.output
    assert f"copy {keys}/devices/pi-1 to it" in done.output.replace("\n", "")
    folder = keys / "devices" / "pi-1"
    assert sorted(file.name for file in folder.iterdir()) == ["ca.crt", "device.key", "device.pub"]
    assert stat.S_IMODE((folder / "device.key").stat().st_mode) == 0o600
    private = load_ssh_private_key((folder / "device.key").read_bytes(), None)
    assert private.key_size == 384
    assert (keys / "registered" / "pi-1.pub").read_bytes() == (folder / "device.pub").read_bytes()
    assert device_keys(folder, insecure=False) == DeviceKeys(folder / "device.key", folder / "ca.crt", "pi-1")
    fingerprint = read_public_key(folder / "device.pub").fingerprint
    assert [(d.name, d.fingerprint == fingerprint) for d in list_devices(keys)] == [("pi-1", True), ("pi-2", False)]
    assert f"pi-1  {fingerprint}" in runner.invoke(app, ["keys", "list", "--dir", str(keys)]).output

    assert runner.invoke(app, ["keys", "remove", "pi-1", "--dir", str(keys)]).exit_code == 0
    assert [device.name for device in list_devices(keys)] == ["pi-2"]
    assert not folder.exists()
    add_device(keys, "pi-1")
    assert read_public_key(folder / "device.pub").fingerprint != fingerprint
    with pytest.raises(BouquetError, match=r"was removed .* and cannot come back"):
        add_device(keys, "again", keys / "removed" / "pi-1.1.pub")


def test_a_device_that_made_its_own_key(keys, tmp_path):
    init_keys(tmp_path / "elsewhere", ["x"])
    add_device(tmp_path / "elsewhere", "made")
    public = tmp_path / "elsewhere" / "devices" / "made" / "device.pub"
    assert add_device(keys, "own", public) is None
    assert not (keys / "devices").exists()
    with pytest.raises(BouquetError, match=r"is that of own already"):
        add_device(keys, "twin", public)
    (tmp_path / "rsa.pub").write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8kY0QFXLmNl5oV0kzgl0tZKNlQq3eNDzDJq1mrDU6T x"
    )
    with pytest.raises(BouquetError, match="is not an ECDSA key"):
        add_device(keys, "other", tmp_path / "rsa.pub")
    with pytest.raises(BouquetError, match=r"server\.key is no OpenSSH public key"):
        add_device(keys, "other", keys / "server.key")
    with pytest.raises(BouquetError, match=r"nowhere\.pub cannot be read"):
        add_device(keys, "other", tmp_path / "nowhere.pub")


@pytest.mark.parametrize("name", ["", "../pi", ".pi", "a/b", "a b", "x" * 64])
def test_a_name_that_is_no_file_name(keys, name):
    with pytest.raises(BouquetError, match="cannot be used"):
        add_device(keys, name)
    with pytest.raises(BouquetError, match=r"No device .* is registered"):
        remove_device(keys, name)


def test_a_comment_that_is_no_name_is_none(keys):
    folder = add_device(keys, "pi")
    assert device_keys(folder, insecure=False).name == "pi"
    public = folder / "device.pub"
    public.write_text(public.read_text().replace(" pi\n", " ../pi\n"))
    assert device_keys(folder, insecure=False).name is None


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
        CliRunner().invoke(
            app, ["keys", "add", "a", "b", "--public-key", "x.pub", "--dir", str(keys)], catch_exceptions=False
        )


def test_secure_unless_told_otherwise(keys, tmp_path):
    secure = server_keys(keys, insecure=False)
    assert secure is not None
    assert secure.registered == keys / "registered"
    assert server_keys(None, insecure=True) is None
    assert device_keys(None, insecure=True) is None
    with pytest.raises(BouquetError, match=r"no none/ca\.crt: .*bouquet keys init --dir none --host .*--insecure"):
        server_keys(tmp_path.relative_to(tmp_path) / "none", insecure=False)
    with pytest.raises(BouquetError, match=r"device\.key: .*bouquet keys add DEVICE, copy .* --keys"):
        device_keys(keys, insecure=False)
    with pytest.raises(BouquetError, match="either --keys"):
        server_keys(keys, insecure=True)
