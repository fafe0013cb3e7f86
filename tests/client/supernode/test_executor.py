"""The executor: which process a task gets, and what is said when it has ended."""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from client.supernode import executor as module
from client.supernode.executor import Executor, ended
from client.supernode.executor_link import LinkedExecutor, make_link
from client.trust.policy import AppTrust


@pytest.fixture
def link():
    return make_link()


def news(supernode_end, executor):
    """What SuperNode hears once the task's process has ended."""
    deadline = time.monotonic() + 60
    while executor.running:
        assert time.monotonic() < deadline
        executor.reap()
    return LinkedExecutor(supernode_end, AppTrust()).failure(10.0)


def task(number, fab):
    return SimpleNamespace(task_id=number, fab_hash=fab)


def working(executor, number, fab):
    executor.running[executor.start(task(number, fab), "token")] = number


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL (out of memory?)."),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was ended by SIGTERM."),
        (lambda: os._exit(0), "ended with status 0 before it had answered."),
        (lambda: sys.exit(3), "ended with status 3 before it had answered."),
        (lambda: 1 / 0, "ended with status 1 before it had answered."),
    ],
)
def test_a_message_of_the_own_app_is_a_fork_whatever_becomes_of_it(link, monkeypatch, work, reason):
    monkeypatch.setattr(module.runtime, "run_clientapp", lambda address, token, insecure: work())
    executor = Executor("127.0.0.1:1", b"secret", link[1], own={"own"})
    working(executor, 5, "own")
    (pid,) = executor.running
    failure = news(link[0], executor)
    assert failure is not None
    assert (failure.task, failure.reason) == (5, f"The process that worked on it {reason}")
    assert not Path(f"/proc/{pid}").exists(), "no zombie is left"


def test_an_app_of_another_origin_never_meets_what_is_imported_here(link, monkeypatch, tmp_path):
    """Its modules may have our names: it gets a fresh program, as Flower would start it."""
    program = tmp_path / "flwr-clientapp"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat $4 > {tmp_path}/token\nmktemp > {tmp_path}/made\n'
        f"stat -c %a $TMPDIR > {tmp_path}/mode\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(module, "find_program", lambda name: str(tmp_path / name))
    monkeypatch.setattr(module.runtime, "run_clientapp", lambda *_, **__: (tmp_path / "forked").touch())
    home = tmp_path / "flower"
    executor = Executor("127.0.0.1:1", b"secret", link[1], own={"own"}, home=home)
    working(executor, 6, "another")
    failure = news(link[0], executor)
    assert failure is not None
    assert failure.task == 6
    place = home / "tasks" / "6"
    asked = f"--runtime-api-address 127.0.0.1:1 --token-file {place}/token --insecure --parent-pid {os.getpid()}"
    assert (tmp_path / "asked").read_text().strip() == asked
    assert (tmp_path / "token").read_text() == "token"
    assert (tmp_path / "mode").read_text() == "700\n", "nobody else reads it"
    assert (tmp_path / "made").read_text().startswith(f"{place}/")
    assert not place.exists(), "what it unpacked goes with it"
    assert not (tmp_path / "forked").exists()


def test_of_ever_new_apps_few_stay_unpacked(link, monkeypatch, tmp_path):
    """As of one app that is compressed otherwise in each message, which a device that is started cold unpacks."""
    program = tmp_path / "flwr-clientapp"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "find_program", lambda name: str(tmp_path / name))
    executor = Executor("127.0.0.1:1", b"secret", link[1], cold=True, home=tmp_path)
    executor.using[99] = "in-use-since-long-ago"
    names = ["in-use-s", *(f"{number:08d}" for number in range(20))]
    for number, name in enumerate(names):
        (tmp_path / "apps" / f"bouquet.bouquet-fl.0.1.0.{name}").mkdir(parents=True)
        os.utime(tmp_path / "apps" / f"bouquet.bouquet-fl.0.1.0.{name}", (number, number))
        working(executor, number, f"{name}more")
        news(link[0], executor)
    left = sorted(path.name.rpartition(".")[2] for path in (tmp_path / "apps").iterdir())
    assert left == ["00000017", "00000018", "00000019", "in-use-s"]
    assert not list((tmp_path / "tasks").iterdir())


def test_only_what_supernode_calls_own_is_forked(link):
    executor = Executor("127.0.0.1:1", b"secret", link[1])
    linked = LinkedExecutor(link[0], SimpleNamespace(is_own=lambda content: content == b"ours"))
    runs = {1: SimpleNamespace(fab_hash="a", override_config={}), 2: SimpleNamespace(fab_hash="b", override_config={})}
    state = SimpleNamespace(get_run=runs.get, get_fab=lambda hash_: SimpleNamespace(content=b"ours" * (hash_ == "a")))
    assert not executor.listen()
    linked.announce(state, 1)
    linked.announce(state, 2)
    assert executor.listen()
    assert executor.own == {"a"}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"model.name": "torchvision:resnet50"}, True),
        ({"model.name": "resnet18"}, True),
        ({"model.name": "mlp", "train.augment": '["flip"]'}, True),
        ({"model.name": "cnn-dcpfl", "train.augment": "[]"}, False),
        ({}, False),
    ],
)
def test_torchvision_is_imported_once_and_only_where_a_run_needs_it(link, monkeypatch, config, wanted):
    imported = []
    monkeypatch.setattr(module, "import_torchvision", lambda: imported.append(True))
    run = SimpleNamespace(fab_hash="a", override_config=config)
    state = SimpleNamespace(get_run=lambda _: run, get_fab=lambda _: SimpleNamespace(content=b"ours"))
    LinkedExecutor(link[0], SimpleNamespace(is_own=lambda _: True)).announce(state, 1)
    assert Executor("127.0.0.1:1", b"secret", link[1]).listen()
    assert bool(imported) == wanted


def test_an_unknown_signal_has_a_name_too():
    assert ended(40) == "was ended by signal 40"


def test_the_process_of_a_message_that_was_lost_on_its_way_is_ended(link, monkeypatch):
    monkeypatch.setattr(module.runtime, "run_clientapp", lambda address, token, insecure: time.sleep(600))
    executor = Executor("127.0.0.1:1", b"secret", link[1], own={"own"})
    working(executor, 5, "own")
    working(executor, 6, "own")
    LinkedExecutor(link[0], AppTrust()).drop(5)
    assert not executor.listen(), "nothing is announced by it"
    deadline = time.monotonic() + 60
    while 5 in executor.running.values():
        assert time.monotonic() < deadline
        executor.reap()
    assert list(executor.running.values()) == [6]
    executor.drop(6)
    news(link[0], executor)
