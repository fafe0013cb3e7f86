import os
import signal
import subprocess
import sys
from functools import partial

from bouquet.common.settings import parse_settings
from bouquet.experiments.comparison import run as comparison
from bouquet.experiments.comparison.cell_process import CellProcess
from bouquet.server.record.reader import read_run
from tests.helpers.run_code import run_code

DEFAULTS = parse_settings({}, {})


def running(code, out, settings=DEFAULTS):
    return CellProcess(settings, out, partial(run_code, code))


def ended(cell):
    cell.wait(120)
    assert cell.has_ended
    return cell.failure()


def test_a_cell_has_its_settings_and_a_log_beside_its_folder(tmp_path):
    settings = parse_settings({"strategy": {"num_clusters": "auto"}, "model": {"hidden": [8]}}, {})
    assert ended(running("print(settings.model_dump_json())", tmp_path / "cell", settings)) == ""
    assert (tmp_path / "cell.log").read_text() == settings.model_dump_json() + "\n"


def test_nothing_of_the_folder_that_a_comparison_is_started_in_is_run(tmp_path):
    """The program ``bouquet`` does not look there either; the fork server did, by ``python -c``."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    (folder / "signal.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    program = f"""
from functools import partial
from pathlib import Path

from bouquet.common.settings import parse_settings
from bouquet.experiments.comparison.cell_process import CellProcess
from tests.helpers.run_code import run_code

if __name__ == "__main__":
    CellProcess(parse_settings({{}}, {{}}), Path({str(tmp_path / "cell")!r}), run=partial(run_code, "")).wait(120)
"""
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], cwd=folder, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0
    assert not (tmp_path / "ran").exists()


def test_a_failing_cell_shows_the_end_of_its_log(tmp_path):
    code = "import sys; [print('line', n) for n in range(100)]; sys.exit('the disk is full')"
    text = ended(running(code, tmp_path / "cell"))
    assert text.startswith(f"The run exited with 1; the end of {tmp_path / 'cell.log'}:\n")
    assert "the disk is full" in text
    assert ("line 81" in text, "line 80" in text) == (True, False)


def test_stopping_ends_a_cell_that_ignores_it_and_everything_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "GRACE", 0.5)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f"subprocess.run(['sh', '-c', 'trap \"\" INT; exec sleep 600 > {pipe}'])"
    )
    cell = running(code, tmp_path / "cell")
    with pipe.open() as end:  # waits until the grandchild has opened it
        comparison._stop([cell])
        assert end.read() == ""  # and this until nobody holds it any more
    assert "was ended by signal 9" in ended(cell)


def test_a_cell_that_is_stopped_before_it_has_begun_is_ended(tmp_path):
    cell = running("import time; time.sleep(600)", tmp_path / "cell")
    cell.send(signal.SIGINT)
    assert ended(cell)


def test_a_cell_that_ends_on_its_own_after_an_interrupt_is_left_to_do_so(tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    code = (
        "import time\ntry:\n"
        f"    open({str(ready)!r}, 'w').close(); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('tidied up')"
    )
    cell = running(code, tmp_path / "cell")
    ready.open().close()
    comparison._stop([cell])
    assert (tmp_path / "cell.log").read_text() == "tidied up\n"


IGNORING = """
import signal, sys, time
from pathlib import Path
from bouquet.common.settings import parse_settings
from bouquet.experiments.comparison.cell_process import CellProcess

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a shell starts in the background
    out = Path(sys.argv[1])
    settings = parse_settings({"run": {"rounds": 100_000}, "data": {"clients": 2}}, {"simulation.engine": "inline"})
    cell = CellProcess(settings, out)
    while not cell.has_ended and not (out / "rounds.jsonl").exists():
        time.sleep(0.1)
    cell.send(signal.SIGINT)
    cell.wait(100_000)
"""


def test_a_forked_cell_of_a_comparison_in_the_background_can_be_interrupted(tmp_path):
    script = tmp_path / "ignoring.py"
    script.write_text(IGNORING)
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "cell")], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cell" / "rounds.jsonl").read_text().count("\n") < 100_000


def test_a_forked_cell_runs_as_simulate_does_and_its_log_says_why_it_failed(tmp_path):
    inline = {"simulation.engine": "inline", "data.clients": 2, "run.rounds": 1, "data.samples_per_client": 20}
    cell = CellProcess(parse_settings({}, {**inline, "strategy.name": "fedavg"}), tmp_path / "cell")
    assert ended(cell) == ""
    assert read_run(tmp_path / "cell").summary["rounds"] == 1
    text = ended(CellProcess(parse_settings({}, {**inline, "server.min_clients": 3}), tmp_path / "other"))
    assert text.startswith("The run exited with 1; the end of ")
    assert "bouquet: server.min_clients = 3 is more than" in text
