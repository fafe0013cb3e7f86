"""Files that are there whole or not at all, also after a process was killed in the middle of one."""

import os
import subprocess
import sys

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import sweep, temporary_beside, write_atomically, write_secret


def test_what_a_killed_process_had_not_finished_is_swept_away_and_nothing_else(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = [".lock", "state.json", ".hidden", f".state.json.{os.getppid()}", f".leaf.{ended.pid}.jpg"]
    for name in [*kept, f".state.json.{ended.pid}", f".of-one-before.{os.getpid()}"]:
        (tmp_path / name).write_text("half")
    (tmp_path / f".round-000003.{ended.pid}").mkdir()
    (tmp_path / f".round-000003.{ended.pid}" / "state.json").write_text("half")
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    sweep(tmp_path / "none")


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    file = tmp_path / "state.json"
    write_atomically(file, b"before")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BouquetError, match=r"state\.json cannot be written: No space left on device"):
        write_atomically(file, b"after")
    assert file.read_bytes() == b"before"
    assert not temporary_beside(file).exists()


def test_a_secret_is_never_readable_by_others_whatever_lay_there_or_the_umask_is(tmp_path, monkeypatch):
    file, seen = tmp_path / "key", []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append(os.fstat(handle).st_mode & 0o777), real(handle)))
    for path in (file, temporary_beside(file)):
        path.write_bytes(b"open")
        path.chmod(0o666)
    umask = os.umask(0)
    try:
        write_secret(file, b"secret")
    finally:
        os.umask(umask)
    assert (file.read_bytes(), file.stat().st_mode & 0o777, seen) == (b"secret", 0o600, [0o600])
    assert os.listdir(tmp_path) == ["key"]
