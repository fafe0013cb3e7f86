import os
import subprocess
import sys
import threading
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import wait as wait_for

import pytest

from bouquet.common.settings import parse_settings
from bouquet.experiments.comparison.cell_process import CellFailed, ForkRunner
from bouquet.server.record.reader import read_run
from tests.helpers.run_code import run_code
from tests.helpers.waiting_for import eventually


def running(code, **options):
    return ForkRunner(run=partial(run_code, code), **options)


def test_a_cell_has_its_settings_and_a_log_beside_its_folder(tmp_path):
    settings = parse_settings(
        {"strategy": {"num_clusters": "auto", "layers": ["a", "b"]}, "model": {"hidden": [8]}}, {}
    )
    running("print(settings.model_dump_json())")(settings, tmp_path / "cell")
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
from bouquet.experiments.comparison.cell_process import ForkRunner
from tests.helpers.run_code import run_code

if __name__ == "__main__":
    ForkRunner(run=partial(run_code, ""))(parse_settings({{}}, {{}}), Path({str(tmp_path / "cell")!r}))
"""
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], cwd=folder, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0
    assert not (tmp_path / "ran").exists()


def test_a_failing_cell_shows_the_end_of_its_log(tmp_path):
    code = "import sys; [print('line', n) for n in range(100)]; sys.exit('the disk is full')"

    with pytest.raises(CellFailed) as caught:
        running(code)(parse_settings({}, {}), tmp_path / "cell")
    text = str(caught.value)
    assert text.startswith(f"The run exited with 1; the end of {tmp_path / 'cell.log'}:\n")
    assert "the disk is full" in text
    assert ("line 81" in text, "line 80" in text) == (True, False)


def test_a_resumed_cell_goes_on_with_its_log(tmp_path):
    runner = running("print(resume)")
    runner(parse_settings({}, {}), tmp_path / "cell")
    runner(parse_settings({}, {}), tmp_path / "cell", resume=True)

    assert (tmp_path / "cell.log").read_text() == "False\nTrue\n"


def test_stopping_ends_a_cell_that_ignores_it_and_everything_it_started(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f"subprocess.run(['sh', '-c', 'trap \"\" INT; exec sleep 600 > {pipe}'])"
    )
    runner = running(code, grace=0.1)
    failures = []

    def run():
        try:
            runner(parse_settings({}, {}), tmp_path / "cell")
        except CellFailed as error:
            failures.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    with pipe.open() as end:  # waits until the grandchild has opened it
        runner.stop()
        assert end.read() == ""  # and this until nobody holds it any more
    thread.join()
    assert "was ended by signal 9" in failures[0]
    with pytest.raises(CellFailed, match="stopped before this cell began"):
        runner(parse_settings({}, {}), tmp_path / "other")


def test_a_cell_that_begins_while_all_are_stopped_is_ended_at_once(tmp_path):
    class Slow(ForkRunner):
        def _start(self, *arguments):
            threading.Thread(target=self.stop).start()
            eventually(lambda: self._stopped, "the comparison is being stopped")
            return super()._start(*arguments)

    with pytest.raises(CellFailed, match="was ended by signal 9"):
        Slow(run=partial(run_code, "import time; time.sleep(600)"))(parse_settings({}, {}), tmp_path / "cell")


def test_a_cell_that_ends_on_its_own_after_an_interrupt_is_left_to_do_so(tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    code = (
        "import time\ntry:\n"
        f"    open({str(ready)!r}, 'w').close(); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('tidied up')"
    )
    runner = running(code, grace=60)
    thread = threading.Thread(target=runner, args=(parse_settings({}, {}), tmp_path / "cell"))
    thread.start()
    ready.open().close()
    runner.stop()
    thread.join()

    assert (tmp_path / "cell.log").read_text() == "tidied up\n"


def test_a_cell_that_ends_while_another_one_begins_keeps_its_exit_code(tmp_path, monkeypatch):
    """To start a process asks all others how they ended, and what one says can be read once."""
    second = threading.Event()
    read, reading, readers = forkserver.read_signed, threading.Lock(), []

    def read_late(sentinel):
        with reading:
            readers.append(sentinel)
            if readers.count(sentinel) == 3:  # after the process's number, and whoever was first
                second.set()
        if readers.count(sentinel) > 1:
            second.wait(2)  # of two readers at the same time neither has read yet
        return read(sentinel)

    monkeypatch.setattr(forkserver, "read_signed", read_late)
    settings = parse_settings({"strategy": {"name": "none such"}}, {})
    cells = []
    for _ in range(2):
        cells.append(ForkRunner()._start(settings, tmp_path / "cell", False, tmp_path / "cell.log"))
        wait_for([cells[0]._process.sentinel])  # it has ended, and the next one begins
    assert [cell.wait() for cell in cells] == [1, 1]


IGNORING = """
import signal, sys, threading, time
from pathlib import Path
from bouquet.common.settings import parse_settings
from bouquet.experiments.comparison.cell_process import CellFailed, ForkRunner

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a shell starts in the background
    runner, out = ForkRunner(grace=100_000), Path(sys.argv[1])
    settings = parse_settings({"run": {"rounds": 100_000}, "data": {"clients": 2}}, {"simulation.engine": "inline"})
    cell = threading.Thread(target=runner, args=(settings, out), daemon=True)
    cell.start()
    while cell.is_alive() and not (out / "rounds.jsonl").exists():
        time.sleep(0.1)
    runner.stop()
"""


def test_a_forked_cell_of_a_comparison_in_the_background_can_be_interrupted(tmp_path):
    script = tmp_path / "ignoring.py"
    script.write_text(IGNORING)
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "cell")], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cell" / "rounds.jsonl").read_text().count("\n") < 100_000


def test_a_forked_cell_runs_as_simulate_does_and_its_log_says_why_it_failed(tmp_path):
    inline = {"simulation.engine": "inline", "data.clients": 2, "run.rounds": 1, "data.samples_per_client": 20}
    runner = ForkRunner()
    runner(parse_settings({}, {**inline, "strategy.name": "fedavg"}), tmp_path / "cell")

    assert read_run(tmp_path / "cell").summary["rounds"] == 1
    with pytest.raises(
        CellFailed, match=r"(?s)exited with 1; the end of .*bouquet: server.min_clients = 3 is more than"
    ):
        runner(parse_settings({}, {**inline, "server.min_clients": 3}), tmp_path / "other")
    runner.stop()
    with pytest.raises(CellFailed, match="stopped before"):
        runner(parse_settings({}, inline), tmp_path / "late")
