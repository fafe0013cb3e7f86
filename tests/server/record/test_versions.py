"""The models of earlier rounds: which are kept, what is said of them, and a cluster that begins with one again."""

from types import SimpleNamespace

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.settings import load_settings
from bouquet.server.record import versions as module
from bouquet.server.record.versions import listed, save_versions, versions
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.build import build_strategy
from bouquet.server.run.rollback import ask_to_roll_back, roll_back
from bouquet.server.run_folder import ROLLBACK, ROUNDS, VERSIONS
from bouquet.strategies.fesem.state import FeSEMState

LAYOUT = ParameterLayout.of({"only": np.zeros(2, dtype=np.float32)})


def method(*centers):
    """FeSEM before a round, with these centers, each with a device."""
    made = build_strategy(load_settings(None, ["strategy.name=fesem", "strategy.num_clusters=2"]))
    made.layout, assignment = LAYOUT, {f"pi-{k}": k for k in range(len(centers))}
    made.state = FeSEMState(centers=np.array(centers, dtype=np.float32), assignment=assignment)
    return made


def test_ever_fewer_of_the_past_are_kept(tmp_path):
    for round_ in range(1, 201):
        save_versions(tmp_path, method([0, round_]), round_)
    kept = [version.round for version in versions(tmp_path)]
    assert kept[-16:] == [*range(185, 201)]
    assert kept[:-16] == [*range(16, 65, 16), *range(80, 137, 8), *range(140, 169, 4), *range(170, 185, 2)]


def test_of_all_together_no_more_than_a_bound(tmp_path, monkeypatch):
    save_versions(tmp_path, method([0, 0], [1, 1]), 1)
    size = versions(tmp_path)[0].path.stat().st_size
    monkeypatch.setattr(module, "MOST_BYTES", 5 * size)
    for round_ in (2, 3):
        save_versions(tmp_path, method([0, 0], [1, 1]), round_)
    assert [version.name for version in versions(tmp_path)] == ["1.1", "2.0", "2.1", "3.0", "3.1"]
    save_versions(tmp_path, method([0, 0]), 2)  # a round that is begun again, with another number of clusters
    assert [version.name for version in versions(tmp_path)] == ["1.1", "2.0"]


@pytest.fixture
def run(tmp_path):
    """A run of three rounds and two clusters, whose second device stays with what it made in the second one."""
    record = RunRecord(tmp_path / "run")
    record.create(load_settings(None, ["strategy.name=fesem", "strategy.num_clusters=2"]))
    for round_, scores in enumerate(((0.5, 0.6), (0.7, 0.8), (0.9, 0.1)), 1):
        save_versions(record.folder, method([round_, 0], [round_, 1]), round_)
        said = {f"pi-{k}": {"accuracy": score} for k, score in enumerate(scores)}
        said["pi-1"] |= {"in_use": 2} if round_ == 3 else {}
        record.add_round({"round": round_, "by_client": said, "replies": 2})
    return record.folder


def test_each_with_its_score_and_where_it_runs(run):
    shown = [(one["version"], one["accuracy"], one["devices"], one["in_use"]) for one in listed(run)]
    assert shown[:3] == [("1.0", 0.5, ["pi-0"], []), ("1.1", 0.6, ["pi-1"], []), ("2.0", 0.7, ["pi-0"], [])]
    assert shown[3:] == [
        ("2.1", 0.8, ["pi-1"], ["pi-1"]),
        ("3.0", 0.9, ["pi-0"], ["pi-0"]),
        ("3.1", 0.1, ["pi-1"], []),
    ]
    assert len({one["digest"] for one in listed(run)}) == 6
    save_versions(run, method([3, 0], [3, 1]), 4)  # as in round 3
    assert [one["digest"] for one in listed(run)][4:6] == [one["digest"] for one in listed(run)][6:]


def test_what_cannot_be_read_costs_nothing_else(run, monkeypatch):
    (run / VERSIONS / "000001-0.safetensors").write_bytes(b"")
    there = versions(run)
    there[1].path.unlink()  # by a round of a run that goes on
    monkeypatch.setattr(module, "versions", lambda run: there)
    lines = (run / ROUNDS).read_text().splitlines()
    (run / ROUNDS).write_text("\n".join([lines[0], '{"round": 2, "replies": 0}', lines[2], '{"round": 4, "re']))
    shown = [(one["version"], one["accuracy"], one["devices"]) for one in listed(run)]
    assert shown[:2] == [("1.0", None, None), ("2.0", None, ["pi-0"])]
    assert shown[2:] == [("2.1", None, ["pi-1"]), ("3.0", 0.9, ["pi-0"]), ("3.1", 0.1, ["pi-1"])]


def test_a_cluster_begins_its_next_round_with_a_version(run):
    assert ask_to_roll_back(run, 1).name == "2.1"
    strategy = method([3, 0], [3, 1])
    assert roll_back(run, strategy) == ["Cluster 1 has its version 2.1 again."]
    assert strategy.state.centers.tolist() == [[3, 0], [2, 1]]
    assert strategy.plan(strategy.state, 4, ["pi-1"])["pi-1"].models["arrays"].vector.tolist() == [2, 1]
    assert (roll_back(run, strategy), (run / ROLLBACK).exists()) == ([], False)
    assert ask_to_roll_back(run, 0, "1.1").name == "1.1"  # another cluster's


def test_what_was_asked_of_several_clusters_is_done_the_last_of_each(run):
    for asked in ((0, "1.0"), (1, "1.1"), (0, "2.0")):
        ask_to_roll_back(run, *asked)
    strategy = method([3, 0], [3, 1])
    assert roll_back(run, strategy) == ["Cluster 0 has its version 2.0 again.", "Cluster 1 has its version 1.1 again."]
    assert strategy.state.centers.tolist() == [[2, 0], [1, 1]]


def test_what_cannot_be_rolled_back_is_said(run):
    for asked, said in (
        ((1, "7.1"), r"no version 7\.1; .* keeps 1\.0, 1\.1, 2\.0"),
        ((5, None), r"no version of cluster 5 before its last; .* keeps 1\.0, 1\.1, 2\.0"),
        ((5, "2.0"), r"no cluster 5; the last round of .* has 0, 1"),
    ):
        with pytest.raises(BouquetError, match=said):
            ask_to_roll_back(run, *asked)
    ask_to_roll_back(run, 0)
    ask_to_roll_back(run, 1)
    joined = method([3, 0])
    assert [text.partition(": ")[2] for text in roll_back(run, joined)] == ["", "There is no cluster 1 any more."]
    assert joined.state.centers.tolist() == [[2, 0]]  # the other one is
    ask_to_roll_back(run, 1)
    assert roll_back(run, SimpleNamespace(state=None)) == []  # before the first round it waits
    (run / VERSIONS / "000002-1.safetensors").write_bytes(b"damaged")
    assert "cannot be done: The model" in roll_back(run, method([3, 0], [3, 1]))[0]
    with pytest.raises(BouquetError, match=r"000002-1\.safetensors cannot be read"):
        ask_to_roll_back(run, 1)
