import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.common.settings import load_settings
from bouquet.common.system.locks import locked
from bouquet.server.record.reader import RecordError, is_number, natural_order, read_run


def test_a_finished_run_is_read_whole(write_run):
    run = read_run(write_run(clients=4, groups=2, rounds=3))

    assert [line["round"] for line in run.rounds] == [1, 2, 3]
    assert run.completed == 3
    assert run.notes == ()
    assert run.title == "fesem on digits, rotated"
    assert run.clients == ("client-0", "client-1", "client-2", "client-3")
    assert run.groups == {"client-0": 0, "client-1": 1, "client-2": 0, "client-3": 1}
    assert run.assignment == run.groups
    assert run.bytes_by_client["client-2"] == (600, 1200)
    assert run.total("bytes_up") == 4 * 600
    assert run.final("purity") == 1.0


def test_an_outcome_stands_where_the_rounds_before_it_have_led_to(write_run):
    run = read_run(write_run(rounds=3, accuracy=0.9))

    x, y = run.outcome("accuracy_macro")
    np.testing.assert_array_equal(x, [1, 2, 3])  # line 1 was not tested, line 3 shows two rounds, the summary three
    np.testing.assert_allclose(y, [0.3, 0.6, 0.9])
    x, y = run.series("train_loss")
    np.testing.assert_array_equal(x, [1, 2, 3])
    np.testing.assert_allclose(y, [1.5, 0.75, 0.5])


def test_a_run_that_was_stopped_is_read_and_says_so(write_run):
    folder = write_run(clients=4, groups=2, rounds=3, finished=False)
    run = read_run(folder)

    assert run.summary is None
    assert run.notes == ("This run has not ended: 3 of 3 rounds are recorded, no summary yet.",)
    assert run.assignment == {"client-0": 0, "client-1": 1, "client-2": 0, "client-3": 1}
    assert run.groups == {}
    assert run.score_by_client == {}
    assert run.final("accuracy_macro") == pytest.approx(0.6)
    assert run.total("seconds") == pytest.approx(1.5)


def test_a_run_before_its_first_round_has_nothing_but_settings(write_run):
    folder = write_run(finished=False)
    (folder / "rounds.jsonl").unlink()
    run = read_run(folder)

    assert (run.rounds, run.clients, run.completed) == ((), (), 0)
    assert run.final("purity") is None


def test_a_half_written_last_line_is_passed_over_and_said(write_run):
    folder = write_run(rounds=3, finished=False)
    file = folder / "rounds.jsonl"
    file.write_text(file.read_text()[:-30])
    run = read_run(folder)

    assert run.completed == 2
    assert run.notes[-1] == "The last line of rounds.jsonl (line 3) is half-written and was passed over."


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"round": 2', r"rounds.jsonl, line 2 is not valid JSON"),
        ("[" * 10**5, r"rounds.jsonl, line 2 is not valid JSON"),
        ("[2]", r"rounds.jsonl, line 2 has round = None"),
        ('{"round": 0}', r"rounds.jsonl, line 2 has round = 0, expected a whole number from 1 on"),
    ],
)
def test_a_broken_line_is_named(write_run, line, message):
    file = write_run(rounds=3) / "rounds.jsonl"
    lines = file.read_text().splitlines()
    lines[1] = line
    file.write_text("\n".join(lines) + "\n")

    with pytest.raises(RecordError, match=message):
        read_run(file.parent)


def test_a_broken_last_line_that_was_written_to_its_end_is_an_error(write_run):
    file = write_run(rounds=1) / "rounds.jsonl"
    file.write_text(file.read_text() + "nonsense\n")

    with pytest.raises(RecordError, match="line 2 is not valid JSON"):
        read_run(file.parent)


def test_a_round_that_was_run_again_counts_as_it_was_recorded_last(write_run):
    file = write_run(rounds=2) / "rounds.jsonl"
    again = json.loads(file.read_text().splitlines()[1]) | {"purity": 0.25}
    file.write_text(file.read_text() + json.dumps(again) + "\n")

    np.testing.assert_array_equal(read_run(file.parent).series("purity")[1], [0.5, 0.25])


