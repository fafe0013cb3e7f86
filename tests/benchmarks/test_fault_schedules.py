"""The schedules of `make faults`, and that what they may not break is noticed when it is broken."""

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


def test_a_seed_is_a_schedule_and_each_fault_meets_each_strategy():
    from benchmarks.faults.schedule import FIXED, KINDS, ROUNDS, STRATEGIES, draw

    fixed = [draw(seed) for seed in FIXED]
    assert {fault.kind for schedule in fixed for fault in schedule.faults} == {*KINDS}
    assert {schedule.strategy for schedule in fixed} == set(STRATEGIES)
    assert not any(schedule.alone for schedule in fixed)
    schedules = [draw(seed) for seed in range(200)]
    assert schedules == [draw(seed) for seed in range(200)]
    met = Counter((fault.kind, schedule.strategy) for schedule in schedules for fault in schedule.faults)
    assert set(met) == {(kind, strategy) for kind in KINDS for strategy in STRATEGIES}
    for fault in (fault for schedule in schedules for fault in schedule.faults):
        assert 1 <= fault.round <= ROUNDS
        assert fault.seconds <= 1.5
        assert fault.pause <= 8


def test_a_server_that_is_started_again_waits_once_it_says_so_again(tmp_path):
    """What it had said before it was killed stands in the log still, and so would the end of a schedule be believed."""
    from benchmarks.faults import fleet
    from benchmarks.faults.run import _waits

    waiting = "Waiting for the next run: bouquet run NEXT.toml\n"
    log = tmp_path / "server.log"
    log.write_text(waiting)
    killed = SimpleNamespace(waiting=True, port=1, first=tmp_path, log=log, serves=False, lock=threading.RLock())
    killed._run = lambda *_: None
    assert _waits(log.read_text())
    fleet.Fleet.start_server(killed)
    assert not _waits(log.read_text())
    log.write_text(log.read_text() + waiting)
    assert _waits(log.read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run, and what its devices keep, as real ones leave it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        from benchmarks.faults import fleet
        from bouquet.experiments.simulation.run import simulate

        folder = tmp_path_factory.mktemp("fleet")
        own = folder / "data"
        devices = {
            name: fleet.Device(name, folder / "run" / "devices" / name, own / name, folder / f"{name}.log")
            for name in fleet.DEVICES
        }
        own.mkdir()
        made = SimpleNamespace(devices=devices, public=folder / "public.npz")
        fleet.Fleet.write_data(made)
        values = {"data.data_dir": str(own), "simulation.engine": "inline", "data.clients": len(devices)}
        settings = fleet.run_settings("fesem", "run", made.public, **values)
        patch.setattr(
            "bouquet.experiments.simulation.run.shutil.rmtree", lambda *_, **__: None
        )  # what devices keep is to stay
        simulate(settings, folder / "run")
        (folder / "run" / "report.html").touch()
        (folder / "run" / "status.json").write_text(json.dumps({"state": "finished"}))
        return folder, settings


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of it, and what is found wrong with it."""
    from benchmarks.faults import fleet, invariants
    from benchmarks.faults.schedule import Schedule

    folder, settings = finished
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.move(tmp_path / "run" / "devices", tmp_path / "states")
    devices = {
        name: fleet.Device(name, tmp_path / "states" / name, folder / "data" / name, tmp_path / f"{name}.log")
        for name in fleet.DEVICES
    }
    for name in devices:
        (devices[name].state / "tasks").mkdir()
    (tmp_path / "run" / "devices.json").write_text(json.dumps({name: {"name": name} for name in devices}))
    (tmp_path / "service").mkdir()
    made = SimpleNamespace(devices=devices, service=tmp_path / "service")
    monkeypatch.setattr(invariants, "FORGET_SECONDS", 0.0)
    schedule = Schedule(0, "fesem", False, ())
    every = dict.fromkeys(devices, 0.9)

    def wrong():
        found = invariants.check_run(schedule, made, settings, tmp_path / "run", damaged=False)
        of_devices, _ = invariants.check_devices(
            schedule, made, settings, tmp_path / "run", {"kept": every, "accuracy": every}
        )
        of_test, _ = invariants.check_accuracy(tmp_path / "run", {"accuracy": every})
        return [*found, *of_devices, *of_test, *invariants.check_forgotten(made)]

    return SimpleNamespace(folder=tmp_path / "run", states=tmp_path / "states", service=made.service, wrong=wrong)


def swap(one, other):
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)


def kept(run, name):
    """What a device keeps of the run."""
    (folder,) = (run.states / name).glob("run-*")
    return folder


def test_nothing_is_wrong_with_a_run_without_faults(run):
    assert run.wrong() == []


def test_swapped_layers_are_noticed(run):
    for name in ("round-000004.safetensors", "round-000005.safetensors"):
        swap(kept(run, "ada") / name, kept(run, "dan") / name)
    assert [line.split(" has ")[0] for line in run.wrong()] == ["ada's own model", "dan's own model"]


def test_a_device_that_took_part_has_a_name_and_one_that_never_did_need_not(run):
    known = json.loads((run.folder / "devices.json").read_text())
    del known["ada"]
    (run.folder / "devices.json").write_text(json.dumps(known))
    assert run.wrong() == ["ada took part and has no name"]
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["by_client"]["ada"]
    (run.folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.wrong() == []


def test_lost_layers_and_left_files_are_noticed(run):
    for number in range(5):
        (run.states / "bob" / "tasks" / f"{number}.reply").touch()
    (run.service / "0.reply.0011.part").touch()
    (kept(run, "cleo") / "round-000005.safetensors").unlink()
    (kept(run, "dan") / ".round-000005.safetensors.17").touch()
    (run.folder / "checkpoint" / ".round-000005.17").mkdir()
    assert run.wrong() == [
        "left behind: checkpoint/.round-000005.17",
        "cleo keeps round 4, and took part in [1, 2, 3, 4, 5]",
        f"left behind: dan/{kept(run, 'dan').name}/.round-000005.safetensors.17",
        "kept: 0.reply.0011.part",
        "bob keeps 5 tasks",
    ]


@pytest.mark.parametrize(("what", "noticed"), [("state", "dan keeps round 4"), ("checkpoint", "round-000005/")])
def test_damage_is_done_to_what_is_kept_now_and_noticed(run, what, noticed):
    from benchmarks.faults.inject import Injection

    fault = SimpleNamespace(device=SimpleNamespace(state=run.states / "dan"), run_folder=run.folder, random=Random(0))
    (kept(run, "dan") / "alone-000010.safetensors").touch()  # written later
    assert Injection._spoil(fault, what)
    assert any(line.startswith(noticed) for line in run.wrong())


def test_a_damaged_checkpoint_a_lost_round_a_slow_one_and_a_bad_model_are_noticed(run):
    (run.folder / "checkpoint" / "round-000004" / "state.json").write_text("{}")
    lines = (run.folder / "rounds.jsonl").read_text().splitlines()
    slow = json.dumps({**json.loads(lines[0]), "seconds": 180.4})
    (run.folder / "rounds.jsonl").write_text("\n".join([slow, *lines[2:]]) + "\n")
    summary = json.loads((run.folder / "summary.json").read_text())
    summary["accuracy_by_client"] = dict.fromkeys(summary["accuracy_by_client"], 0.5)
    (run.folder / "summary.json").write_text(json.dumps(summary))
    assert run.wrong() == [
        "rounds.jsonl has the rounds [1, 3, 4, 5]",
        "round 1 took 180 s",
        "round-000004/state.json is damaged",
        "accuracy 0.500 over 4 devices, without faults 0.900",
    ]
