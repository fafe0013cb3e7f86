"""An anchor from outside for air.toml: gradient-boosted trees on each station, and on all of them together.

    python -m benchmarks.forecast_anchor FOLDER

``FOLDER`` holds a CSV a station. The windows, the division and the scaling are those of the devices; the trees are
scikit-learn's `HistGradientBoostingRegressor` with its defaults and the absolute error as its loss.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from client.data.loading import ClientData
from client.data.own import load_table
from client.data.table_reader import table_files
from common.settings import parse_settings
from experiments.comparison.grid import load_table as read_grid

TABLE = Path(__file__).parents[1] / "experiments" / "tables" / "air.toml"


def main(folder: Path) -> None:
    """Print the mean over the stations of the mean absolute error, for each column of the table."""
    for column, settings in {cell.data: cell.settings for cell in read_grid(TABLE).cells}.items():
        chosen = parse_settings(settings.model_dump(), {"data.data_dir": str(folder)})
        stations = [load_table(file, chosen) for file in table_files(folder)]
        alone = [_error(_fitted([one]), one) for one in stations]
        together = _fitted(stations)
        pooled = [_error(together, one) for one in stations]
        print(f"{column}: each station {np.mean(alone):.2f}, all pooled {np.mean(pooled):.2f}", flush=True)


def _fitted(stations: list[ClientData]) -> HistGradientBoostingRegressor:
    x = np.concatenate([one.train_x.reshape(len(one.train_x), -1) for one in stations])
    y = np.concatenate([one.train_y[:, 0] for one in stations])
    return HistGradientBoostingRegressor(loss="absolute_error", random_state=0).fit(x, y)


def _error(trees: HistGradientBoostingRegressor, station: ClientData) -> float:
    assert station.scaling is not None
    told = trees.predict(station.test_x.reshape(len(station.test_x), -1))[:, None]
    return float(np.abs(station.scaling.undone(told) - station.scaling.undone(station.test_y)).mean())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
