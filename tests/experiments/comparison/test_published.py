"""Published means, intervals, p-values and ranks follow from the published figures of each seed and device."""

import csv
import gzip
import re
from collections import defaultdict
from pathlib import Path

import pytest

from bouquet.experiments.comparison import claims
from bouquet.experiments.comparison.grid import load_table
from bouquet.experiments.comparison.run import Results
from bouquet.experiments.comparison.tables import render_csv

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SEEDS = sorted((EXPERIMENTS / "results" / "seeds").glob("*.csv.gz"))
OF_SETTINGS = ("protocol", "chosen", "note")  # measures that no figure goes into


def test_every_table_has_its_seeds():
    tables = {path.stem for path in (EXPERIMENTS / "results").glob("*.csv")}
    assert tables - {path.name.partition(".")[0] for path in SEEDS} == {"dc-pfl-cycles"}  # has a line a seed itself


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name.partition(".")[0])
def test_a_published_table_follows_from_its_seeds(path, monkeypatch):
    name = path.name.partition(".")[0]
    table = load_table(EXPERIMENTS / "tables" / f"{name}.toml")
    scores = defaultdict(lambda: defaultdict(dict))
    whole = defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for one in csv.DictReader(file):
            place, seed = (one["strategy"], one["data"]), int(one["seed"])
            if one["client"]:
                scores[place][seed][one["client"]] = float(one["value"])
            else:
                whole[one["measure"], *place][seed] = float(one["value"]) if one["value"] else None
    monkeypatch.setattr(claims, "by_seed", lambda _, row, data: scores[row, data])
    monkeypatch.setattr(Results, "values", lambda _, metric, *place: list(whole[metric.name, *place].values()))

    lines = csv.DictReader(render_csv(Results(table)).splitlines())
    found = [one for one in lines if one["measure"] not in OF_SETTINGS]
    with (EXPERIMENTS / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        published = [one for one in csv.DictReader(file) if one["measure"] not in OF_SETTINGS]
    assert {len(seeds) for seeds in whole.values()} == {len(table.seeds)}
    assert found == published


def test_the_p_value_on_the_page_on_claims_can_be_typed(monkeypatch, capsys):
    page = (EXPERIMENTS.parent / "docs" / "claims.md").read_text(encoding="utf-8")
    monkeypatch.chdir(EXPERIMENTS.parent)
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], {})
    gain, p_value = map(float, capsys.readouterr().out.split())
    (published,) = [
        one
        for one in csv.DictReader((EXPERIMENTS / "results" / "fedac.csv").open(encoding="utf-8"))
        if (one["measure"], one["row"]) == ("FedAC, K from 5 against, mean of columns", "Standalone")
    ]
    assert gain == pytest.approx(float(published["value"]), abs=5e-4)
    assert 17 * p_value == pytest.approx(float(published["p"]), abs=5e-4)
