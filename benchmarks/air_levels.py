"""The tables of air-levels.toml: each station's, with a column ``level``: "high" above 75 µg/m³ of PM2.5, else "low".

    python -m benchmarks.air_levels FOLDER OUT

``FOLDER`` holds a CSV a station, as UCI 501 has them. A level is a gap where PM2.5 is one.
"""

from __future__ import annotations

import csv
import lzma
import sys
from pathlib import Path

from bouquet.client.data.table_numbers import GAPS
from bouquet.client.data.table_text import table_files

MOST = 75.0  # µg/m³, the 24-hour mean that China's GB 3095-2012 allows in towns


def main(folder: Path, out: Path) -> None:
    """Write the tables into ``out``, packed."""
    out.mkdir(parents=True, exist_ok=True)
    for file in table_files(folder):
        with lzma.open(file, "rt", newline="") as source, lzma.open(out / file.name, "wt", newline="") as target:
            rows = csv.DictReader(source)
            writer = csv.DictWriter(target, [*(rows.fieldnames or ()), "level"], lineterminator="\n")
            writer.writeheader()
            for row in rows:
                dust = row["PM2.5"]
                level = "NA" if dust.lower() in GAPS else ("high" if float(dust) > MOST else "low")
                writer.writerow({**row, "level": level})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
