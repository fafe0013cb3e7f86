"""The claims over a table's columns, on three seeds of two columns."""

import sys

import numpy as np
import pytest
from scipy import stats

from benchmarks import claims_over_columns
from benchmarks.claims_over_columns import not_inferior, over_columns, read_scores


@pytest.fixture
def file(tmp_path):
    rows = [
        ("mixture", "IID", [[0.5, 0.7], [0.6, 0.8], [0.6, 0.6]]),
        ("mixture", "rotated", [[0.9, 0.9], [0.8, 0.8], [0.7, 0.9]]),
        ("alone", "IID", [[0.4, 0.6], [0.4, 0.6], [0.5, 0.5]]),
        ("alone", "rotated", [[0.9, 0.9], [0.9, 0.9], [0.8, 0.9]]),
    ]
    lines = ["strategy,data,seed,client,accuracy"]
    for row, column, seeds in rows:
        for seed, clients in enumerate(seeds):
            lines += [f"{row},{column},{seed},client-{i},{value}" for i, value in enumerate(clients)]
    path = tmp_path / "clients.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_mean_over_columns_is_paired_by_seed(file):
    found = over_columns(read_scores(file), "mixture", "alone", ["IID", "rotated"])
    by_seed = [(0.1 + 0.0) / 2, (0.2 - 0.1) / 2, (0.1 - 0.05) / 2]
    assert found.mean == pytest.approx(np.mean(by_seed))
    assert (found.seeds, found.p_value) == (3, pytest.approx(stats.ttest_1samp(by_seed, 0).pvalue))


def test_not_inferior_is_one_sided_about_the_margin():
    differences = np.array([-0.02, -0.01, 0.0])
    mean, error = differences.mean(), differences.std(ddof=1) / np.sqrt(3)
    assert not_inferior(differences, 0.05) == pytest.approx(stats.t.sf((mean + 0.05) / error, 2))
    assert not_inferior(differences, 0.01) == pytest.approx(0.5)
    assert not_inferior(np.array([0.0, 0.0]), 0.01) == 0.0  # equal rows
    assert not_inferior(np.array([-0.1, -0.1]), 0.01) == 1.0


def test_what_is_printed(file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["claims", str(file), "--row", "mixture"])
    claims_over_columns.main()
    said = capsys.readouterr().out
    assert "mixture less the other, mean over 2 columns; p after Holm over 1 rows" in said
    # IID is not inferior with p = .025, which two claims make .0501 after Holm
    assert said.splitlines()[-1] == "| alone | +0.042 | 0.038 | 0 | rotated |"
