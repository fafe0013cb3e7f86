"""A file or folder of the user's that has the name of one of Bouquet's packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STRATEGY = """
from strategies import FeSEM


class Mine(FeSEM):
    '''Another name.'''
"""


def bouquet(folder, *arguments, module=False, path=False):
    program = [sys.executable, "-m", "bouquet"] if module else [str(Path(sys.executable).with_name("bouquet"))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": "."} if path else {})
    environment["RAY_memory_monitor_refresh_ms"] = "0"  # Ray would end clients of a machine whose memory is short
    return subprocess.run(
        [*program, *arguments], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "common.py").write_text("raise SystemExit('mine')\n")
    (tmp_path / "mine.py").write_text(STRATEGY)
    return tmp_path


@pytest.mark.parametrize("how", [{"module": True}, {"path": True}])
def test_what_hides_a_package_is_named(folder, how):
    done = bouquet(folder, "--version", **how)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bouquet: {folder / 'common.py'} hides Bouquet's package 'common'. Rename it")
    assert done.stderr.count("\n") == 1


def test_the_program_itself_does_not_look_there_and_takes_a_strategy_by_its_file(folder):
    words = ["simulate", "--strategy", "./mine.py:Mine", "--clients", "2", "--rounds", "1", "--out", "run"]
    words += ["--set", "strategy.num_clusters=2", "--set", "train.local_epochs=1"]
    done = bouquet(folder, *words, "--set", "simulation.engine=inline")
    assert done.returncode == 0, done.stderr
    assert (folder / "run" / "summary.json").is_file()


def test_nor_do_rays_processes_which_take_a_strategy_by_its_file(folder):
    """Whose clients import client and common, and would run the user's."""
    (folder / "client.py").write_text("raise SystemExit('mine')\n")
    words = ["simulate", "--strategy", "./mine.py:Mine", "--clients", "2", "--rounds", "1", "--out", "run"]
    words += ["--set", "strategy.num_clusters=2", "--set", "train.local_epochs=1"]
    done = bouquet(folder, *words, "--set", "simulation.engine=ray")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["clients"], summary["strategy"]) == (2, "./mine.py:Mine")
