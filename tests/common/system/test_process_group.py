import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import BouquetError
from common.system import process_group
from common.system.ports import check_port_free, free_port, split_address, wait_for_port
from common.system.process_group import SENT_AGAIN_SECONDS, ProcessGroup
from common.system.programs import find_program, program_environment
from tests.helpers.real_processes import processes_tagged
from tests.helpers.waiting_for import eventually

# A program that leaves behind a child in a session of its own, which takes no notice of SIGTERM or SIGINT.
DETACHING = """
import subprocess, sys, time
child = "import signal, time; signal.signal(15, signal.SIG_IGN); signal.signal(2, signal.SIG_IGN);"
child += "print('child is up', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
"""
STAYS = DETACHING + "print('parent is up', flush=True); time.sleep(600)"
# It leaves when the test has seen its child: when there is the file that it is told of.
LEAVES = DETACHING + "import os\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()


def test_find_program_knows_the_programs_beside_python() -> None:
    assert Path(find_program("flower-superlink")).name == "flower-superlink"


def test_find_program_names_what_is_missing() -> None:
    with pytest.raises(BouquetError, match=r"'flower-nothing' is neither in .* nor on PATH.*pip install"):
        find_program("flower-nothing")


def test_environment_lets_flower_find_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("NO_PROXY", "10.0.0.1")
    monkeypatch.delenv("no_proxy", raising=False)
    environment = program_environment({"MINE": "1"})
    folders = environment["PATH"].split(os.pathsep)
    assert folders[0] == str(Path(sys.executable).parent)
    assert folders[-1] == "/nowhere"
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["NO_PROXY"] == "10.0.0.1,127.0.0.1,localhost,::1"
    assert environment["MINE"] == "1"
    assert os.environ["PATH"] == "/nowhere"


@pytest.mark.parametrize(
    ("address", "parts"),
    [("host.lan:9092", ("host.lan", 9092)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:65535", ("::1", 65535))],
)
def test_split_address(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "host", "host:", ":9092", "host:0", "host:65536", "host:http", "::1", "h:-1"])
def test_split_address_refuses(address: str) -> None:
    with pytest.raises(BouquetError, match="form host:port"):
        split_address(address)


def test_free_port_is_free() -> None:
    check_port_free("127.0.0.1", free_port(), "a test")


def test_port_in_use_names_port_host_and_purpose(listener: tuple[str, int]) -> None:
    with pytest.raises(BouquetError, match=rf"Port {listener[1]} on 0\.0\.0\.0 is in use, needed for the devices"):
        check_port_free("0.0.0.0", listener[1], "the devices")


def test_port_of_another_machine_says_why() -> None:
    with pytest.raises(BouquetError, match=r"Port 9092 on 192\.0\.2\.1 cannot be used \(Cannot assign"):
        check_port_free("192.0.2.1", 9092, "the devices")


def test_wait_for_port(listener: tuple[str, int]) -> None:
    wait_for_port(*listener, timeout=0.0)
    nobody = free_port()
    with pytest.raises(BouquetError, match=rf"Nothing listens on 127\.0\.0\.1:{nobody} after 0 s"):
        wait_for_port("127.0.0.1", nobody, timeout=0.0)
    with pytest.raises(BouquetError, match="has ended"):
        wait_for_port("127.0.0.1", nobody, timeout=600.0, alive=lambda: False)


def test_exit_status_and_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    with ProcessGroup() as group:
        code = r"import sys; print('\x1b[92mout\x1b[0m'); print('err', file=sys.stderr); sys.exit(3)"
        first = group.start("first", python(code), os.environ, log)
        assert first.wait(30) == 3
        assert sorted(first.tail().splitlines()) == ["err", "out"]
        second = group.start("second", python("import os; os.kill(os.getpid(), 9)"), os.environ, log)
        assert second.wait(30) == 128 + signal.SIGKILL
        assert not second.alive


def test_lines_arrive_before_wait_returns() -> None:
    lines: list[str] = []
    with ProcessGroup() as group:
        code = r"print('\x1b[91mERROR\x1b[0m one'); print('two', end='')"
        group.start("speaker", python(code), os.environ, on_line=lines.append).wait(30)
    assert lines == ["ERROR one", "two"]


@pytest.mark.parametrize("again", [False, True])
def test_a_program_that_cannot_be_started_says_so(tmp_path: Path, again: bool) -> None:
    with ProcessGroup() as group:
        process = group.start("nothing", [str(tmp_path / "nothing")], os.environ, tmp_path / "log", again=again)
        assert process.wait(30) == 1
        assert process.tail() == f"Cannot run '{tmp_path / 'nothing'}': No such file or directory."


def test_programs_that_have_ended_do_not_gather() -> None:
    with ProcessGroup() as group:
        first = group.start("first", python("pass"), os.environ)
        eventually(lambda: not Path(f"/proc/{first._handle.pid}/fd/0").exists(), "it has ended, uncollected")
        second = group.start("second", python("import time; time.sleep(600)"), os.environ)
        assert group.processes == [second]
        assert not Path(f"/proc/{first._handle.pid}").exists()


def test_wait_times_out() -> None:
    with ProcessGroup() as group:
        process = group.start("sleeper", python("import time; time.sleep(600)"), os.environ)
        with pytest.raises(TimeoutError, match="sleeper still runs"):
            process.wait(0.1)


def test_terminate_ends_a_detached_child_that_ignores_signals(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ProcessGroup(grace=0.5) as group:
        process = group.start("parent", python(STAYS), os.environ, log)
        eventually(lambda: "parent is up" in process.tail() and "child is up" in process.tail(), "both are up")
        assert len(process.pids) == 2
        assert len(processes_tagged(group.tag)) == 3
        group.terminate()
        assert processes_tagged(group.tag) == []
        assert not process.alive
        group.terminate()


@pytest.mark.parametrize("end", ["sys.exit(7)", "os.kill(os.getpid(), 9)"])
def test_a_program_that_ends_takes_its_detached_child_along(end: str, tmp_path: Path) -> None:
    with ProcessGroup() as group:
        process = group.start("parent", [*python(LEAVES + end), str(tmp_path / "seen")], os.environ)
        eventually(lambda: len(process.pids) == 2, "the child is there")
        (tmp_path / "seen").touch()
        assert process.wait(60) in (7, 128 + signal.SIGKILL)
        assert processes_tagged(group.tag) == []


def test_a_second_request_skips_the_grace(tmp_path: Path) -> None:
    with ProcessGroup(grace=600.0) as group:
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
        process = group.start("deaf", python(code), os.environ, tmp_path / "log")
        eventually(lambda: "up" in process.tail(), "it is up")
        process.request_stop()
        with pytest.raises(TimeoutError):
            process.wait(0.3)
        process.request_stop()
        assert process.wait(30) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -2), (signal.SIGKILL, -9)]
)
def test_a_signal_to_the_starter_ends_everything(number: signal.Signals, status: int, tmp_path: Path) -> None:
    starter = f"""
import os, signal, sys, time
from pathlib import Path
from common.system.process_group import ProcessGroup
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have it ignored
with ProcessGroup(grace=0.5) as group:
    group.start("parent", [sys.executable, "-c", {STAYS!r}], os.environ, Path({str(tmp_path / "log")!r}))
    print(group.tag, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(python(starter), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        tag = process.stdout.readline().strip()
        eventually(lambda: len(processes_tagged(tag)) == 3, "supervisor, parent and child are up")
        process.send_signal(number)
        assert process.wait(60) == status
    eventually(lambda: processes_tagged(tag) == [], "all have ended")


class Finalised:
    """Comes by a signal while Python runs its finaliser, where it ignores what is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def swallowed():
    """As matplotlib's compiled code does while the server draws a report: one signal in forty was lost there."""
    with contextlib.suppress(SystemExit):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("lose", [Finalised, swallowed])
