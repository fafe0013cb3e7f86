"""Processes below this one: found, collected, ended with it; and this one, ended in order."""

import signal
import subprocess
import sys
import threading

import pytest

from bouquet.common.system.processes import ending_in_order
from tests.helpers.descendants import is_gone
from tests.helpers.waiting_for import eventually

BOUND = """
import os, signal, sys
from bouquet.common.system.processes import end_with_parent
pid = os.fork()
if pid == 0:
    end_with_parent(signal.Signals(int(sys.argv[1])))
    print(os.getpid(), flush=True)
    while True:
        signal.pause()
signal.pause()
"""


def start(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_ends_with_its_parent_however_that_ends(number):
    with start(BOUND, str(int(number))) as parent:
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
        eventually(lambda: is_gone(child), "the child ends, too")


def test_children_that_have_ended_are_collected_each_once_with_its_status():
    code = """
import os, signal
from bouquet.common.system.processes import ended_children
assert list(ended_children()) == []
pids = {os.fork() or os._exit(status): status for status in (0, 3)}
found = {}
while len(found) < 2:
    found |= {pid: os.waitstatus_to_exitcode(status) for pid, status in ended_children()}
assert found == pids, (found, pids)
assert list(ended_children()) == []
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_block_in_order_and_handlers_are_put_back(number, status, monkeypatch):
    started = []
    monkeypatch.setattr(threading.Timer, "start", lambda timer: started.append(timer))
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may have it ignored
    left = []

    def leave():
        with ending_in_order():
            try:
                signal.raise_signal(number)
            finally:
                left.append("in order")

    try:
        with pytest.raises(SystemExit) as found:
            leave()
        assert (found.value.code, left) == (status, ["in order"])
        assert signal.getsignal(number) == signal.SIG_DFL
        assert [timer.interval for timer in started] == [10.0]
    finally:
        signal.signal(number, before)


def test_a_signal_whose_exception_is_swallowed_ends_the_process_all_the_same():
    code = """
import contextlib, signal, threading
from bouquet.common.system.processes import ending_in_order
with ending_in_order(grace=0.2):
    with contextlib.suppress(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    threading.Event().wait()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 143


def test_what_nohup_has_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_in_order():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
