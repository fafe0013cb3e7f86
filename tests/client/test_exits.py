import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys
sys.argv[0] = {program!r}
from flwr.supernode.runtime import run_clientapp as runtime
from client.exits import leave_at_once

atexit.register(lambda: print("taken apart"))
leave_at_once()
leave_at_once()
print("answered", end="")
runtime.flwr_exit({code})
"""


def run(program, code):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(program=program, code=code)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("code", "status"), [(0, 0), (600, 1)])
def test_a_messages_process_ends_at_once_with_flowers_status_and_all_that_was_said(code, status):
    assert run("/somewhere/flwr-clientapp", code) == (status, "answered")


def test_other_programs_end_as_ever():
    assert run("/somewhere/flwr-serverapp", 0) == (0, "answeredtaken apart\n")
