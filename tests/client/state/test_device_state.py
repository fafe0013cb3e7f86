import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import RecordDict

from bouquet.client.state.device_state import PERSONAL, DeviceState
from bouquet.client.state.store import ContextStore, FolderStore
from bouquet.common.errors import BouquetError

ONE = {PERSONAL: {"fc.weight": np.array([[1.0, 2.0]], dtype=np.float32), "n": np.array(3, dtype=np.int64)}}
TWO = {PERSONAL: {"fc.weight": np.array([[5.0, 6.0]], dtype=np.float32)}, "center-0": {"fc.weight": np.zeros((1, 2))}}


@pytest.fixture(params=["folder", "context"])
def store(request, tmp_path):
    return FolderStore(tmp_path / "state") if request.param == "folder" else ContextStore(RecordDict())


def test_only_the_last_three_rounds_stay(store):
    state = DeviceState(store)
    for round_ in range(1, 6):
        state.keep("run", round_, ONE, {})
    assert state.runs.of("run").names() == [
        "round-000003.safetensors",
        "round-000004.safetensors",
        "round-000005.safetensors",
    ]
    # The server died in round 5, and its checkpoint of round 4 is damaged: it repeats round 4.
    assert state.recall("run", 4).round == 3


def test_the_run_that_lasted_longest_stays_however_many_come_after_it(store, monkeypatch):
    clock = [1e9]
    monkeypatch.setattr("bouquet.client.state.kept_runs.time.time", lambda: clock[0])
    state = DeviceState(store)

    def keep(run, *rounds, seconds=0):
        for round_ in rounds:
            clock[0] += seconds
            state.keep(run, round_, ONE, {})

    def there():
        return {run for run in ("home", "one", "two", "three") if state.recall(run, 100)}

    keep("home", *range(1, 11), seconds=100)
    for number in range(50):
        keep(f"{number}", 1, seconds=1000)  # each as long as all of the owner's run, but each of them a moment itself
    assert (len(store.names_below()), there()) == (2, {"home"})
    assert [state.recall("home", before).round for before in (11, 10, 9)] == [10, 9, 8]
    keep("one", 1, 2, seconds=2000)  # as long in one run
    keep("two", 1)
    assert there() == {"one", "two"}
    clock[0] -= 1e8
    keep("three", 1)
    store.delete("runs.json")
    keep("one", 3)
    assert len(there()) == 2
    store.write("runs.json", b"[1]")
    keep("home", 1)
    assert len(store.names_below()) == 2


def test_a_server_fills_half_of_the_room_and_no_more(tmp_path, monkeypatch):
    state = DeviceState(FolderStore(tmp_path))
    model = {PERSONAL: {"w": np.zeros(2 << 18, np.float32)}}  # 2 MiB
    room = 11 << 20

    def usage(_):
        return SimpleNamespace(free=room - sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))

    monkeypatch.setattr("bouquet.client.state.room.shutil.disk_usage", usage)
    for round_ in (1, 2):
        state.keep("run", round_, model, {})
    with pytest.raises(BouquetError, match=r"asks this device to keep 2 MB more\. .* may take no more than it leaves"):
        state.keep("run", 3, model, {})
    assert state.latest().round == 2
    state.keep("run", 3, ONE, {})  # small ones are always kept
    assert state.latest().round == 3


def test_an_obsolete_blob_goes_and_leaves_nothing_of_its_content(store):
    store.write("old", b"much longer than the new one")
    store.write("new", b"short", obsolete="old")
    assert (store.read("new"), store.names()) == (b"short", ["new"])
    store.write("newer", b"short", obsolete="is not there")
    assert store.names() == ["new", "newer"]


def test_a_backup_by_hard_links_stays_as_it_was(tmp_path):
    state = DeviceState(FolderStore(tmp_path / "state"))
    for round_ in (1, 2, 3):
        state.keep("run", round_, ONE, {"round": round_})
    shutil.copytree(tmp_path / "state", tmp_path / "backup", copy_function=os.link)
    for round_ in (4, 5, 6):
        state.keep("run", round_, TWO, {"round": round_})
    backup = DeviceState(FolderStore(tmp_path / "backup"))
    assert [backup.recall("run", round_ + 1).facts["round"] for round_ in (1, 2, 3)] == [1, 2, 3]


