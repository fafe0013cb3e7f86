import io

import pytest
from rich.console import Console

from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.run import run_table
from tests.helpers.small_table import GRID, FakeRunner
from tests.helpers.tuned_table import TUNED


@pytest.fixture
def table(tmp_path):
    def load(old="", new=""):
        path = tmp_path / "table.toml"
        path.write_text(GRID.replace(old, new, 1))
        return load_table(path, lambda settings: None)

    return load


@pytest.fixture
def compare(tmp_path, table, write_run):
    """Run the table, changed by ``old`` and ``new``; gives the results, the runner and what was said."""

    def run(old="", new="", before=lambda name: None, jobs=1, **more):
        runner = FakeRunner(write_run, before, **more)
        console = Console(file=io.StringIO(), width=300)
        results = run_table(table(old, new), tmp_path / "out", jobs, console, begin=runner)
        return results, runner, console.file.getvalue()

    return run


@pytest.fixture
def load(tmp_path):
    def read(old="", new="", check=lambda settings: None):
        assert old in TUNED
        path = tmp_path / "table.toml"
        path.write_text(TUNED.replace(old, new, 1))
        return load_table(path, check)

    return read
