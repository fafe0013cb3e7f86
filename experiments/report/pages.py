"""The HTML pages: templates with their style, filled by Jinja2, which escapes every text that is put in.

A page is one file: figures are embedded, and nothing is loaded from elsewhere. There is no script but that of a page
that renews itself while its run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from bouquet.experiments.plots.style import data_uri

RUN, DEVICE, RUNS, COMPARISON = "run.html", "device.html", "runs.html", "comparison.html"


def embed(figures: Sequence[Figure]) -> list[dict[str, str]]:
    """Title and source of each figure, drawn."""
    return [{"title": figure.get_suptitle(), "source": data_uri(figure)} for figure in figures]


def render(template: str, figures: Sequence[Mapping[str, str]], **values: Any) -> str:
    """Fill one of the files in ``templates/`` with what `embed` drew; every value is escaped."""
    return _environment().get_template(template).render(figures=figures, **values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("bouquet.experiments.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