def test_what_is_not_a_run_folder_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RecordError, match="does not exist; 'bouquet simulate --out DIR'"):
        read_run(tmp_path / "absent")
    with pytest.raises(RecordError, match=r"is not a run folder: it has no settings\.json"):
        read_run(tmp_path)
    (tmp_path / "runs" / "plants").mkdir(parents=True)
    (tmp_path / "runs" / "plants" / "settings.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError, match=r"plants does not exist.* runs/plants is one\."):
        read_run("plants")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.json", "{", r"settings\.json is not valid JSON"),
        ("summary.json", "[" * 10**5, r"summary\.json is not valid JSON"),
        ("settings.json", '{"run": {"speed": 1}}', r"settings\.json does not fit .* Unknown setting 'run\.speed'"),
        ("summary.json", "[]", r"summary\.json holds list, expected a JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(write_run, name, content, message):
    folder = write_run()
    (folder / name).write_text(content)

    with pytest.raises(RecordError, match=message):
        read_run(folder)


def test_clients_are_ordered_by_group(write_run):
    folder = write_run(clients=4, groups=2)
    summary = json.loads((folder / "summary.json").read_text())
    summary["assignment"] = {"client-0": 1, "client-1": 0, "client-2": 0}
    (folder / "summary.json").write_text(json.dumps(summary))
    rounds = (folder / "rounds.jsonl").read_text().replace('"client-3": 0}', '"client-2": 0}')
    (folder / "rounds.jsonl").write_text(rounds.replace('"client-3": 1}', '"client-2": 0}'))
    run = read_run(folder)

    assert run.by_group() == ["client-2", "client-0", "client-1", "client-3"]


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_natural_order_is_the_order_of_the_numbers(numbers):
    names = sorted((f"client-{number}" for number in numbers), key=natural_order)

    assert names == [f"client-{number}" for number in sorted(numbers)]


@pytest.mark.parametrize(
    ("value", "drawn"), [(1, True), (0.5, True), (None, False), (float("nan"), False), (True, False)]
)
def test_only_finite_numbers_are_drawn(value, drawn):
    assert is_number(value) is drawn


def test_of_a_server_that_starts_it_is_said_that_it_starts(tmp_path):
    with (
        locked(tmp_path / "run", "the run folder", ""),
        pytest.raises(RecordError, match="run is starting: its"),
    ):
        read_run(tmp_path / "run")


def test_the_verdict_of_a_run_that_is_over_is_of_those_tested_at_its_end(write_run):
    folder = write_run(clients=2)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["by_client"] = {name: {"beside": {"own": 0.5, "alone": 0.6}} for name in ("client-0", "client-1")}
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert set(read_run(folder).beside) == {"client-0", "client-1"}

    summary = json.loads((folder / "summary.json").read_text())
    last = {"client-0": {"own": 0.9, "alone": 0.9}}  # the other was gone
    (folder / "summary.json").write_text(json.dumps({**summary, "beside_by_client": last}))
    assert read_run(folder).beside == last


def test_of_a_run_without_an_end_the_last_rounds_are_read(tmp_path, monkeypatch):
    settings = load_settings(None, ["run.rounds=endless"])
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    (tmp_path / "rounds.jsonl").write_text("".join(f'{{"round": {k}}}\n' for k in range(1, 100)))
    assert len(read_run(tmp_path).rounds) == 99
    monkeypatch.setattr("bouquet.server.record.reader.MOST_BYTES", 60)
    run = read_run(tmp_path)
    assert [line["round"] for line in run.rounds] == [96, 97, 98, 99]
    assert run.notes == (
        "This run has not ended: 99 rounds are recorded, no summary yet.",
        "Curves and sums are of the rounds from 96 on; rounds.jsonl has all of them.",
    )
