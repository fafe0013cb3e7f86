"""`examples/photos` and `examples/sensors`: what an owner types, to the letter, and what the screen then shows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port

EXAMPLES = Path(__file__).parents[1] / "examples"
PATIENT = "--set server.straggler_grace=500 --set server.round_timeout=500"  # a busy machine


@pytest.mark.federation
@pytest.mark.parametrize("example", ["photos", "sensors"])
def test_an_owners_whole_way(example, tmp_path):
    page = (EXAMPLES / example / "README.md").read_text()
    typed = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    (program,) = re.findall(r"^python (\w+\.py)", typed, re.MULTILINE)
    (tmp_path / program).write_text((EXAMPLES / example / program).read_text())
    port = free_port()
    typed = typed.replace("bouquet server", f"bouquet server --port {port} {PATIENT}").replace(":9092", f":{port}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(EXAMPLES.parent), "PATH": path}
    done = subprocess.run(
        ["bash", "-e", "-c", typed], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    logs = "".join(path.read_text()[-500:] for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    (name,) = {path.name for path in (tmp_path / "runs").iterdir()} - {"simulated"}
    simulated, served = (
        json.loads((tmp_path / "runs" / run / "summary.json").read_text()) for run in ("simulated", name)
    )
    (scores,) = {"accuracy_by_client", "mae_by_client"} & served.keys()
    assert served[scores] == simulated[scores]
    shown = [line for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    said = {" ".join(line.split()) for line in done.stdout.splitlines()}
    # Figures may differ in the last place on another processor.
    blank = re.compile(r"[\d.]+")
    assert {blank.sub("N", " ".join(line.split())) for line in shown} <= {blank.sub("N", line) for line in said}
