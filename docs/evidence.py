"""The figures of these pages, from ``experiments/results/NAME.csv``; no page has one typed.

``docs/results/NAME.md`` is written at each build: what the table's file says of itself, and a table for each measure;
beside it ``NAME.svg``, the first measure as a plot.
The role ``{figure}`NAME / MEASURE / COLUMN / ROW` `` is one figure; what is not in the CSV file is a warning.
A ``csv-table`` on a page shows two decimals of what its file has in three.
"""

from __future__ import annotations

import csv
import re
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from matplotlib.figure import Figure as Plot
from sphinx.application import Sphinx
from sphinx.directives.patches import CSVTable
from sphinx.util.docutils import SphinxRole

from bouquet.experiments.plots.style import svg

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
RESULTS = EXPERIMENTS / "results"
WRITTEN = Path(__file__).parent / "results"
Figure = dict[str, str]  # a line of a CSV file, by the names of its head
LEGEND = """Mean ± sample deviation over the seeds {seeds}; (k/n): only k of n seeds have a value. Differences have
their 95 % interval over seeds, paired by client and seed. ≈ marks what does not survive Holm's correction; p is after
it. *(end)* is a value at the end of its grid: a better one may lie beyond. The figures are in
[{name}.csv](../../experiments/results/{name}.csv). {kept}"""
KEPT = """Those of every seed and device, from which a test computes each of them anew, are in
[{name}.csv.gz](../../experiments/results/seeds/{name}.csv.gz). [How to check
one](../claims.md#a-p-value-from-the-file)."""
NOT_KEPT = "**Figures by device were not kept:** the command above computes them anew."


