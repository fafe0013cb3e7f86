"""FedAC: the number of clusters, and centers made of p numbers."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.server.record.reader import read_run
from bouquet.strategies.base.protection import Protection
from bouquet.strategies.fedac.state import remembered_centers
from bouquet.strategies.fedac.strategy import FedAC
from bouquet.strategies.mathematics.robust import Aggregation
from tests.helpers.fedac_replies import WIDE, fixed, planted, replies, started

# --- the number of clusters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [2, 5, 10])
def test_a_planted_k_is_found_from_below_and_above_and_stays(start):
    strategy, rows = FedAC(num_clusters=start), planted(6)
    state = started(strategy, rows, WIDE)
    for round_ in range(2, 5):
        assert len(state.centers) == 6
        assert all(state.assignment[c] == state.assignment[f"c{int(c[1:]) % 6:02d}"] for c in rows)
        for cluster, center in enumerate(state.centers):
            members = [row for client, row in rows.items() if state.assignment[client] == cluster]
            np.testing.assert_allclose(center, np.mean(members, axis=0), rtol=1e-5)
        state = strategy.update(state, round_, replies(rows, WIDE))
        assert (state.changes, state.moved) == ([], 0)


def test_each_split_is_recorded_with_the_figure_that_decided_it():
    strategy = FedAC(num_clusters=2)
    record = strategy.record(started(strategy, planted(4), WIDE))
    assert (record["num_clusters"], record["round"]) == (4, 1)
    assert [change["kind"] for change in record["changes"]] == ["split", "split"]
    for change in record["changes"]:
        assert change["figure"] == max(record["silhouettes"].values()) == record["silhouettes"]["4"]
        assert change["against"] == pytest.approx(record["silhouettes"]["2"])


def test_a_cluster_that_loses_all_its_members_goes_when_k_is_tuned():
    strategy, tuned = fixed(), FedAC(num_clusters=2)
    rows = {**{f"a{i}": (0, i / 5) for i in range(4)}, **{f"b{i}": (10, i / 5) for i in range(4)}}
    state = started(strategy, rows)
    gone = {client: (20, row[1]) for client, row in rows.items()}
    state = strategy.update(state, 2, replies(gone))
    assert (set(state.assignment.values()), len(state.centers)) == ({0}, 2)
    state = tuned.update(state, 3, replies(gone))
    assert "removal" in [change.kind for change in state.changes]
    assert set(state.assignment.values()) == set(range(len(state.centers)))


@pytest.mark.parametrize("far", [10, 1e3, 1e9])
@pytest.mark.parametrize("first", [True, False])
def test_one_model_far_away_does_not_hide_how_the_others_differ(far, first):
    """Seen from a mean that it had drawn to itself, all others lay in one direction, and were one cluster."""
    strategy, rows = FedAC(num_clusters=2), planted(4)
    hostile = {**rows, "mallory": 3 + far * np.ones(10)}
    state = started(strategy, hostile if first else rows, WIDE)
    if not first:  # then the old map holds the others, or it
        state = strategy.update(state, 2, replies({name: hostile[name] for name in ("c00", "mallory")}, WIDE))
        state = strategy.update(replace(state, map_round=-100), 3, replies({"c00": rows["c00"]}, WIDE))
    state = strategy.update(state, 4, replies(rows, WIDE))
    pairs = {(state.assignment[client], int(client[1:]) % 4) for client in rows}
    assert len(pairs) == len(dict(pairs)) == 4


def test_two_devices_share_one_model_when_k_is_tuned():
    state = started(FedAC(), {"a": (0, 1), "b": (10, 1)})
    assert (state.assignment, state.centers.tolist()) == ({"a": 0, "b": 0}, [[5, 1]])


def test_k_is_found_when_few_clients_take_part_in_a_round():
    strategy, rows = FedAC(num_clusters=2), planted(6)
    state = strategy.initial_state(WIDE, np.zeros(10, dtype=np.float32))
    for round_ in range(1, 8):
        chosen = {f"c{(7 * round_ + i) % 30:02d}" for i in range(10)}
        state = strategy.update(state, round_, replies({client: rows[client] for client in chosen}, WIDE))
    assert state.assignment.keys() == rows.keys()
    assert len(state.centers) == 6
    assert all(state.assignment[c] == state.assignment[f"c{int(c[1:]) % 6:02d}"] for c in rows)


@pytest.mark.parametrize("similarity", ["low-rank", "l2"])
def test_without_tuning_the_first_clusters_are_of_clients_gathered_over_rounds(similarity):
    """Of six groups two clients take part in a round: after three of them there are six clusters, as of all at once."""
    strategy, rows = fixed(num_clusters=6, similarity=similarity), planted(6, members=1)
    state = strategy.initial_state(WIDE, np.zeros(10, dtype=np.float32))
    for round_ in range(1, 4):
        assert state.assignment == {}
        chosen = [f"c{i:02d}" for i in (2 * round_ - 2, 2 * round_ - 1)]
        state = strategy.update(state, round_, replies({client: rows[client] for client in chosen}, WIDE))
    assert sorted(state.assignment.values()) == list(range(6))
    for client, row in rows.items():
        np.testing.assert_allclose(state.centers[state.assignment[client]], row, atol=1e-4)
    assert state.gathered == {}


def test_a_cluster_split_off_without_a_model_has_the_center_that_the_map_holds():
    rows = planted(4)
    state = started(fixed(), rows, WIDE)
    assert len(state.centers) == 2
    some = {client: row for client, row in rows.items() if int(client[1:]) % 4 < 2}
    state = FedAC(num_clusters=2).update(state, 2, replies(some, WIDE))
    assert len(state.centers) == 4
    for group in range(4):
        members = [row for client, row in rows.items() if int(client[1:]) % 4 == group]
        center = state.centers[state.assignment[f"c{group:02d}"]]
        np.testing.assert_allclose(center, np.mean(members, axis=0), atol=1e-4)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_a_center_made_of_p_numbers_alone_follows_the_servers_rule_too(rule):
    """Of a cluster without a model in this round; one client's last numbers were a hundredfold."""
    rows = planted(1)
    strategy = fixed(num_clusters=1)
    state = started(strategy, rows, WIDE)
    clients = sorted(rows)
    reduced = {**state.reduced, clients[2]: [100 * number for number in state.reduced[clients[2]]]}
    labels = np.zeros(len(clients), dtype=np.int64)
    strategy.protection = Protection(Aggregation(rule))
    center = remembered_centers(replace(state, reduced=reduced), clients, labels, 1, strategy.aggregation)
    honest = np.array([row for client, row in rows.items() if client != clients[2]])
    # within the honest ones' own spread, which a mean with the bad one is not
    assert np.abs(center - honest.mean(axis=0)).max() < 0.5
    strategy.protection = Protection()
    moved = remembered_centers(replace(state, reduced=reduced), clients, labels, 1, strategy.aggregation)
    assert np.abs(moved - honest.mean(axis=0)).max() > 1


def test_a_round_in_which_only_newcomers_reply_changes_no_center(tmp_path):
    """Sampled: three of ten in a round, and with this seed once three whom it never saw."""
    changes = ["data.clients=10", "run.rounds=5", "server.fraction_train=0.3", "strategy.name=fedac"]
    simulate(load_settings(None, [*changes, "simulation.engine=inline", "train.local_epochs=1"]), tmp_path / "run")
    rounds = read_run(tmp_path / "run").rounds
    assert [line["round"] for line in rounds] == [1, 2, 3, 4, 5]
    before = [set(line["assignment"]) for line in rounds]
    replied = [set(line["by_client"]) for line in rounds]
    assert any(known and not known & now for known, now in zip(before, replied[1:], strict=False))
