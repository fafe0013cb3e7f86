"""What a paper reports, as data in a table file: `bouquet.experiments.comparison.grid` reads it,
`bouquet.experiments.comparison.paper_comparison` prints it.

    [[paper]]
    source = "DC-PFL (Liu et al. 2025), Table II"
    metric = "accuracy_macro"
    kind = "value"                  # or "difference" to the row `against`, or "change" from it (-0.99: 99 % less)
    differs = "50 clients"          # optional: what is not as in the paper; then ours minus theirs is not taken
    [paper.rows]                    # row → column → figure, or [mean, deviation]
    FedAvg = { low = 0.876, mid = 0.852, high = 0.801 }
    DC-PFL = { low = 0.925, mid = 0.913, high = 0.896 }

Rows and columns are those of the table, by label. Figures are in the metric's own unit: shares from 0 to 1, bytes,
seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from bouquet.common.errors import BouquetError
from bouquet.experiments.comparison.measures import parse_metric


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,)


# A mean, or a mean with its deviation.
Figure = Annotated[tuple[FiniteFloat, ...], BeforeValidator(_pair), Field(min_length=1, max_length=2)]


class PaperFigures(BaseModel):
    """One [[paper]] of a table file: the figures of one metric from one place of a paper."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: str = Field(min_length=1)
    metric: str
    kind: Literal["value", "difference", "change"] = "value"
    against: str | None = None
    differs: str = ""
    rows: dict[str, Annotated[dict[str, Figure], Field(min_length=1)]] = Field(min_length=1)

    def check(self, rows: Collection[str], columns: Collection[str]) -> None:
        """Raise `BouquetError` for a row, column or metric that the table lacks, and for a figure that cannot be."""
        metric = parse_metric(self.metric)
        if (self.kind == "value") != (self.against is None):
            raise BouquetError(
                f"[[paper]] {self.source!r} has kind = {self.kind!r} and against = {self.against!r}; a difference or a "
                "change needs the row that it is against, and a value has none."
            )
        for row in (*self.rows, *([] if self.against is None else [self.against])):
            self._known("row", row, rows)
        for row, figures in self.rows.items():
            for column, (figure, *_) in figures.items():
                self._known("column", column, columns)
                if self.kind == "value" and metric.kind == "fraction" and not 0 <= figure <= 1:
                    raise BouquetError(
                        f"[[paper]] {self.source!r} has {figure:g} for {row!r}, {column!r}; {self.metric} is a share "
                        "from 0 to 1."
                    )

    def _known(self, what: str, label: str, known: Collection[str]) -> None:
        if label not in known:
            raise BouquetError(
                f"[[paper]] {self.source!r} names the {what} {label!r}; the table has {', '.join(map(repr, known))}."
            )
