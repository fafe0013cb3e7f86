"""One program a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.system.locks import hold, is_held, is_locked, locked

HOLDS = """
import sys
from pathlib import Path
from bouquet.common.system.locks import locked
with locked(Path(sys.argv[1]), "the state folder", "It is another's."):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_program_is_told_who_holds_the_folder_until_that_one_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_locked(folder)
        message = f"The state folder {folder} is in use by process {holder.pid}. It is another's."
        with pytest.raises(BouquetError, match=message), locked(folder, "the state folder", "It is another's."):
            pytest.fail("both hold it")
        holder.kill()
    assert not is_locked(folder)
    with locked(folder, "the state folder", ""):
        assert is_locked(folder)


HOLDS_A_FILE = """
import sys
from pathlib import Path
from bouquet.common.system.locks import hold
hold(Path(sys.argv[1]), "12")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_file_is_held_until_its_process_is_gone_also_where_nobody_collected_that(tmp_path: Path) -> None:
    file = tmp_path / ".who"
    assert not is_held(file)
    command = [sys.executable, "-c", HOLDS_A_FILE, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert (is_held(file), file.read_text()) == (True, "12")
        holder.kill()
        assert holder.stdout.read() == b""  # ended, and a zombie: nobody has waited for it yet
        assert not is_held(file)


def test_what_cannot_be_held_stops_nobody(tmp_path: Path) -> None:
    hold(tmp_path / "nowhere" / ".who", "12")
    assert not is_held(tmp_path / "nowhere" / ".who")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(BouquetError, match=r"The state folder, .*file/state, cannot be made: Not a directory"),
        locked(tmp_path / "file" / "state", "the state folder", ""),
    ):
        pytest.fail("there is no such folder")
    assert not is_locked(tmp_path / "nowhere")
