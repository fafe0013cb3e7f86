"""The figure that a model is judged by, and what it is called: on the wire, in the record, and where people read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bouquet.common.metrics import written


@dataclass(frozen=True)
class Score:
    """A figure of a model on a device's test part, the mean over its samples.

    Attributes:
        key: its name on the wire and in the record, whose quantities are ``KEY_macro``, ``KEY_by_client`` and so on.
        label: what people read.
        unit: of its values; empty for a share.
        higher_is_better: its direction.
    """

    key: str
    label: str
    unit: str = ""
    higher_is_better: bool = True

    # --- on the wire ----------------------------------------------------------------------------------------------

    @property
    def trained(self) -> str:
        """Metric of a reply: of the model after training."""
        return f"{self.key}-trained"

    @property
    def served(self) -> str:
        """Metric: of what the device serves."""
        return f"{self.key}-chosen"

    @property
    def of_method(self) -> str:
        """Metric of an evaluation: of the model that the method itself would use."""
        return f"{self.key}-method"

    @property
    def own(self) -> str:
        """Metric: of what the device uses, where it is compared (``personal.compare``)."""
        return f"{self.key}-own"

    @property
    def alone(self) -> str:
        """Metric: of the model that the device would have without the others."""
        return f"{self.key}-alone"

    @property
    def received(self) -> str:
        """Metric: of the model that the device was sent, untouched."""
        return f"{self.key}-received"

    @property
    def validation(self) -> str:
        """Metric: on what is held out of the training data."""
        return f"validation-{self.key}"

    # --- in the record --------------------------------------------------------------------------------------------

    def of(self, what: str) -> str:
        """A quantity's name: ``accuracy_macro`` of "macro"."""
        return f"{self.key}_{what}"

    def facts(self) -> dict[str, Any]:
        """What a record says of it, so that who reads needs no code of its task; of the accuracy nothing."""
        return {} if self == ACCURACY else {"score": asdict(self)}

    @classmethod
    def in_record(cls, *lines: Mapping[str, Any] | None) -> Score:
        """That of the first of these lines or summaries that says it, else the accuracy."""
        facts = next((line["score"] for line in lines if line and isinstance(line.get("score"), dict)), None)
        return ACCURACY if facts is None else cls(**facts)

    # --- compared -------------------------------------------------------------------------------------------------

    def is_better(self, value: float, other: float) -> bool:
        """Whether ``value`` is the better one."""
        return value > other if self.higher_is_better else value < other

    def best(self, values: Iterable[float]) -> float:
        """The best of some values."""
        return max(values) if self.higher_is_better else min(values)

    # --- read -----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Name and unit: "MAE (µg/m³)"."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def text(self, value: float) -> str:
        """A value with its unit: "12.4 µg/m³"."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def number(self, value: float) -> str:
        """A value: three decimals of a share, four digits of anything else, and all digits before the point."""
        if self.key == ACCURACY.key:
            return written(value)
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"


ACCURACY = Score("accuracy", "accuracy")
