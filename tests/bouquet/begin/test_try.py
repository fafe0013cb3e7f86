"""`bouquet try`: nothing is chosen or trained on what is tested, and no advice goes beyond the noise."""

import dataclasses

import numpy as np
import pytest

from bouquet.begin import trial
from bouquet.begin.draft import draft_text
from bouquet.begin.look import look
from bouquet.begin.parts import MOST, DeviceSamples, read_devices, write_parts
from bouquet.begin.trial import (
    RowResult,
    a_guess,
    advice,
    candidate,
    lines_to_put,
    outcomes,
    put_into,
    speed_advice,
    trial_table,
    what_is_put,
)
from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings, parse_settings
from bouquet.common.task.score import ACCURACY, Score
from bouquet.experiments.comparison.run import CellResult, Results
from bouquet.experiments.comparison.significance import Difference
from bouquet.experiments.comparison.table import tuning_table
from bouquet.experiments.comparison.tuning_grids import ChosenValues
from examples.photos.make_photos import write_photos
from examples.sensors.make_tables import write_tables
from tests.bouquet.test_cli import bouquet

MAE = Score("mae", "MAE", "cm", higher_is_better=False)


def numbered(count, in_order=False, overlap=0, labels=2):
    """Samples that are their own numbers, so that one sees which are where."""
    return DeviceSamples(np.arange(count, dtype=np.float32)[:, None], np.arange(count) % labels, in_order, overlap)


def parts(folder, what, device="a"):
    with np.load(folder / what / device / "data.npz") as held:
        return held["x"][:, 0].astype(int).tolist(), held["x_test"][:, 0].astype(int).tolist()


def test_what_is_chosen_on_is_never_tested_on_and_each_seed_tests_another_part(tmp_path):
    write_parts({"a": numbered(50)}, tmp_path, 0.2, (0, 1))
    others, chosen_on = parts(tmp_path, "chosen-on")
    assert sorted(others + chosen_on) == list(range(50))
    (trained, tested), (_, again) = parts(tmp_path, "s0"), parts(tmp_path, "s1")
    assert sorted(trained + tested) == list(range(50))
    assert set(chosen_on) <= set(trained)
    assert (len(tested), len(chosen_on)) == (10, 10)
    assert again != tested


def test_the_newest_is_tested_and_windows_share_no_row_with_what_is_trained_on(tmp_path):
    write_parts({"a": numbered(100, in_order=True, overlap=5)}, tmp_path, 0.2, (0, 1))
    for seed in ("s0", "s1"):
        assert parts(tmp_path, seed) == (list(range(75)), list(range(80, 100)))
    assert parts(tmp_path, "chosen-on") == (list(range(51)), list(range(56, 75)))
    write_parts({"a": numbered(MOST + 100, in_order=True)}, tmp_path, 0.2, (0,))
    assert parts(tmp_path, "s0")[0][0] == 100  # the oldest are left out
    with pytest.raises(BouquetError, match="a has 2 samples: too few"):
        write_parts({"a": numbered(2)}, tmp_path, 0.2, (0,))


def test_what_tells_nothing_is_not_compared(tmp_path):
    write_tables(tmp_path / "tanks", ("a", "b"), hours=100)
    sections = look(tmp_path / "tanks").sections
    del sections["table"]["targets"], sections["table"]["horizon"]
    odd = parse_settings(sections, {"task.kind": "anomaly"})
    with pytest.raises(BouquetError, match=r"task\.kind = 'anomaly' tells nothing"):
        read_devices(odd, [tmp_path / "tanks" / "a.csv", tmp_path / "tanks" / "b.csv"])


def test_one_device_is_divided_by_the_order_of_its_samples(tmp_path):
    write_photos(tmp_path, ("garden-pi",), each=20, size=8)
    settings = parse_settings(look(tmp_path / "garden-pi").sections, {})
    found = read_devices(settings, [tmp_path / "garden-pi"])
    assert list(found) == ["part-1", "part-2", "part-3"]
    assert all(set(samples.y) == {0, 1, 2} for samples in found.values())
    settings = settings.with_overrides({"data.input_shape": [3, 4, 4]})
    write_photos(tmp_path / "few", ("garden-pi",), each=5, size=8)
    with pytest.raises(BouquetError, match="One device with 15 samples cannot be divided"):
        read_devices(settings, [tmp_path / "few" / "garden-pi"])


