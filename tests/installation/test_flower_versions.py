"""Strategies, simulation and Flower's own processes with the oldest Flower that is allowed and the newest there is.

Flower and what it brings are in an environment of their own, all else is as in the environment of the tests.
"""

import tomllib

import pytest

from tests.installation.environments import ROOT, environment, own_packages, run

pytestmark = [pytest.mark.installation, pytest.mark.timeout(1800)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALLOWED = next(name for name in PROJECT["dependencies"] if name.startswith("flwr"))  # flwr>=OLDEST
CHECKS = [
    "tests/test_private_flower.py",
    "tests/test_quickstart_pytorch.py",
    "tests/test_flwr_run.py",
    "tests/federation/test_demo.py",
    "tests/experiments/simulation/test_run.py::test_ray_gives_the_same_result_beside_a_users_own_files",
]


@pytest.mark.parametrize("flower", [f"{ALLOWED.replace('>=', '==')}.*", ALLOWED], ids=["oldest", "newest"])
def test_what_works_with_every_flower(tmp_path, flower):
    python = environment(tmp_path / "environment", "--ignore-installed", flower, beneath=[*own_packages(), ROOT])
    print(run(python, "-c", "from importlib.metadata import version; print('Flower', version('flwr'))"))
    print(run(python, "-m", "pytest", "-rx", "-p", "no:cacheprovider", *CHECKS))