def test_a_signal_whose_exception_is_swallowed_ends_the_program_all_the_same(lose, capsys):
    def runs():
        with ProcessGroup():
            lose()
            threading.Event().wait(60)
            raise AssertionError("The signal was lost.")

    hook = sys.unraisablehook
    with pytest.raises(SystemExit) as found:
        runs()
    assert found.value.code == 143
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_a_second_signal_does_not_cut_off_the_leaving():
    left = []

    def runs():
        with ProcessGroup():
            try:
                swallowed()
                signal.raise_signal(signal.SIGTERM)
            finally:
                threading.Event().wait(10 * SENT_AGAIN_SECONDS)
                left.append("in order")

    with pytest.raises(SystemExit):
        runs()
    assert left == ["in order"]


def test_what_nohup_has_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ProcessGroup():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_stands_still_with_a_line_in_hand_holds_up_no_end(monkeypatch):
    monkeypatch.setattr(process_group, "LAST_LINES_SECONDS", 0.1)
    goes_on = threading.Event()
    with ProcessGroup() as group:
        process = group.start("it", python("print('one')"), os.environ, on_line=lambda line: goes_on.wait())
        assert process.wait() == 0
    goes_on.set()


def test_a_program_ends_with_its_supervisor():
    with ProcessGroup(grace=0.5) as group:
        group.start("it", python("import time; time.sleep(600)"), os.environ)
        eventually(lambda: len(processes_tagged(group.tag)) == 2, "supervisor and program are up")
        os.kill(group.processes[0]._handle.pid, signal.SIGKILL)
        eventually(lambda: processes_tagged(group.tag) == [], "both have ended")


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ProcessGroup():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


CRASHES = "import os, sys; print('begins', flush=True); os.kill(os.getpid(), 9)"
ENDS = "print('begins', flush=True)"


@pytest.mark.parametrize("program", [CRASHES, ENDS])
def test_a_program_is_started_again_however_it_ends_until_it_is_to_stop(program: str) -> None:
    lines: list[str] = []
    with ProcessGroup() as group:
        group.start("it", python(program), program_environment(), on_line=lines.append, again=True)
        eventually(lambda: len(lines) >= 3, "it has been started again, twice")
    assert processes_tagged(group.tag) == []


FAILS_TO_FORK = """
import sys
from common.system import supervisor

supervisor.AGAIN_SECONDS = 0.0
starts = []


class Flaky(supervisor.Supervisor):
    def start(self):
        starts.append(len(starts))
        if len(starts) == 2:
            raise OSError("no memory for a process")
        super().start()
        if len(starts) == 3:
            self.request_stop()


Flaky(5.0, [sys.executable, "-c", ""], again=True).run()
print(starts)
"""


def test_a_program_that_cannot_be_started_for_a_moment_is_started_a_moment_later() -> None:
    command = [sys.executable, "-c", FAILS_TO_FORK]
    reading, writing = os.pipe()  # whose end would be the end of whoever started the supervisor
    done = subprocess.run(
        command, env=program_environment(), stdin=reading, capture_output=True, text=True, timeout=120
    )
    os.close(reading), os.close(writing)
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n", "")