@pytest.fixture
def table(tmp_path):
    settings = parse_settings({"data": {"dataset": "own", "classes": ["x", "y"], "input_shape": [1]}}, {})
    return trial_table(settings, {name: numbered(40) for name in ("a", "b")}, tmp_path, 3, "yours")


def test_each_row_is_chosen_and_tested_on_the_same_grid_and_parts(table, tmp_path):
    for cell in table.cells:
        assert cell.settings.data.data_dir == str(tmp_path / "data" / f"s{cell.seed}")
        assert cell.settings.run.rounds == 3
    tried = tuning_table(table).cells
    assert {cell.settings.data.data_dir for cell in tried} == {str(tmp_path / "data" / "chosen-on")}
    rates = {(cell.settings.strategy.name, cell.settings.train.learning_rate) for cell in tried}
    names = {name for name, _ in rates}
    assert names == {"standalone", "fedavg", "fedper", "ditto", "fesem"}
    assert rates == {(name, rate) for name in names for rate in trial.LEARNING_RATES}


class Told:
    """A run, as far as an outcome looks at it."""

    def __init__(self, scores):
        self.score_by_client, self.score = scores, ACCURACY
        self.last_numbers = {client: {"accuracy_trained": value} for client, value in scores.items()}


def results(table, worth, promised):
    """A comparison whose row R has in seed s at client c the score ``worth(R, s, c)``, and promised so much."""
    cells = [
        CellResult(cell, Told({client: worth(cell.strategy, cell.seed, client) for client in "ab"}))
        for cell in table.cells
    ]
    values = {"train.learning_rate": 0.1}
    choices = {
        (row.label, trial.COLUMN): ChosenValues(values, (), [(values, [promised.get(row.label, 0.5), None])])
        for row in table.rows
    }
    return Results(dataclasses.replace(table, choices=choices), cells)


def jitter(seed):
    return (0.00, 0.02, -0.01, 0.01, -0.02)[seed % 5]


def test_a_gain_beyond_the_noise_is_advised_with_who_has_it(table):
    gains = {"Ditto": {"a": 0.15, "b": 0.05}, "yours": {"a": 0.2, "b": 0.02}}
    made = results(table, lambda r, s, c: 0.7 + gains.get(r, {c: 0})[c] * (1 + jitter(s)), {"Ditto": 0.9})
    found = outcomes(made, False)
    assert {one.row for one in found if one.claimed} == {"Ditto", "yours"}
    assert candidate(found).row == "Ditto"  # by its promise, though yours came out ahead
    said = advice(found, ACCURACY)
    assert said.startswith("Take Ditto: +10.0 ± 0.")
    assert lines_to_put(found) == '[strategy]\nname = "ditto"\n[train]\nlearning_rate = 0.1'
    assert what_is_put(found) == "What was best here"
    assert said.endswith("points over each device alone. Most gain a (+15.0), b (+5.0); worse off: none.")


def test_within_the_noise_nothing_is_advised(table):
    made = results(table, lambda r, s, c: 0.7 + (r != trial.ALONE) * (0.005 + 2 * jitter(s)), {"FeSEM": 0.9})
    said = advice(outcomes(made, False), ACCURACY)
    assert said.startswith(
        "Do not federate on the strength of this: FeSEM, the best row on the samples to choose on, may"
    )
    assert lines_to_put(outcomes(made, False)) == "[train]\nlearning_rate = 0.1"
    assert what_is_put(outcomes(made, False)) == "The learning rate that suited yours best"
    lower = results(table, lambda r, s, c: 0.7 - (r != trial.ALONE) * (0.1 + jitter(s)), {})
    assert "yours, the best row on the samples to choose on, is no better" in advice(outcomes(lower, False), ACCURACY)


def test_it_says_when_nobody_learned(table):
    """A guess at the most frequent of two equal classes is right half of the time."""
    devices = {name: numbered(40) for name in ("a", "b")}
    made = results(table, lambda r, s, c: 0.5 + jitter(s), {})
    guess = a_guess(made, devices)
    assert guess == 0.5
    said = advice(outcomes(made, False, guess), ACCURACY, guess)
    assert said.startswith("Nobody learned: no row is better than a guess without a model (accuracy 0.500)")
    one_learned = results(table, lambda r, s, c: 0.5 + (r == "Ditto") * (0.1 + jitter(s)), {"Ditto": 0.9})
    assert advice(outcomes(one_learned, False, guess), ACCURACY, guess).startswith("Take Ditto")