def figures(name: str) -> list[Figure]:
    """The lines of ``experiments/results/NAME.csv``."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number_text(one: Figure, spread: bool) -> str:
    """``≈ +.520``; with ``spread`` also its deviation, interval, p-value and number of seeds."""
    if not one["value"]:
        return one["note"]
    text = f"≈ {one['value']}" if one["note"] == "≈" else one["value"]
    if spread:
        text += f" ± {one['deviation']}" * bool(one["deviation"])
        text += f" [{one['low']}, {one['high']}]" * bool(one["low"])
        text += f", p {one['p']}" * bool(one["p"])
        text += f" ({one['note']})" * (one["note"] not in ("", "≈"))
    return text.replace("-", "−")


def table(lines: list[Figure]) -> str:
    """Rows by columns, in Markdown; the panel of a column ``PANEL: LABEL`` is left to the heading."""
    columns = list(dict.fromkeys(one["column"] for one in lines))
    cells = {(one["row"], one["column"]): number_text(one, spread=True) for one in lines}
    head = ["", *(column.rpartition(": ")[2] if panel_of(lines[0]) else column for column in columns)]
    rows = [[row, *(cells.get((row, column), "") for column in columns)] for row in dict.fromkeys(r for r, _ in cells)]
    rule = ["---", *["---:"] * len(columns)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, rule, *rows)
    )


def panel_of(one: Figure) -> str:
    """``rotated`` of the column ``rotated: 80 samples``."""
    return one["column"].rpartition(": ")[0]


def page(name: str) -> str:
    """The page of one table."""
    text = (EXPERIMENTS / "tables" / f"{name}.toml").read_text(encoding="utf-8")
    said = [line.removeprefix("#").strip() for line in text.partition("\nname")[0].splitlines()]
    words = " ".join(f"`{line}`" if "bouquet compare" in line or line.startswith("python") else line for line in said)
    seeds = ", ".join(map(str, tomllib.loads(text)["seeds"]))
    kept = KEPT.format(name=name) if (RESULTS / "seeds" / f"{name}.csv.gz").exists() else NOT_KEPT
    picture = f"![Each row of {name} in each column, beside Standalone where it is one]({name}.svg)"
    parts = [f"# {name}", words, LEGEND.format(name=name, seeds=seeds, kept=kept), picture]
    for measure, of_measure in groupby(figures(name), lambda one: one["measure"]):
        lines = list(of_measure)
        if measure == "note":
            parts += [f"- {one['note']}" for one in lines]
            continue
        parts.append(f"## {measure}")
        for panel, of_panel in groupby(lines, panel_of):
            parts += [f"### {panel}"] if panel else []
            parts.append(table(list(of_panel)))
    return "\n\n".join(parts) + "\n"


def picture(name: str) -> bytes:
    """The first measure of a table, an SVG: a panel a column, a dot a row with its deviation; a line at Standalone."""
    every = [one for one in figures(name) if one["measure"] != "note"]
    lines = [one for one in every if one["measure"] == every[0]["measure"]]
    rows, columns = (list(dict.fromkeys(one[key] for one in lines)) for key in ("row", "column"))
    deep = -(-len(columns) // 3)
    plot = Plot(figsize=(10, deep * (0.9 + 0.19 * len(rows))), layout="constrained")
    panels = list(plot.subplots(deep, min(3, len(columns)), sharey=True, squeeze=False).flat)
    for panel in panels[len(columns) :]:
        panel.remove()
    for column, panel in zip(columns, panels, strict=False):
        for one in (one for one in lines if one["column"] == column and one["value"]):
            value, spread = float(one["value"]), float(one["deviation"] or 0)
            panel.errorbar(value, rows.index(one["row"]), xerr=spread, fmt="o", color="#0072b2", markersize=4)
            if one["row"] == "Standalone":
                panel.axvline(value, color="#888888", linewidth=0.8)
        panel.set_title(column, fontsize=9)
        panel.set_yticks(range(len(rows)), rows, fontsize=8)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.tick_params(axis="x", labelsize=8)
    plot.supxlabel(every[0]["measure"], fontsize=9)
    return svg(plot)


def write_pages(app: Sphinx) -> None:
    """Write the pages whose figures or words have changed, and their pictures."""
    WRITTEN.mkdir(exist_ok=True)
    for path in RESULTS.glob("*.csv"):
        written, text = WRITTEN / f"{path.stem}.md", page(path.stem)
        image = written.with_suffix(".svg")
        if not written.exists() or written.read_text(encoding="utf-8") != text:
            written.write_text(text, encoding="utf-8")
            image.unlink(missing_ok=True)
        if not image.exists() or image.stat().st_mtime < path.stat().st_mtime:
            image.write_bytes(picture(path.stem))


class FigureRole(SphinxRole):
    """``{figure}`NAME / MEASURE / COLUMN / ROW` ``."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """The figure, or a warning where there is none."""
        name, *where = (part.strip() for part in self.text.split(" / "))
        self.env.note_dependency(str(RESULTS / f"{name}.csv"))
        found = [one for one in figures(name) if [one["measure"], one["column"], one["row"]] == where]
        if len(found) == 1:
            return [nodes.Text(number_text(found[0], spread=False))], []
        return [], [self.inliner.reporter.warning(f"No figure {self.text!r} in {name}.csv", line=self.lineno)]


def two_decimals(text: str) -> str:
    """``-.021`` as ``-.02``, and ``-.001`` as ``.00``."""
    found = re.fullmatch(r"([-+]?)(\d*)(\.\d{3})(.*)", text, re.DOTALL)
    if found is None:
        return text
    sign, whole, part, rest = found.groups()
    rounded = f"{float(whole + part):.2f}"
    sign = sign if float(rounded) else ""
    return sign + (rounded if whole or not rounded.startswith("0") else rounded[1:]) + rest


class FiguresTable(CSVTable):
    """A ``csv-table`` that is read, not computed with."""

    def run(self) -> list[nodes.Node]:
        """The table, with figures as a reader needs them."""
        tables = super().run()
        for text in [found for one in tables for found in one.findall(nodes.Text)]:
            text.parent.replace(text, nodes.Text(two_decimals(text.astext())))
        return tables


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", write_pages)
    app.add_role("figure", FigureRole())
    app.add_directive("csv-table", FiguresTable, override=True)
    return {"parallel_read_safe": True}
