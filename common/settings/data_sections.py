"""The sections that say what devices learn from, and what: `data`, `task` and `table`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from bouquet.common.data.catalog import is_images
from bouquet.common.data.class_folders import class_name
from bouquet.common.data.partitions import PARTITIONS
from bouquet.common.nearest import nearest

TASK_KINDS = ("classification", "regression", "forecast", "anomaly")
OWN_DATA = "own"  # each device brings its own folder or .npz
_OF_PARTITION = {
    "groups",
    "beta",
    "classes_per_client",
    "classes_per_group",
    "heterogeneity",
    "samples_per_client",
    "test_fraction",
    "test_samples",
    "public_fraction",
    "reserved_fraction",
    "standardise",
}


class Section(BaseModel):
    """A section of the settings file: unknown keys are errors, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _known_partition(name: str) -> str:
    if name not in PARTITIONS:
        raise ValueError(nearest(name, PARTITIONS, "Input should be"))
    return name


class DataSettings(Section):
    """The data set, and how it is divided among the clients."""

    dataset: str = Field(
        "digits",
        description="A data set by name, 'images' or 'images/NAME' for a folder of images, your own as "
        f"package.module:function, or {OWN_DATA!r}: each device has its own data.",
    )
    data_dir: str = Field(
        "",
        description="Folder that holds the data set; empty for embedded data. To simulate 'own' data, a folder with a "
        "folder for each client.",
    )
    partition: Annotated[str, AfterValidator(_known_partition)] = Field(
        "iid", description=f"{', '.join(PARTITIONS)}: who gets which samples."
    )
    clients: int = Field(10, ge=1, description="Number of clients the data set is divided among.")
    groups: int | None = Field(None, ge=1, description="Number of true groups, for the partitions that have them.")
    beta: float = Field(0.5, gt=0, description="Concentration of the Dirichlet and mixed partitions.")
    classes_per_client: int = Field(2, ge=1, description="Classes a client holds (pathological).")
    classes_per_group: int = Field(8, ge=1, description="Classes a group sees (class-groups).")
    heterogeneity: Literal["low", "mid", "high"] | None = Field(
        None, description="Level of the dominant partition: a third of the range over 100 draws."
    )
    standardise: bool = Field(
        True, description="Subtract a named data set's mean, divide by its deviation; else images are 0 to 1."
    )
    samples_per_client: int | None = Field(None, ge=2, description="At most this many samples a client.")
    min_samples: int = Field(10, ge=2, description="At least this many samples a client.")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="Part of a client's samples that it tests on.")
    split: Literal["random", "time"] = Field(
        "random",
        description="How a device's own photos or .npz are divided: 'random', by bursts or segments as wholes; 'time': "
        "the newest part, by EXIF or file time, or the array 'time', is tested. Tables are divided by table.time.",
    )
    test_samples: int | None = Field(
        None,
        ge=1,
        description="Test on at most this many fresh samples instead, which nobody trains on: of the data set's test "
        "part, in the client's mix of classes; in a natural partition of its owner's others.",
    )
    public_fraction: float = Field(
        0.0, ge=0, lt=1, description="Part that no client gets, for the server, of a data set without a test part."
    )
    reserved_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part, of each owner's samples where they are known, that no client gets whatever the seed: "
        "test_samples are taken from it.",
    )
    drift: tuple[tuple[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0, le=1)]], ...] = Field(
        (),
        description="In simulation, e.g. [[8, 0.5], [16, 0.0]]: from round 8 on half of the devices have each other's "
        "parts of the data, where there are groups mostly of another one; from round 16 on their own again.",
    )
    classes: tuple[str, ...] = Field(
        (), description="Names of the classes of the devices' own data, or of a folder of images, in label order."
    )
    input_shape: tuple[int, ...] = Field(
        (), description="Shape of one sample of the devices' own data, or of a folder of images, e.g. [3, 32, 32]."
    )

    @property
    def lacks_description(self) -> str:
        """What is wrong where it says neither classes nor shape."""
        return (
            f"dataset {self.dataset!r} needs data.classes (names in label order) and data.input_shape (e.g. "
            "[3, 32, 32]): the server builds the model without seeing any data"
        )

    def partition_options(self) -> dict[str, Any]:
        """What the partition is told, beside the data set, the number of clients and the seed."""
        return {**self.model_dump(include=_OF_PARTITION), "minimum": self.min_samples}

    @field_validator("classes")
    @classmethod
    def _in_one_form(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(class_name(name) for name in names)

    @model_validator(mode="after")
    def _fits(self) -> DataSettings:
        if twice := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise ValueError(f"data.classes names {', '.join(twice)} twice; every class needs a name of its own")
        rounds = [start for start, _ in self.drift]
        if rounds != sorted({*rounds}):
            raise ValueError(
                f"data.drift has rounds {', '.join(map(str, rounds))}; each is to come after the one before"
            )
        for _, share in self.drift:
            if share and round(share * self.clients) < 2:
                raise ValueError(
                    f"data.drift has {share:g} of {self.clients} clients change: two at least, with each other's parts"
                )
        if is_images(self.dataset) and not (self.classes and self.input_shape):
            raise ValueError(self.lacks_description)
        of_named = {"drift": self.drift, "test_samples": self.test_samples, "reserved_fraction": self.reserved_fraction}
        for key, value in of_named.items() if self.dataset == OWN_DATA else ():
            if value:
                raise ValueError(f"data.{key} = {value} is of a named data set, not of the devices' own: leave it out")
        return self


class TaskSettings(Section):
    """What is learned."""

    kind: str = Field(
        "classification",
        description="'classification'; 'regression': numbers; 'forecast': numbers some steps ahead of a window of "
        "rows; 'anomaly': which rows are odd, without targets; or your own as package.module:Class.",
    )
    unit: str = Field("", max_length=20, description="Of the targets, e.g. 'µg/m³'; errors are shown in it.")

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in TASK_KINDS and ":" not in kind:
            raise ValueError(f"{nearest(kind, TASK_KINDS, 'Input should be')}, or your own as package.module:Class")
        return kind


class TableSettings(Section):
    """The columns of the devices' own tables, CSV files with a header; empty where devices have other data."""

    inputs: tuple[str, ...] = Field((), description="Columns that the model sees.")
    targets: tuple[str, ...] = Field((), description="Columns that it is to tell; one, the class, in classification.")
    time: tuple[str, ...] = Field(
        (),
        description="Column with the time of a row, ISO 8601 or seconds since 1970; or two, a date and a time of day; "
        "or year, month, day, and hour, minute, second where there are such columns. With it the newest part is "
        "tested; without it, a random one.",
        max_length=6,
    )
    categories: tuple[str, ...] = Field(
        (), description="Inputs that are words, each with its values, e.g. ['wind=N,E,S,W']; each becomes a 0 or 1."
    )
    history: int = Field(
        1, ge=1, le=10_000, description="'forecast' and 'anomaly': rows of a window, one a step of time."
    )
    horizon: int = Field(1, ge=1, le=10_000, description="'forecast': steps from a window's last row to the target.")
    gaps: tuple[str, ...] = Field(
        (),
        description="What sensors write that have nothing to say, a gap then: [-127, -9999, 'ERR'], or in one column "
        "only: ['temp=85'].",
    )
    dates: Literal["", "day-month-year", "month-day-year", "year-month-day"] = Field(
        "", description="Order of dates as 03/04/2026 where a device's table does not show it; empty: such are refused."
    )
    decimal: Literal["", ",", "."] = Field(
        "", description="What 1,234 has where a device's table does not show it: a decimal ',', or '.' and thousands."
    )
    fill: int = Field(
        0, ge=0, description="Gaps of at most so many steps in the inputs take the last value; other rows are left out."
    )
    cut: str = Field(
        "", description="ISO 8601: what is of this time or later is tested, also of an .npz; empty: the newest part."
    )
    until: str = Field("", description="ISO 8601: rows of this time or later are not used; empty: all are.")

    @property
    def values(self) -> dict[str, tuple[str, ...]]:
        """Of each column of words, its values."""
        pairs = (text.partition("=") for text in self.categories)
        return {column.strip(): tuple(v.strip() for v in listed.split(",")) for column, _, listed in pairs}

    @property
    def words(self) -> tuple[str, ...]:
        """The column of each input channel."""
        return tuple(column for column in self.inputs for _ in self.values.get(column, "1"))

    @property
    def width(self) -> int:
        """Number of input channels."""
        return len(self.words)

    def gaps_of(self, column: str) -> tuple[str, ...]:
        """What stands for a gap in a column."""
        pairs = (gap.rpartition("=") for gap in self.gaps)
        return tuple(text.strip() for name, _, text in pairs if name.strip() in ("", column))

    @field_validator("gaps", mode="before")
    @classmethod
    def _as_text(cls, gaps: Any) -> Any:
        return [str(gap) for gap in gaps] if isinstance(gaps, (list, tuple)) else gaps

    @field_validator("cut", "until")
    @classmethod
    def _is_time(cls, text: str) -> str:
        if text:
            datetime.fromisoformat(text)
        return text

    @model_validator(mode="after")
    def _columns_fit(self) -> TableSettings:
        for name, columns in (("inputs", self.inputs), ("targets", self.targets), ("time", self.time)):
            if twice := sorted({column for column in columns if columns.count(column) > 1}):
                raise ValueError(f"table.{name} names {', '.join(twice)} twice")
        if strange := sorted(set(self.values) - set(self.inputs)):
            raise ValueError(f"table.categories has {', '.join(strange)}, which table.inputs has not")
        named = {gap.rpartition("=")[0].strip() for gap in self.gaps} - {""}
        if strange := sorted(named - {*self.inputs, *self.targets}):
            raise ValueError(f"table.gaps has {', '.join(strange)}, which is in neither table.inputs nor table.targets")
        for column, values in self.values.items():
            if len(values) < 2 or len(set(values)) < len(values) or "" in values:
                raise ValueError(f"table.categories: {column!r} needs two different values at least, as '{column}=a,b'")
        return self
