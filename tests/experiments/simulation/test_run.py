"""Whole runs, simulated in this process: the record, determinism, resume, and clients that fail."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.client.rounds.session import Session
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.common.system.locks import locked
from bouquet.experiments.simulation.run import simulate
from bouquet.server.monitoring.diagnosis import failures
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds
from tests.helpers.stopped_runs import lines_of, summary_of

BASE = [
    "data.clients=6",
    "data.groups=3",
    "data.partition=rotated",
    "strategy.num_clusters=3",
    "run.rounds=4",
    "simulation.engine=inline",
]


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    simulate(settings(), folder)
    return folder


def test_the_record_says_what_happened(finished):
    summary, lines = summary_of(finished), lines_of(finished)
    assert (summary["strategy"], summary["dataset"], summary["partition"]) == ("fesem", "digits", "rotated")
    assert (summary["clients"], summary["rounds"], summary["clusters"]) == (6, 4, 3)
    assert (summary["purity"], summary["ari"]) == (1.0, 1.0)
    assert summary["groups"] == {f"client-{i}": i % 3 for i in range(6)}
    assert summary["accuracy_macro"] > 0.8
    assert summary["accuracy_macro"] == pytest.approx(np.mean(list(summary["accuracy_by_client"].values())))
    assert summary["bytes_up"] > sum(line["bytes_up"] for line in lines)  # the last evaluation counts, too
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert all(line["replies"] == 6 and line["failures"] == 0 for line in lines)
    one = lines[1]
    assert sum(one["bytes_by_layer"]["up"].values()) <= one["bytes_up"]
    assert sum(up for up, _ in one["bytes_by_client"].values()) == one["bytes_up"]
    assert one["strategy"]["num_clusters"] == 3
    for name in ("settings.json", "checkpoint", "models"):
        assert (finished / name).exists()
    assert not (finished / "devices").exists()


def test_the_models_are_left_behind_with_their_clients(finished):
    files = sorted((finished / "models").glob("*.safetensors"))
    assert [file.name for file in files] == [f"cluster-{k}.safetensors" for k in range(3)]
    assert {name: array.shape for name, array in load_file(files[0]).items()}["fc1.weight"] == (64, 64)
    assert (finished / "models").stat().st_mode & 0o077 == 0  # nobody else reads what was learned


def test_bytes_are_those_of_the_model(finished):
    line = lines_of(finished)[2]
    model = sum(array.nbytes for array in load_file(finished / "models" / "cluster-0.safetensors").values())
    for direction in ("bytes_up", "bytes_down"):
        assert 6 * model < line[direction] < 6 * model * 1.1


def test_same_settings_and_seed_give_the_same_result(finished, tmp_path):
    simulate(settings(), tmp_path / "again")
    assert summary_of(tmp_path / "again") == summary_of(finished)
    assert lines_of(tmp_path / "again") == lines_of(finished)
    simulate(settings("run.seed=1"), tmp_path / "other")
    assert summary_of(tmp_path / "other")["accuracy_by_client"] != summary_of(finished)["accuracy_by_client"]


def test_a_finished_run_can_be_continued_for_longer(tmp_path):
    simulate(settings("run.rounds=2"), tmp_path / "run")
    simulate(settings("run.rounds=4"), tmp_path / "run", resume=True)
    assert len(lines_of(tmp_path / "run")) == 4


def test_evaluation_between_rounds(tmp_path):
    simulate(settings("server.evaluate_every=2", "personal.serve=own"), tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    assert [("evaluation" in line) for line in lines] == [False, True, False, False]
    # what was evaluated after round 2 is what the devices start round 3 from
    assert lines[1]["evaluation"]["accuracy_macro"] == pytest.approx(lines[2]["accuracy_macro"])


def test_who_fails_an_evaluation_between_rounds_did_not_fail_the_round(monkeypatch, tmp_path):
    tested = Session.reply_evaluation

    def without_a_camera(session, vector):
        if session.node.client == "client-1":
            raise BouquetError("The camera is gone.")
        return tested(session, vector)

    monkeypatch.setattr(Session, "reply_evaluation", without_a_camera)
    simulate(settings("run.rounds=2", "server.evaluate_every=1"), tmp_path / "run")
    line = lines_of(tmp_path / "run")[0]

    assert (line["replies"], line["failures"], line["failed"]) == (6, 0, {})
    assert line["evaluation"]["clients"] == 5
    assert line["evaluation"]["not_evaluated"] == {"client-1": "The device reported: The camera is gone."}
    assert failures(line) == [("client-1", "In the evaluation: The device reported: The camera is gone.")]
    assert summary_of(tmp_path / "run")["not_evaluated"] == line["evaluation"]["not_evaluated"]


def test_who_was_not_asked_at_the_end_is_not_said_to_have_failed(tmp_path):
    simulate(settings("run.rounds=1", "server.fraction_evaluate=0.5"), tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    said = "It was not connected, or not one of those that were asked (server.fraction_evaluate = 0.5)."
    assert set(summary["not_evaluated"].values()) == {said}
    assert sorted([*summary["not_evaluated"], *summary["accuracy_by_client"]]) == [f"client-{k}" for k in range(6)]


def test_ray_gives_the_same_result_beside_a_users_own_files(finished, tmp_path, monkeypatch):
    """Files with the names of our folders: Ray's processes have the folder of who starts them on their path."""
    for name in ("client", "common", "experiments", "server", "strategies"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('mine')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    simulate(settings("simulation.engine=ray"), tmp_path / "ray")
    assert summary_of(tmp_path / "ray") == summary_of(finished)


def test_a_run_folder_is_never_overwritten(finished):
    before = (finished / "summary.json").read_bytes()
    with pytest.raises(BouquetError, match="holds a run already"):
        simulate(settings(), finished)
    assert (finished / "summary.json").read_bytes() == before


def test_two_runs_never_write_to_one_folder(tmp_path):
    with locked(tmp_path / "run", "the run folder", ""), pytest.raises(BouquetError, match=r"is in use by process \d+"):
        simulate(settings(), tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


def test_resume_refuses_other_settings(tmp_path):
    simulate(settings("run.rounds=1"), tmp_path / "run")
    with pytest.raises(BouquetError, match=r"cannot go on with other settings: run\.seed was 0, now 5\. Set"):
        simulate(settings("run.seed=5"), tmp_path / "run", resume=True)
    simulate(settings("run.rounds=2"), tmp_path / "run", resume=True)
    with pytest.raises(
        BouquetError, match=r"The checkpoint is of round 2, after the last one asked for \(run\.rounds = 1\)"
    ):
        simulate(settings("run.rounds=1"), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.clients=2000"], "2000"),
        (["strategy.name=nothing"], "Unknown strategy 'nothing'"),
        (["model.name=nothing"], "nothing"),
        (["model.name=cnn-har"], "cnn-har"),
        (["data.dataset=nothing"], "Unknown data set 'nothing'"),
        (["data.dataset=mnist"], "needs a data folder"),
        (["data.partition=natural"], "natural"),
        (["server.min_clients=9"], "server.min_clients = 9 is more than data.clients = 6"),
        (["data.dataset=own", "data.classes=['a']", "data.input_shape=[1,8,8]"], "a folder for each client"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(changes, message, tmp_path):
    with pytest.raises(BouquetError, match=message):
        simulate(settings(*changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_few_clients_end_the_run_with_the_reason(tmp_path, initial):
    from bouquet.experiments.simulation.inline_grid import InlineGrid

    chosen = settings("server.wait_for_clients=0.1")
    with pytest.raises(BouquetError, match=r"Only 0 of 2 clients \(server\.min_clients\) connected"):
        run_rounds(InlineGrid({}), chosen, initial, RunRecord(tmp_path / "run"))
