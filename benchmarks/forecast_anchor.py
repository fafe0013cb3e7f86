"""An anchor from outside for the tables of air quality: gradient-boosted trees on each station, and on all together.

    python -m benchmarks.forecast_anchor FOLDER [experiments/tables/air-ozone.toml]

``FOLDER`` holds a CSV a station; the table is air.toml unless another is given. The samples, the division and the
scaling are those of the devices; the trees are scikit-learn's `HistGradientBoostingRegressor` with its defaults and
the absolute error as its loss, or of classes its `HistGradientBoostingClassifier` with its defaults. Without a model it
is the best that can be foretold by station, or of classes the more frequent one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from bouquet.client.data.loading import ClientData
from bouquet.client.data.own import load_table
from bouquet.client.data.table_text import table_files
from bouquet.common.settings import parse_settings
from bouquet.experiments.comparison.grid import load_table as read_grid

TABLE = Path(__file__).parents[1] / "experiments" / "tables" / "air.toml"


def main(folder: Path, table: Path = TABLE) -> None:
    """Print the mean over the stations of the error, or of classes the accuracy, for each column of the table."""
    for column, settings in {cell.data: cell.settings for cell in read_grid(table).cells}.items():
        chosen = parse_settings(settings.model_dump(), {"data.data_dir": str(folder)})
        stations = [load_table(file, chosen) for file in table_files(folder)]
        alone = [_score(_fitted([one]), one) for one in stations]
        together = _fitted(stations)
        pooled = [_score(together, one) for one in stations]
        nothing = [_without_a_model(one) for one in stations]
        print(
            f"{column}: without a model {np.mean(nothing):.4g}, each station {np.mean(alone):.4g}, all pooled "
            f"{np.mean(pooled):.4g}",
            flush=True,
        )


def _fitted(stations: list[ClientData]) -> Any:
    x = np.concatenate([one.train_x.reshape(len(one.train_x), -1) for one in stations])
    y = np.concatenate([one.train_y.reshape(len(one.train_y)) for one in stations])
    if stations[0].num_classes:
        return HistGradientBoostingClassifier(random_state=0).fit(x, y)
    return HistGradientBoostingRegressor(loss="absolute_error", random_state=0).fit(x, y)


def _score(trees: Any, station: ClientData) -> float:
    told = trees.predict(station.test_x.reshape(len(station.test_x), -1))
    if station.num_classes:
        return float((told == station.test_y).mean())
    assert station.scaling is not None
    return float(np.abs(station.scaling.undone(told[:, None]) - station.scaling.undone(station.test_y)).mean())


def _without_a_model(station: ClientData) -> float:
    if station.num_classes:
        return float((station.test_y == np.bincount(station.train_y).argmax()).mean())
    assert station.scaling is not None
    assert station.naive is not None
    truth = station.scaling.undone(station.test_y)
    return min(float(np.abs(told - truth).mean()) for told in station.naive)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
