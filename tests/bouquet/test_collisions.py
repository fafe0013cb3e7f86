"""Files of the user's that have the names of Bouquet's folders, as Flower's tutorials taught ``client.py``."""

import json
import os
import subprocess
import sys

import pytest

STRATEGY = """
from bouquet.strategies import FeSEM


class Mine(FeSEM):
    '''Another name.'''
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("client", "common", "experiments", "server", "strategies"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('mine')\n")
    (tmp_path / "mine.py").write_text(STRATEGY)
    return tmp_path


def test_a_strategy_in_a_file_is_simulated_beside_them(folder):
    words = ["simulate", "--strategy", "./mine.py:Mine", "--clients", "2", "--rounds", "1", "--out", "run"]
    words += ["--set", "strategy.num_clusters=2", "--set", "train.local_epochs=1", "--set", "simulation.engine=inline"]
    environment = {**os.environ, "PYTHONPATH": "."}
    command = [sys.executable, "-m", "bouquet", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["clients"], summary["strategy"]) == (2, "./mine.py:Mine")


def test_the_package_loads_nothing_before_a_name_is_asked_for(folder):
    program = (
        "import sys, bouquet\n"
        "assert not {'torch', 'flwr', 'numpy'} & {*sys.modules}\n"
        "assert {'FeSEM', 'InlineGrid', 'MethodStrategy', 'around', 'simulate'} < {*dir(bouquet)}\n"
        "names = 'FeSEM', 'InlineGrid', 'around', 'simulate'\n"
        "assert all(getattr(bouquet, name).__name__ == name for name in names)\n"
        "from bouquet import server\n"
        "assert server.__name__ == 'bouquet.server'\n"
        "assert not hasattr(bouquet, 'Nothing')\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
