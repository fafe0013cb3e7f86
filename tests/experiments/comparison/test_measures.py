import json
from dataclasses import asdict

import pytest

from bouquet.common.task.score import Score
from bouquet.experiments.comparison.measures import (
    Metric,
    MetricError,
    link_seconds,
    parse_metric,
    rounds_to,
    rounds_to_convergence,
)
from bouquet.server.record.reader import read_run

# The run that `write_run` makes: 6 clients, each sends 200 and receives 400 bytes a round, 0.5 s a round; the accuracy
# after t of 3 rounds is 0.3 t, the purity 0.5 after the first round and 1 from the second on.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy_macro", 0.9),
        ("clusters", 2),
        ("bytes_total", 3 * 6 * 600),
        ("rounds_to_accuracy_0.6", 2),
        ("rounds_to_accuracy_micro_.61", 3),
        ("rounds_to_accuracy_0.91", None),
        ("rounds_to_purity_0.9", 2),
        ("rounds_to_ari_0", 1),
        ("bytes_to_accuracy_0.6", 2 * 6 * 600),
        ("seconds_to_accuracy_0.6", 1.0),
        ("seconds_at_2mbit", 3 * 600 * 8 / 2e6),
        ("seconds_at_0.5mbit_to_purity_0.9", 2 * 600 * 8 / 0.5e6),
        ("seconds_at_2mbit_to_accuracy_1", None),
        ("strategy.moved", 4),
        ("strategy.absent", None),
    ],
)
def test_a_metric_of_a_run(write_run, name, value):
    folder = write_run()
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"strategy_record": {"moved": 4, "note": "text"}}))

    assert parse_metric(name).of(read_run(folder)) == (None if value is None else pytest.approx(value))


def test_of_models_after_local_training_the_last_of_each_device_counts(write_run, edit_round):
    """Two of three devices trained, one of them last in the round before the last."""
    folder = write_run(rounds=3, clients=3)
    edit_round(folder, 1, by_client={"client-0": {"accuracy_trained": 0.1, "tested": 10}})
    edit_round(folder, 2, by_client={"client-1": {"accuracy_trained": 0.2, "tested": 30}})
    edit_round(folder, 3, by_client={"client-0": {"accuracy_trained": 0.6, "tested": 10}}, accuracy_trained_micro=0.6)
    run = read_run(folder)
    assert parse_metric("accuracy_macro").of(run, "trained") == pytest.approx(0.4)
    assert parse_metric("accuracy_micro").of(run, "trained") == pytest.approx(0.3)


def test_of_an_error_after_local_training_the_worst_are_the_largest(write_run, edit_round):
    folder = write_run(rounds=1, clients=2)
    trained = {"client-0": {"mae_trained": 0.5}, "client-1": {"mae_trained": 2.0}}
    edit_round(folder, 1, by_client=trained, score=asdict(Score("mae", "MAE", higher_is_better=False)))
    run = read_run(folder)
    found = [parse_metric(f"mae_{what}").of(run, "trained") for what in ("macro", "worst_decile", "deviation")]
    assert found == [1.25, 2.0, 0.75]


def test_a_target_that_only_the_final_test_shows_counts_as_reached_at_the_end(write_run, edit_round):
    folder = write_run(rounds=3)
    for number in (1, 2, 3):
        edit_round(folder, number, accuracy_macro=None)

    assert rounds_to(read_run(folder), "accuracy_macro", 0.1) == 3


@pytest.mark.parametrize(
    ("accuracy", "last", "converged"),
    [
        # the last six have .800 in the mean; line 5 tests what four rounds made, line 6 is lower by less than a point
        ([0.1, 0.3, 0.5, 0.7, 0.805, 0.792, 0.80, 0.81, 0.80, 0.80, 0.79, 0.80], 0.80, 4),
        # it was there after four rounds and fell again: it stays from the sixth on
        ([0.1, 0.3, 0.5, 0.7, 0.805, 0.785, 0.80, 0.81, 0.80, 0.80, 0.79, 0.80], 0.80, 6),
        ([0.80] * 12, 0.80, 0),
        ([0.80] * 12, 0.78, None),  # the last test is further below
        ([0.80, 0.80, 0.77] * 4, 0.80, None),  # it swings to the end
    ],
)
def test_an_accuracy_has_converged_where_it_stays_within_a_point_of_its_last_six(
    write_run, edit_round, accuracy, last, converged
):
    folder = write_run(rounds=12)
    for number, value in enumerate(accuracy, start=1):
        edit_round(folder, number, accuracy_macro=value)
    summary = json.loads((folder / "summary.json").read_text())  # it adds the last test
    (folder / "summary.json").write_text(json.dumps(summary | {"accuracy_macro": last}))
    run = read_run(folder)

    assert rounds_to_convergence(run) == converged
    assert parse_metric("rounds_to_convergence").of(run) == converged
    if converged:
        assert parse_metric("bytes_to_convergence").of(run) == converged * 6 * 600
        assert parse_metric("seconds_at_2mbit_to_convergence").of(run) == pytest.approx(converged * 600 * 8 / 2e6)


@pytest.mark.parametrize(("tests", "converged"), [(11, None), (12, 1)])
def test_a_run_of_a_few_rounds_has_no_convergence(write_run, edit_round, tests, converged):
    folder = write_run(rounds=tests)  # the first line tests no round; the summary adds the last test
    for number in range(1, tests + 1):
        edit_round(folder, number, accuracy_macro=0.8 if number > 1 else None)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"accuracy_macro": 0.8}))
    assert rounds_to_convergence(read_run(folder)) == converged


def test_a_round_waits_for_the_client_that_exchanges_most(write_run, edit_round):
    folder = write_run(rounds=2)
    edit_round(folder, 1, bytes_by_client={"client-0": [100, 900], "client-1": [600, 600]})
    edit_round(folder, 2, bytes_by_client={"client-0": [50, 0]})

    assert link_seconds(read_run(folder), rate=1.0) == pytest.approx((1200 + 50) * 8 / 1e6)


@pytest.mark.parametrize(
    "name", ["speed", "rounds_to_loss_0.1", "rounds_to_accuracy_", "seconds_at_0mbit", "strategy."]
)
def test_an_unknown_metric_is_refused_with_those_there_are(name):
    with pytest.raises(MetricError, match=f"Unknown metric '{name}'; .*purity"):
        parse_metric(name)


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("accuracy_macro", [0.91, 0.912, 0.914], ".912 ± .002"),
        ("accuracy_macro", [1.0, 1.0], "1.000 ± .000"),
        ("ari", [-0.0125], "-.013"),
        ("purity", [None, None, None], "— (0/3)"),
        ("accuracy_macro", [0.5, None, 0.7], ".600 ± .141 (2/3)"),
        ("clusters", [4], "4"),
        ("clusters", [4, 4], "4.0 ± 0.0"),
        ("rounds_to_accuracy_0.8", [3, None], "3 (1/2)"),
        ("bytes_up", [2_000_000, 2_020_000], "2.010 ± 0.014"),
        ("bytes_up", [123_400_000], "123.4"),
        ("bytes_up", [50_000], "0.0500"),
        ("seconds", [12.34, 12.36], "12.3 ± 0.0"),
    ],
)
def test_values_are_written_by_kind(name, values, text):
    assert parse_metric(name).mean_text(values) == text


def test_the_title_has_the_unit():
    assert parse_metric("bytes_to_purity_0.9").title == "bytes_to_purity_0.9 (MB)"
    assert Metric("purity", "fraction").title == "purity"