def test_what_was_best_goes_into_the_file_that_init_wrote_and_into_no_other(table, tmp_path):
    write_photos(tmp_path / "plants", ("door-pi", "roof-pi"), each=5, size=8)
    written = draft_text(look(tmp_path / "plants"), "bouquet init")
    (file := tmp_path / "plants.toml").write_text(written)
    yours = RowResult("yours", "fesem", 0.3, 0.8, 0.8, Difference(0.1, 0.05, 0.15, 0.01), {}, True)
    assert put_into(file, [yours])
    assert load_settings(file).train.learning_rate == 0.3
    assert file.read_text() == written.replace("0.05  ", "0.3   ")
    ditto = dataclasses.replace(yours, strategy="ditto", learning_rate=0.1, promise=0.9)
    assert put_into(file, [ditto, yours])
    assert (load_settings(file).strategy.name, load_settings(file).train.learning_rate) == ("ditto", 0.1)
    assert not put_into(file, [ditto, yours])  # which already says a method
    file.write_text("[train]\nlearning_rate = 0.05\n")
    assert not put_into(file, [yours])


def test_where_settings_have_speeds_it_says_that_no_round_must_wait_for_the_slowest(table):
    made = results(table, lambda r, s, c: 0.7, {})
    for one in made.cells:
        # From the third round on a round does not wait for c.
        one.run.rounds = [{"seconds_by_client": {"a": 1, "b": 2, "c": c}} for c in (12, 12, 2)]
    assert speed_advice(made) == ""  # times of this machine
    settings = one.cell.settings.with_overrides({"simulation.speeds": [9, 1]})
    made.cells[-1] = CellResult(dataclasses.replace(one.cell, settings=settings), one.run)
    assert speed_advice(made).startswith("Your devices differ by 12×: a round waits 12 s")


def test_where_seeds_test_the_same_part_the_devices_have_to_agree(table):
    gains = {"Ditto": {"a": 0.2, "b": -0.02}}
    made = results(table, lambda r, s, c: 0.7 + gains.get(r, {c: 0})[c] * (1 + jitter(s)), {"Ditto": 0.9})
    assert candidate(outcomes(made, False)).claimed
    assert not candidate(outcomes(made, True)).claimed


def test_an_error_is_told_in_its_unit_and_less_is_more():
    gain = Difference(1.2412, 1.0, 1.5, 0.001)
    best = RowResult("FedAvg", "fedavg", 0.1, -3.0, 3.0, gain, {"a": 3.0, "b": -0.5}, True)
    said = advice([best, RowResult("yours", "fesem", 0.1, -4.0, 4.0, None, {}, False)], MAE)
    assert said.endswith("+1.2 ± 0.24 cm over each device alone. Most gain a (+3); worse off: b (−0.5).")


def test_the_command_ends_with_one_table_and_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "SEEDS", (0, 1))
    monkeypatch.setattr(trial, "LEARNING_RATES", (0.1,))
    monkeypatch.setattr(trial, "CHOSEN_ON_SEEDS", (100,))
    monkeypatch.setattr(trial, "STANDARD_ROWS", trial.STANDARD_ROWS[:2])
    monkeypatch.setattr(trial, "a_guess", lambda *_: None)
    write_photos(tmp_path / "plants", ("door-pi", "roof-pi"), each=5, size=16)
    done = bouquet(tmp_path, "try", "plants/door-pi", "plants/roof-pi", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert "30 photos of 16 × 16 pixels" in done.stdout
    assert "the defaults" in done.stdout
    assert "over each device alone" in done.stdout or "Do not federate" in done.stdout
    (report,) = tmp_path.glob("runs/try/*/compare.html")
    assert str(report.relative_to(tmp_path)) in done.stdout
    assert "for the settings file:\n[train]\nlearning_rate = 0.1\n" in done.stdout
    (tmp_path / "plants" / "door-pi" / "rust" / "000.png").unlink()
    assert bouquet(tmp_path, "init", "plants").returncode == 0
    done = bouquet(tmp_path, "try", "plants", "--rounds", "2")
    assert "now in plants.toml:\n[train]\nlearning_rate = 0.1\n" in done.stdout, done.stderr
    assert load_settings(tmp_path / "plants.toml").train.learning_rate == 0.1
    assert len(list(tmp_path.glob("runs/try/*/compare.html"))) == 2  # other photos are another comparison
