"""A file or folder of the user's that has the name of one of Bouquet's packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import load_settings
from experiments.simulation.run import simulate

STRATEGY = """
from strategies import FeSEM


class Mine(FeSEM):
    '''Another name.'''
"""


def bouquet(folder, *arguments, module=False, path=False):
    program = [sys.executable, "-m", "bouquet"] if module else [str(Path(sys.executable).with_name("bouquet"))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": "."} if path else {})
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


def test_nor_do_rays_processes(folder):
    """Whose clients import client and common, and would run the user's."""
    (folder / "client.py").write_text("raise SystemExit('mine')\n")
    words = ["simulate", "--clients", "2", "--rounds", "1", "--out", "run", "--set", "train.local_epochs=1"]
    done = bouquet(folder, *words, "--set", "strategy.num_clusters=2", "--set", "simulation.engine=ray")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "run" / "summary.json").read_text())["clients"] == 2


def test_a_strategy_by_its_file_on_ray(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(STRATEGY)
    monkeypatch.chdir(tmp_path)
    changes = ["strategy.name=./mine.py:Mine", "strategy.num_clusters=2", "data.clients=2", "run.rounds=1"]
    summary = simulate(load_settings(None, [*changes, "train.local_epochs=1"]), tmp_path / "run")
    assert summary["strategy"] == "./mine.py:Mine"
