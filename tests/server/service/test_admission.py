"""Which devices the folder of certificates admits, and what its operator is told."""

import os
import shutil

import pytest

from bouquet.common.trust.certificates import fingerprint, read
from bouquet.keys.store import add_device, init_keys, remove_device, renew_device
from bouquet.server.service.admission import Admission


@pytest.fixture
def keys(tmp_path):
    init_keys(tmp_path / "keys", ["server.local"])
    for name in ("a", "b"):
        add_device(tmp_path / "keys", name)
    return tmp_path / "keys"


@pytest.fixture
def admission(keys):
    made = Admission(keys / "registered", [].append)
    made.lines = made.report.__self__
    return made


def names(admission):
    return {*admission.names.values()}


def test_who_comes_and_goes_is_said_once_and_nothing_is_read_in_vain(admission, keys):
    assert admission.look()
    assert not admission.look()
    remove_device(keys, "b")
    add_device(keys, "c")
    assert admission.look()
    assert not admission.look()
    assert names(admission) == {"a", "c"}
    assert admission.lines == ["registered a", "registered b", "registered c", "removed b: it is shut out"]


def test_a_folder_that_is_as_it_was_is_not_listed_each_time(admission, keys, monkeypatch):
    os.utime(keys / "registered", (1e9, 1e9))  # else another change may be of the same moment
    admission.look()
    listings, listed = [], Admission._listed
    monkeypatch.setattr(Admission, "_listed", lambda self: listings.append(0) or listed(self))
    (keys / "registered" / "a.crt").write_bytes((keys / "registered" / "b.crt").read_bytes())
    assert not admission.look()
    assert not listings
    monkeypatch.setattr("bouquet.server.service.admission.LISTING_SECONDS", 0)
    assert admission.look()
    assert listings
    assert names(admission) == {"b"}


def test_a_device_that_is_put_back_is_admitted_again(admission, keys, tmp_path):
    admission.look()
    shutil.move(keys / "registered" / "a.crt", tmp_path / "a.crt")
    admission.look()
    assert names(admission) == {"b"}
    shutil.move(tmp_path / "a.crt", keys / "registered" / "a.crt")
    admission.look()
    assert names(admission) == {"a", "b"}


def test_after_a_renewal_both_certificates_are_good_and_the_newest_is_to_be_sent(admission, keys):
    old = fingerprint(read(keys / "registered" / "a.crt")[0])
    renew_device(keys, "a")
    admission.look()
    new = fingerprint(admission.newest["a"])
    assert new != old
    assert (admission.names[new], admission.names[old]) == ("a", "a")


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERT", b"half"], ids=["empty", "cut in its head", "half"])
def test_nobody_is_shut_out_by_a_file_that_is_half_copied(admission, keys, content):
    admission.look()
    file = keys / "registered" / "a.crt"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
    remove_device(keys, "b")  # nor by what is gone meanwhile: the list is not whole
    admission.look()
    assert names(admission) == {"a", "b"}
    assert "a.crt" in admission.lines[-1]
    assert "no device is shut out" in admission.lines[-1]
    file.write_bytes(whole)
    admission.look()
    assert names(admission) == {"a"}


@pytest.mark.parametrize("broken", ["link to itself", "link to nothing", "folder", "unreadable name"])
def test_what_is_no_certificate_holds_up_no_other_device(admission, keys, broken):
    admission.look()
    odd = keys / "registered" / ("\udcff.crt" if broken == "unreadable name" else "odd.crt")
    if broken.startswith("link"):
        odd.symlink_to(odd if broken == "link to itself" else keys / "nothing")
    elif broken == "folder":
        odd.mkdir()
    else:
        odd.write_bytes(b"")
    add_device(keys, "c")
    admission.look()
    assert names(admission) == {"a", "b", "c"}


def test_a_folder_that_is_gone_for_a_while_shuts_nobody_out(admission, keys):
    admission.look()
    os.rename(keys / "registered", keys / "elsewhere")
    for _ in range(3):
        assert not admission.look()
    assert names(admission) == {"a", "b"}
    assert len([line for line in admission.lines if "cannot be read" in line]) == 1
