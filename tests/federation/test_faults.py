"""A fixed part of `make faults`: eight faults in three runs, on one fleet of real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.federation, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
# Kills of the server with all below it, and of executors; a SuperNode and a message that stand still; a damaged
# checkpoint, damaged prepared data. None needs root. More would take too long beside the other tests.
SEEDS = "34,61,148"


def test_the_fixed_schedules_of_faults(tmp_path):
    command = [sys.executable, "-m", "benchmarks.faults", "--seeds", SEEDS, "--floor", "0.75"]
    command += ["--results", str(tmp_path / "faults.jsonl"), "--keep", str(tmp_path / "kept")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert {line["strategy"] for line in lines} == {"fedtsdp", "gradient-loss", "fesem"}
    happened = [fault for line in lines for fault in line["faults"] if fault["happened"]]
    assert len(happened) >= 6, lines  # an event may not come, as where a run is over before it
