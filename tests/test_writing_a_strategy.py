"""docs/writing-a-strategy.md and docs/own-package.md followed to the letter: their methods are installed, and run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bouquet.common.system.ports import free_port

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = DOCS.parent / "examples" / "own_method"
PAGE = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("writing-a-strategy", "own-package"))
PROGRAM = str(Path(sys.executable).with_name("bouquet"))


def commands(start):
    """The command lines of the page that begin so, as words."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(start)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The example and the one file of the page, installed in a folder of their own; the environment that finds them."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    ((name, code),) = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
    (folder / name).write_text(code)
    site = folder / "site"
    assert commands("pip") == [["pip", "install", "."]]
    offline = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "."], cwd=folder, check=True)
    assert (site / "onegradient" / "device.py").is_file()
    environment = {**os.environ, "PYTHONPATH": str(site), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
    return folder, environment


def run(project, words, folder=None):
    done = subprocess.run(words, cwd=folder or project[0], env=project[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def check_result(folder, clients):
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["strategy"], summary["clients"]) == ("one-gradient", clients)
    assert summary["dataset"] == "onegradient.data:halves"
    assert (summary["clusters"], summary["purity"]) == (2, 1.0)
    assert summary["accuracy_macro"] > 0.9  # one model for all has 0.5: half of the clients swap the classes
    report = (folder / "report.html").read_text()
    assert "Clients in each cluster" in report
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_its_tests_pass(project):
    run(project, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_onegradient.py"])


def test_it_is_simulated(project, tmp_path):
    (words,) = [words for words in commands("bouquet simulate") if "one-gradient" in words]
    more = ["--set", "simulation.engine=inline", "--out", str(tmp_path / "run")]
    # Not in the project's folder, where Python would find the package without its installation.
    run(project, [PROGRAM, *words[1:], *more], tmp_path)
    first, *_, last = check_result(tmp_path / "run", clients=6)
    assert (first["accuracy_trained_macro"], last["strategy"]) == (None, {"members": [3, 3]})


def test_the_strategy_in_one_file_runs(project, tmp_path):
    (words,) = [words for words in commands("bouquet simulate") if "./oneshot.py:OneShot" in words]
    few = ["--clients", "8", "--rounds", "2", "--set", "simulation.engine=inline", "--out", str(tmp_path / "run")]
    run(project, [PROGRAM, *words[1:], *few])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["clusters"] == 4


@pytest.mark.federation
def test_it_runs_over_grpc_on_the_devices_whose_owners_allow_it(project, tmp_path):
    (server,), (client,) = commands("bouquet server"), commands("bouquet client")
    place = ["9092", str(free_port())]
    server = [word.replace(*place) for word in server]
    client = [word.replace("HOST", "127.0.0.1").replace(*place) for word in client]
    position = client.index("--partition-id") + 1
    running = []

    def start(name, words):
        with (tmp_path / f"{name}.log").open("wb") as log:
            running.append(
                subprocess.Popen([PROGRAM, *words[1:]], cwd=tmp_path, env=project[1], stdout=log, stderr=log)
            )

    def log(name):
        return (tmp_path / f"{name}.log").read_text(errors="replace")

    try:
        more = ["--set", "server.straggler_grace=600"]
        start("server", [*server, "--host", "127.0.0.1", *more])
        for part in range(3):
            words = [*client[:position], str(part), *client[position + 1 :], "--state-dir", f"state-{part}"]
            if part == 2:
                at = words.index("--allow-procedure")
                del words[at : at + 2]
            start(f"client-{part}", words)
        status = running[0].wait()
        assert status == 0, "\n".join(log(name)[-3000:] for name in ("server", "client-0", "client-2"))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    lines = check_result(tmp_path / "runs" / "fleet", clients=3)  # all three are tested, by the standard procedure
    for line in lines:
        assert set(line["failed"]) == {"client-2"}
        assert "start bouquet client with --allow-procedure first-gradient" in line["failed"]["client-2"]
