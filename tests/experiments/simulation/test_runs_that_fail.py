"""Runs that come to nothing say so: in their record, by an error, and by what can be done next."""

import io
import json
import shutil
from functools import partial

import pytest
from rich.console import Console

from bouquet import cli
from bouquet.client.rounds.session import Session
from bouquet.client.training import sgd
from bouquet.common.errors import BouquetError, RunFailed
from bouquet.common.settings import load_settings
from bouquet.experiments.report.run_report import write_report
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.experiments.simulation.run import simulate
from bouquet.monitor.round_table import RoundTable, print_summary
from bouquet.server.record.status import read_status
from bouquet.server.run import resume
from bouquet.server.run.build import too_few
from bouquet.server.run.checkpoint import save_checkpoint
from bouquet.server.run.stop import RunStopped, ask_to_stop
from bouquet.server.run_folder import NAMES, OF_A_FALSE_START
from tests.helpers.stopped_runs import Stopped, cut_after

BASE = ["data.clients=6", "data.groups=3", "data.partition=rotated", "strategy.num_clusters=3", "run.rounds=6"]
BASE += ["simulation.engine=inline"]
NOBODY = "No client gave a usable reply; client-0: The device reported: The disk is full."
BAD_STEP = ["strategy.name=fedavg", "run.rounds=5", "train.learning_rate=30", "train.max_gradient_norm=none"]


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def lines_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def without_times(folder):
    content = json.loads((folder / "summary.json").read_text())
    return {key: value for key, value in content.items() if key != "seconds"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The summary of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    simulate(settings(), folder)
    return without_times(folder)


@pytest.fixture
def disk(monkeypatch):
    """While ``full`` is in it, no device can train."""
    state, train = set(), sgd.train

    def broken(*args, **kwargs):
        if "full" in state:
            raise BouquetError("The disk is full.")
        return train(*args, **kwargs)

    monkeypatch.setattr(sgd, "train", broken)
    return state


def fills_after(disk, round_):
    return lambda line: disk.add("full") if line["round"] == round_ else None


def test_a_run_in_which_nobody_replies_any_more_ends_and_can_go_on(whole, disk, tmp_path):
    with pytest.raises(RunFailed, match=r"No client gave .* in 3 rounds running, .*round 5\..*disk is full"):
        simulate(settings(), tmp_path / "run", follow=fills_after(disk, 2))
    assert RunFailed.status == 1
    lines = lines_of(tmp_path / "run")
    assert [line["replies"] for line in lines] == [6, 6, 0, 0, 0]
    assert lines[2]["warnings"] == [NOBODY]
    assert lines[4]["assignment"] == lines[1]["assignment"] != {}
    assert not (tmp_path / "run" / "summary.json").exists()
    page = write_report(tmp_path / "run").read_text()
    assert "The run failed. No client gave a usable reply in 3 rounds running" in page
    assert f"Round 3: {NOBODY}" in page
    disk.clear()
    simulate(settings(), tmp_path / "run", resume=True)
    assert without_times(tmp_path / "run") == whole


def test_a_run_whose_clients_are_all_gone_waits_and_says_so_and_can_go_on(whole, tmp_path, monkeypatch):
    gone, states, look = set(), set(), InlineGrid.get_node_ids

    def get_node_ids(grid):
        if not gone:
            return look(grid)
        states.add(read_status(tmp_path / "run")["state"])
        return []

    monkeypatch.setattr(InlineGrid, "get_node_ids", get_node_ids)
    said = r"After round 2 no client was connected any more, and none came back within 1 s \(server\.wait_for_clients\)"
    changed = settings("server.wait_for_clients=1")
    with pytest.raises(BouquetError, match=rf"{said}\. The last checkpoint is kept: --resume goes on"):
        simulate(changed, tmp_path / "run", follow=lambda line: gone.add(1) if line["round"] == 2 else None)
    assert "waiting" in states
    assert [line["replies"] for line in lines_of(tmp_path / "run")] == [6, 6]
    # Its owner may end it while it waits.
    monkeypatch.setattr("bouquet.server.run.loop.take_back", ask_to_stop)
    with pytest.raises(RunStopped, match="Stopped after round 2, as asked"):
        simulate(settings(), tmp_path / "run", resume=True)
    monkeypatch.undo()
    simulate(settings(), tmp_path / "run", resume=True)
    assert without_times(tmp_path / "run") == whole


def test_a_run_whose_end_nobody_replies_to_has_failed_and_can_go_on(disk, tmp_path, monkeypatch):
    reply = Session.reply_evaluation

    def broken(*arguments):
        if disk:
            raise BouquetError("The disk is full.")
        return reply(*arguments)

    monkeypatch.setattr(Session, "reply_evaluation", broken)
    with pytest.raises(RunFailed, match="No client gave a usable reply in the last round, and none was tested"):
        simulate(settings(), tmp_path / "run", follow=fills_after(disk, 5))
    assert [line["replies"] for line in lines_of(tmp_path / "run")] == [6, 6, 6, 6, 6, 0]
    assert not (tmp_path / "run" / "summary.json").exists()
    disk.clear()
    summary = simulate(settings(), tmp_path / "run", resume=True)
    assert len(summary["accuracy_by_client"]) == 6


def test_one_failed_round_is_survived(disk, tmp_path):
    def follow(line):
        (disk.add if line["round"] == 2 else disk.discard)("full")

    summary = simulate(settings(), tmp_path / "run", follow=follow)
    assert [line["replies"] for line in lines_of(tmp_path / "run")] == [6, 6, 0, 6, 6, 6]
    assert summary["warnings"] == []  # at its end it is none


def test_a_first_round_that_fails_leaves_a_folder_that_the_next_try_may_use(disk, tmp_path):
    disk.add("full")
    with pytest.raises(BouquetError, match=r"No client gave a usable reply in the first round; client-0: .*The disk"):
        simulate(settings(), tmp_path / "run")
    disk.clear()
    for name in OF_A_FALSE_START:
        (tmp_path / "run" / name).write_text("{")
    summary = simulate(settings("run.rounds=1", "run.seed=7"), tmp_path / "run")
    assert not (tmp_path / "run" / NAMES).exists()
    assert (summary["seed"], len(lines_of(tmp_path / "run"))) == (7, 1)
    with pytest.raises(BouquetError, match="holds a run already"):
        simulate(settings(), tmp_path / "run")


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_anew(whole, tmp_path, monkeypatch):

    def killed(*_):
        raise Stopped

    monkeypatch.setattr("bouquet.server.run.loop.save_run", killed)
    with pytest.raises(Stopped):
        simulate(settings(), tmp_path / "run")
    monkeypatch.undo()
    assert [line["round"] for line in lines_of(tmp_path / "run")] == [1]
    simulate(settings(), tmp_path / "run", resume=True)
    assert [line["round"] for line in lines_of(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    assert without_times(tmp_path / "run") == whole


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew_by_itself(tmp_path):
    cut_after(2, settings(), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(BouquetError, match="has rounds but no checkpoint to resume from"):
        simulate(settings(), tmp_path / "run", resume=True)
    assert [line["round"] for line in lines_of(tmp_path / "run")] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "trained"), [(["server.min_replies=7"], 6), (["server.min_replies=3", "server.fraction_train=0.4"], 2)]
)
def test_min_replies_that_no_round_can_have_are_refused(changes, trained, tmp_path):
    with pytest.raises(BouquetError, match=f"server.min_replies = ., but only {trained} of data.clients = 6"):
        simulate(settings(*changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fesem", "ifca", "fl-hc"])
def test_more_clusters_than_devices_are_refused(method, tmp_path):
    few = load_settings(None, ["data.clients=3", f"strategy.name={method}", "strategy.num_clusters=4"])
    with pytest.raises(BouquetError, match=r"num_clusters = 4 is more than data\.clients = 3"):
        simulate(few, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_clusters_than_connected_devices_are_told():
    assert too_few(load_settings(None), 3, 3) == []
    assert "num_clusters = 4, but 3 clients are connected" in too_few(load_settings(None), 4, 3)[0]


def test_a_step_that_is_too_large_is_named_with_what_to_change(tmp_path):
    summary = simulate(
        load_settings(None, [*(s for s in BASE if "num_clusters" not in s), *BAD_STEP]), tmp_path / "run"
    )
    said = " ".join(summary["warnings"])
    assert "train.learning_rate (now 30) or train.max_gradient_norm" in said
    assert any(text in said for text in ("diverged on", "no better than guessing", "The training loss"))


def test_evaluation_is_told_how_devices_train(tmp_path, monkeypatch):
    """A method may adapt a model before it is tested."""
    from bouquet.client.procedures import standard

    seen, evaluate = [], standard.evaluate

    def watched(session):
        seen.append(dict(session.received.config))
        return evaluate(session)

    monkeypatch.setattr(standard, "evaluate", watched)
    simulate(settings("run.rounds=1", "train.learning_rate=0.03"), tmp_path / "run")
    assert [config["learning-rate"] for config in seen] == [0.03] * 6
    assert {"local-epochs", "batch-size", "momentum"} <= set(seen[0])


@pytest.mark.parametrize(("error", "status"), [(RunFailed("Nobody is there."), 1), (BouquetError("A typo."), 2)])
def test_a_failure_ends_the_command_line_with_its_status(error, status, monkeypatch, capsys):
    def fail(**how):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == status
    assert str(error) in capsys.readouterr().err


def test_warnings_are_seen_while_the_run_goes_on_and_at_its_end():
    console = Console(file=io.StringIO(), width=200)
    line = {"round": 1, "replies": 2, "failures": 0, "failed": {}, "clusters": 1, "purity": None, "loss": 2.3}
    line |= {"accuracy_macro": 0.1, "accuracy_trained_macro": 0.1, "bytes_down": 1, "bytes_up": 1, "seconds": 1.0}
    with RoundTable(console, 2, "title") as table:
        table({**line, "warnings": ["The training loss rises."]})
    summary = {"accuracy_macro": 0.1, "accuracy_micro": 0.1, "accuracy_worst_decile": 0.1, "clients": 2, "clusters": 1}
    summary |= {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "purity": None, "warnings": ["Round 1: It rises."]}
    print_summary(console, summary)
    said = console.file.getvalue()
    assert "round 1: The training loss rises." in said
    assert "warning  Round 1: It rises." in said


def test_a_device_that_lost_its_layers_is_in_the_record(tmp_path):
    def forget(line):
        if line["round"] == 2:
            shutil.rmtree(tmp_path / "run" / "devices" / "client-1")

    own = [text for text in BASE if not text.startswith("strategy")]
    chosen = load_settings(None, [*own, "strategy.name=fedper", "run.rounds=3"])
    simulate(chosen, tmp_path / "run", follow=forget)
    lost = [
        [n for n, about in line["by_client"].items() if "state_lost" in about] for line in lines_of(tmp_path / "run")
    ]
    assert lost == [[], [], ["client-1"]]


def test_a_damaged_checkpoint_costs_no_device_its_layers(tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "save_checkpoint", partial(save_checkpoint, keep=3))

    def die(line):
        if line["round"] == 5:
            raise OSError("no power")

    own = [text for text in BASE if not text.startswith("strategy")]
    chosen = load_settings(None, [*own, "strategy.name=fedper", "run.rounds=6"])
    simulate(chosen, tmp_path / "whole")
    with pytest.raises(OSError, match="no power"):
        simulate(chosen, tmp_path / "run", follow=die)
    # The devices have kept round 5; the server did not come to write it, and what it wrote before is damaged.
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "round-000005")
    (tmp_path / "run" / "checkpoint" / "round-000004" / "state.json").write_text("{}")
    simulate(chosen, tmp_path / "run", resume=True)
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")
    assert not any("state_lost" in m for line in lines_of(tmp_path / "run") for m in line["by_client"].values())


def test_a_run_without_a_test_at_the_end_has_failed_and_keeps_its_models(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise BouquetError("The disk is full.")

    monkeypatch.setattr(Session, "reply_evaluation", broken)
    said = r"No device could be tested after the last round; .*client-0, client-1, client-2\. .*The disk is full\."
    with pytest.raises(RunFailed, match=said):
        simulate(settings("run.rounds=1", "data.clients=3"), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["clients"], summary["rounds"]) == (0, 1)
    assert list((tmp_path / "run" / "models").glob("*.safetensors"))