def test_a_file_of_another_user_is_not_written_over(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    store.write("old", b"theirs")
    inode = (tmp_path / "old").stat().st_ino
    with (tmp_path / "old").open("rb") as held:  # so that its inode is not given to the next file
        monkeypatch.setattr("bouquet.client.state.store.os.geteuid", lambda: os.getuid() + 1)
        store.write("new", b"ours", obsolete="old")
        assert held.read() == b"theirs"
        assert (tmp_path / "new").stat().st_ino != inode
    assert store.names() == ["new"]


def test_what_an_owner_puts_beside_the_runs_stays(tmp_path, monkeypatch):
    clock = [1e9]
    monkeypatch.setattr("bouquet.client.state.kept_runs.time.time", lambda: clock[0])
    state = DeviceState(FolderStore(tmp_path))
    for clock[0] in (1e9, 2e9):  # a run of years, which goes before any other
        state.keep("run", 1, ONE, {})
    (kept,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    copy = shutil.copytree(kept, tmp_path / f"{kept.name}-copy")
    shutil.copy(copy / "round-000001.safetensors", tmp_path / "round-000001.safetensors.old")
    for number in range(5):
        DeviceState(FolderStore(tmp_path)).keep(f"{number}", 1, ONE, {})
    assert (copy / "round-000001.safetensors").is_file()
    assert (tmp_path / "round-000001.safetensors.old").is_file()


@pytest.mark.parametrize(("before", "left"), [((9,), [9]), ((8, 9), [9]), ((1, 2, 3), [2, 3])])
def test_a_device_that_dies_while_it_writes_still_has_a_model(tmp_path, monkeypatch, before, left):
    state = DeviceState(FolderStore(tmp_path))
    for round_ in before:
        state.keep("run", round_, ONE, {})

    def dies(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("bouquet.client.state.store.os.fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        state.keep("run", 4 if len(before) > 2 else 1, TWO, {})
    after = DeviceState(FolderStore(tmp_path))
    assert after.array_versions("run", "round") == left[::-1]
    assert after.latest().slots[PERSONAL]["fc.weight"].tolist() == [[1.0, 2.0]]


def test_a_single_bit_that_turned_counts_as_lost_wherever_it_is(store):
    state = DeviceState(store)
    state.keep("run", 1, ONE, {"seen": 3})
    state.keep("run", 2, ONE, {"seen": 4})
    store = state.runs.of("run")
    whole = store.read("round-000002.safetensors")
    assert state.recall("run", 3).round == 2
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        store.write("round-000002.safetensors", bytes(damaged))
        kept = state.recall("run", 3)
        if kept.round == 2:  # in what pads the header
            assert whole[position : position + 1] == b" "
        assert kept.slots[PERSONAL]["fc.weight"].tolist() == [[1.0, 2.0]]
    for length in range(0, len(whole), 7):
        store.write("round-000002.safetensors", whole[:length])
        assert state.recall("run", 3).round == 1


def test_the_identity_is_made_once_and_kept(store):
    state = DeviceState(store)
    identity = state.identity()
    assert identity.startswith("device-")
    assert DeviceState(store).identity() == identity
    assert state.identity("mine") == "mine"
    store.write("identity.json", json.dumps({"other": 1}).encode())
    with pytest.raises(BouquetError, match=r"identity\.json is damaged"):
        state.identity()


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    store.write("a", b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bouquet.client.state.store.os.replace", full)
    with pytest.raises(BouquetError, match=r"cannot be written .* No space left"):
        store.write("a", b"new")
    assert store.read("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BouquetError, match=r"The state folder .*/file/state cannot be made"):
        FolderStore(tmp_path / "file" / "state")


def test_what_a_link_names_is_not_written_over(tmp_path):
    store = FolderStore(tmp_path / "state")
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "state" / "old").symlink_to(tmp_path / "theirs")
    store.write("new", b"ours", obsolete="old")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert (store.names(), store.read("new")) == (["new"], b"ours")
