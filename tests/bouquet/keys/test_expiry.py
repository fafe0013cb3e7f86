"""Certificates that expire, and their renewal."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.trust.certificates import common_name, expires, fingerprint, read
from bouquet.keys.store import (
    add_device,
    device_keys,
    expiring,
    init_keys,
    list_devices,
    renew_device,
    renew_server,
    server_keys,
)
from tests.helpers.key_store import check_pair, days_left, key_of, names, run


def test_init_overwrites_nothing_and_server_renews_from_the_same_authority(keys):
    authority = (keys / "ca.crt").read_bytes()
    with pytest.raises(BouquetError, match=r"is there already and is not overwritten.*bouquet keys server"):
        init_keys(keys, ["other"])
    done = run("server", "--dir", keys, "--host", "fd00::1", "--days", "30")
    # what it held stays, and it says what it holds
    assert names(keys) == ["server.local", "192.168.1.10", "localhost", "127.0.0.1", "fd00::1"]
    assert "holds    server.local, 192.168.1.10, localhost, 127.0.0.1, fd00::1" in done
    assert (keys / "ca.crt").read_bytes() == authority
    check_pair(keys)
    (keys / "ca.key").write_bytes((keys / "server.key").read_bytes())
    with pytest.raises(BouquetError, match=r"is not that of its certificate"):
        renew_server(keys, ["server.local"])


def test_a_renewed_certificate_is_for_the_same_key_and_stands_before_the_old_one(keys):
    folder, file = add_device(keys, "pi", days=100), keys / "registered" / "pi.crt"
    gone = add_device(keys, "gone", days=100)
    shutil.rmtree(gone)
    (first,) = read(file)
    done = run("renew", "pi", "gone", "--dir", keys, "--days", "200")
    assert f"renewed  pi: until {expires(read(file)[0]):%Y-%m-%d} renewed  gone: until" in done
    second, old = read(file)
    assert old == first
    assert (folder / "device.crt").read_bytes() == second
    assert (days_left(second), common_name(second)) == (200, "pi")
    assert key_of(second) == key_of(first)
    assert device_keys(folder, insecure=False).name == "pi"
    assert not gone.exists()
    renew_device(keys, "pi", 300)
    third, *before = read(file)
    assert before == [second]
    assert [device.fingerprint for device in list_devices(keys) if device.name == "pi"] == [fingerprint(third)]


def test_a_renewal_that_is_refused_changes_nothing(keys, tmp_path):
    add_device(keys, "pi")
    before = (keys / "registered" / "pi.crt").read_bytes()
    with pytest.raises(BouquetError, match=r"pi cannot be given a new certificate\. .* earlier than the one that"):
        renew_device(keys, "pi", 30)
    init_keys(tmp_path / "other", ["x"])
    shutil.copy(keys / "registered" / "pi.crt", tmp_path / "other" / "registered")
    with pytest.raises(BouquetError, match=r"pi cannot be given a new certificate\. .* not of this authority"):
        renew_device(tmp_path / "other", "pi")
    assert (tmp_path / "other" / "registered" / "pi.crt").read_bytes() == before
    with pytest.raises(BouquetError, match=r"No device 'nobody' is registered .*; registered: pi\."):
        renew_device(keys, "nobody")
    (keys / "ca.key").unlink()
    for act in (renew_device, lambda keys, name: add_device(keys, "new")):
        with pytest.raises(BouquetError, match=r"ca\.key cannot be read .*it makes certificates: give the folder"):
            act(keys, "pi")
    assert (keys / "registered" / "pi.crt").read_bytes() == before
    for arguments in ((), ("pi", "--all")):
        with pytest.raises(BouquetError, match="Name the devices, or give --all"):
            run("renew", *arguments, "--dir", keys)


def test_what_expires_is_said_with_the_command_to_give(keys):
    now = datetime.now(UTC)
    assert expiring(keys, now) == []
    renew_server(keys, days=20)
    add_device(keys, "a", days=-1)
    add_device(keys, "b", days=40)
    add_device(keys, "c", days=10)
    renew_device(keys, "c", days=100)
    (keys / "registered" / "torn.crt").write_text("garbage")
    ends = f"{expires((keys / 'server.crt').read_bytes()):%Y-%m-%d}"
    lines = expiring(keys, now)
    assert lines[0] == (
        f"The certificate of the server expires on {ends}; make a new one: bouquet keys server --dir {keys}"
    )
    assert [line.split(" on ")[0] for line in lines[1:]] == ["The certificate of a expired"]
    assert lines[1].endswith(f"; make a new one: bouquet keys renew a --dir {keys}")
    later = expiring(keys, now, days=60)
    assert [line.split(" on ")[0] for line in later[2:]] == ["The certificate of b expires"]
    last = expiring(keys, now + timedelta(days=4000))
    assert last[0].startswith("The certificate of the authority expired on ")
    assert last[0].endswith("copy each its folder: bouquet keys init --dir NEW --host NAME_OR_IP")
    assert [line.split()[3] for line in last[2:]] == ["a", "b", "c"]


def test_a_server_does_not_start_with_what_has_expired(keys, tmp_path):
    renew_server(keys, days=-1)
    with pytest.raises(BouquetError, match=r"of the server expired on .*: bouquet keys server --dir .*/keys$"):
        server_keys(keys, insecure=False)
    init_keys(tmp_path / "old", ["x"], days=-1)
    renew_server(tmp_path / "old")
    with pytest.raises(BouquetError, match=r"of the authority expired on .*: bouquet keys init --dir NEW --host"):
        server_keys(tmp_path / "old", insecure=False)
    (keys / "server.crt").write_text("garbage")
    with pytest.raises(BouquetError, match=r"server\.crt is no certificate"):
        server_keys(keys, insecure=False)


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
    folder = add_device(keys, "pi")
    for name in ("ca.crt", "device.crt"):
        (folder / name).unlink()
        with pytest.raises(BouquetError, match=rf"There is no .*devices/pi/{name}: a device needs"):
            device_keys(folder, insecure=False)
    with pytest.raises(BouquetError, match="either --keys"):
        server_keys(keys, insecure=True)
