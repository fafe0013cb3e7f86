"""Old names of what outside authors import still work, and say what they are called now."""

import importlib
import subprocess
import sys

import pytest

from common.renamed import NAMES

# As a package of an outside author had them before the rooms.
OUTSIDE = """
from client import local_sgd, standard
from client.session import Session
from common.datasets import Dataset, DatasetInfo, described
from common.layout import ParameterLayout
from common.partitions import ClientPart, partition
from experiments.inline import InlineGrid, scripted_client
from experiments.plot_style import new_figure, rounds_axis
from experiments.record import Run
from strategies import ClusteredStrategy, Matrix, Outcome, Vector, check_options, one_model
from strategies.clustered import ClusteredStrategy as Base
from strategies.mathematics import cluster_means, kmeans
from strategies.options import counts
from strategies.state import dump_state

import strategies

assert Base is ClusteredStrategy is strategies.MethodStrategy
assert local_sgd.train.__module__ == "client.training.sgd"
assert local_sgd.test.__module__ == "client.training.evaluation"
"""


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_says_the_new_one_and_has_what_it_had(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=NAMES[old].replace(".", r"\.").replace(" ", " and ")):
        module = importlib.import_module(old)
    for new in NAMES[old].split():
        for name, value in vars(importlib.import_module(new)).items():
            assert name.startswith("__") or getattr(module, name) is value
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing
    sys.modules.pop(old)


def test_code_of_before_runs_and_is_told_where_the_names_are():
    run = subprocess.run([sys.executable, "-W", "default", "-c", OUTSIDE], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    said = [line for line in run.stderr.splitlines() if line.endswith(" now.")]
    # Where the author has it, not somewhere in the import system.
    assert all(line.startswith("<string>:") for line in said), run.stderr
    assert "DeprecationWarning: strategies.clustered is strategies.base.strategy now." in run.stderr
    assert "strategies.ClusteredStrategy is strategies.MethodStrategy now." in run.stderr


def test_nothing_of_ours_uses_an_old_name():
    program = "import sys; sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != '_Renamed']; import "
    modules = "bouquet.cli, client.app, server.app, experiments.simulation.run, experiments.comparison.tables"
    run = subprocess.run([sys.executable, "-c", program + modules], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_name_that_never_was_is_no_module():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'strategies\.never'"):
        importlib.import_module("strategies.never")


def test_a_program_runs_under_its_old_name():
    """A watchdog of somebody's asks so whether a device is well (docs/deploy-raspberry-pi.md)."""
    run = subprocess.run([sys.executable, "-m", "common.health"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (
        1,
        "Give the address of a health service, HOST:PORT, or set BOUQUET_HEALTH.\n",
    )
