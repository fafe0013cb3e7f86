"""Which lines of our packages the tests have run: ``pytest -p tests.helpers.lines_run`` leaves them in build/lines.

Then ``python -m tests.helpers.lines_run 90`` says which were not, and fails where fewer than 90 % were. slipcover marks
the code when it is imported; to trace it, before Python 3.12, costs the tests as much again as half of their time.
Its own plugin for pytest takes the folder ``tests`` for a module. `bouquet.client.app` is left out: Ray sends functions
that it makes to other processes, and what slipcover adds to code cannot be sent.
"""

import functools
import json
import os
import sys
from pathlib import Path

import pytest
import slipcover
from slipcover.importer import FileMatcher, SlipcoverMetaPathFinder
from slipcover.slipcover import print_coverage

LEFT_OUT = "bouquet.client.app"
PACKAGES = ["client", "common", "server", "strategies"]
WORKER = "PYTEST_XDIST_WORKER"
FOLDER = Path(__file__).parents[2] / "build" / "lines"


class Finder(SlipcoverMetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        ours = fullname.startswith(tuple(f"bouquet.{one}." for one in PACKAGES)) and fullname != LEFT_OUT
        return super().find_spec(fullname, path, target) if ours else None


@pytest.hookimpl(tryfirst=True)  # conftest.py imports of ours
def pytest_load_initial_conftests(early_config):
    # Of several processes one adds the files that nobody has imported.
    early_config.lines_run = slipcover.Slipcover(
        source=None if WORKER in os.environ else PACKAGES, omit=["*/client/app.py"]
    )
    sys.meta_path.insert(0, Finder(early_config.lines_run, FileMatcher(sources=PACKAGES)))


def pytest_sessionfinish(session):
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = session.config.lines_run.get_coverage()
    # What was imported has its name below `bouquet`, by a link; what nobody imported, that of its folder.
    files = sorted(found["files"].items(), key=lambda item: item[0].startswith("bouquet/"))
    found["files"] = {name.removeprefix("bouquet/"): lines for name, lines in files}
    (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(found))


def report(least):
    """Print the files of which a line was not run, and whether at least so many percent were."""
    found = functools.reduce(slipcover.merge_coverage, [json.loads(file.read_text()) for file in FOLDER.iterdir()])
    print_coverage(found, skip_covered=True)
    return found["summary"]["percent_covered"] >= least


if __name__ == "__main__":
    sys.exit(not report(float(sys.argv[1])))
