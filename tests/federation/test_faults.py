"""A fixed part of `make faults`: thirteen runs with every kind of fault, on three fleets of real processes.

A schedule waits a part of its time, for deadlines and restarts: fleets side by side wait together.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.federation

ROOT = Path(__file__).parents[2]


def test_the_fixed_schedules_of_faults(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.faults.schedule import FIXED, NEEDS_ROOT, draw

    command = [sys.executable, "-m", "benchmarks.faults", "--seeds", ",".join(map(str, FIXED)), "--jobs", "3"]
    command += ["--floor", "0.75", "--results", str(tmp_path / "faults.jsonl"), "--keep", str(tmp_path / "kept")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    # Without root there are neither links nor disks of their own.
    possible = [seed for seed in FIXED if not os.geteuid() or not NEEDS_ROOT & {f.kind for f in draw(seed).faults}]
    assert sorted(line["seed"] for line in lines) == possible
    faults = [fault for line in lines for fault in line["faults"]]
    happened = [fault for fault in faults if fault["happened"]]
    # An event may not come, or be over before it is seen: on a loaded machine up to a third.
    assert len(happened) >= len(faults) / 2, lines
