"""The sections of the settings: every key with its type, default, range and description.

`bouquet.common.settings` puts them together, reads files and texts into them and explains what does not fit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from bouquet.common.compression.codecs import Method
from bouquet.common.data.catalog import is_images
from bouquet.common.data.partitions import PARTITIONS
from bouquet.common.texts import MOST_TAGS, TAG

TASK_KINDS = ("classification", "regression", "forecast")
OWN_DATA = "own"  # each device brings its own folder or .npz


class Section(BaseModel):
    """A section of the settings file: unknown keys are errors, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _number_or_share(value: int | float) -> int | float:
    if value < 1 if isinstance(value, int) else not 0 < value <= 1:
        raise ValueError(
            "Input should be a whole number from 1 (so many replies), or a number with a point above 0, at most 1.0 (a "
            "share of the clients asked in the round)"
        )
    return value


def _known_partition(name: str) -> str:
    if name not in PARTITIONS and ":" not in name:
        known = ", ".join(repr(rule) for rule in PARTITIONS)
        raise ValueError(f"Input should be {known}, or your own as package.module:function")
    return name


def _folder_name(name: str) -> str:
    if not name or name.startswith(".") or set(name) & set("/\\\0\n"):
        raise ValueError("Input should be the name of a folder: not empty, without / or \\, and not begin with a dot")
    return name


class RunSettings(Section):
    """What is run, for how long, and from which seed."""

    name: Annotated[str, AfterValidator(_folder_name)] = Field(
        "bouquet", description="Name of the run; its record lies in runs/NAME."
    )
    seed: int = Field(0, ge=0, description="Everything random derives from it.")
    rounds: int = Field(10, ge=1, description="Rounds of training.")


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
        "iid", description=f"{', '.join(PARTITIONS)}, or your own as package.module:function: who gets which samples."
    )
    clients: int = Field(10, ge=1, description="Number of clients the data set is divided among.")
    groups: int | None = Field(None, ge=1, description="Number of true groups, for the partitions that have them.")
    beta: float = Field(0.5, gt=0, description="Concentration of the Dirichlet partition.")
    classes_per_client: int = Field(2, ge=1, description="Classes a client holds (pathological).")
    classes_per_group: int = Field(8, ge=1, description="Classes a group sees (class-groups).")
    primary_share: tuple[float, float] = Field(
        (0.4, 0.6), description="Range of the share of a client's primary class (dominant)."
    )
    secondary_share: tuple[float, float] = Field(
        (0.2, 0.4), description="Range of the share of its secondary class (dominant)."
    )
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
        description="How a device's own .npz is divided: 'random', by segments where it has some; 'time': the newest "
        "part, by its array 'time', is tested. Tables are divided by table.time.",
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
        return {
            "groups": self.groups,
            "beta": self.beta,
            "classes_per_client": self.classes_per_client,
            "classes_per_group": self.classes_per_group,
            "primary_share": self.primary_share,
            "secondary_share": self.secondary_share,
            "heterogeneity": self.heterogeneity,
            "samples_per_client": self.samples_per_client,
            "minimum": self.min_samples,
            "test_fraction": self.test_fraction,
            "test_samples": self.test_samples,
            "public_fraction": self.public_fraction,
            "reserved_fraction": self.reserved_fraction,
            "standardise": self.standardise,
        }

    @model_validator(mode="after")
    def _classes_differ(self) -> DataSettings:
        if twice := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise ValueError(f"data.classes names {', '.join(twice)} twice; every class needs a name of its own")
        return self

    @model_validator(mode="after")
    def _own_data_is_described(self) -> DataSettings:
        if is_images(self.dataset) and not (self.classes and self.input_shape):
            raise ValueError(self.lacks_description)
        if self.dataset == OWN_DATA and self.test_samples is not None:
            raise ValueError(
                f"data.test_samples = {self.test_samples} takes fresh samples of a named data set, and dataset 'own' "
                "has none but the devices'; leave it out, they test on data.test_fraction of theirs"
            )
        if self.dataset == OWN_DATA and self.reserved_fraction:
            raise ValueError(
                f"data.reserved_fraction = {self.reserved_fraction} is of a named data set, not of the devices' own: "
                "leave it out"
            )
        return self


class TaskSettings(Section):
    """What is learned."""

    kind: str = Field(
        "classification",
        description="'classification'; 'regression': numbers; 'forecast': numbers some steps ahead of a window of "
        "rows; or your own as package.module:Class (docs/own-task.md).",
    )
    unit: str = Field("", max_length=20, description="Of the targets, e.g. 'µg/m³'; errors are shown in it.")

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in TASK_KINDS and ":" not in kind:
            known = ", ".join(repr(one) for one in TASK_KINDS)
            raise ValueError(f"Input should be {known}, or your own as package.module:Class")
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
    history: int = Field(1, ge=1, le=10_000, description="'forecast': rows of a window, one a step of time.")
    horizon: int = Field(1, ge=1, le=10_000, description="'forecast': steps from a window's last row to the target.")
    fill: int = Field(
        0, ge=0, description="Gaps of at most so many steps in the inputs take the last value; other rows are left out."
    )
    cut: str = Field(
        "", description="ISO 8601: what is of this time or later is tested, also of an .npz; empty: the newest part."
    )
    until: str = Field("", description="ISO 8601: rows of this time or later are not used; empty: all are.")
    scaling: Literal["device", "none"] = Field(
        "device",
        description="'device': inputs and targets minus their mean, over their deviation, both of the device's "
        "training part; 'none': as they are. Errors are in the targets' own units, always.",
    )

    @property
    def values(self) -> dict[str, tuple[str, ...]]:
        """Of each column of words, its values."""
        pairs = (text.partition("=") for text in self.categories)
        return {column.strip(): tuple(v.strip() for v in listed.split(",")) for column, _, listed in pairs}

    @property
    def width(self) -> int:
        """Number of input channels."""
        return sum(len(self.values.get(column, "1")) for column in self.inputs)

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
        for column, values in self.values.items():
            if len(values) < 2 or len(set(values)) < len(values) or "" in values:
                raise ValueError(f"table.categories: {column!r} needs two different values at least, as '{column}=a,b'")
        return self


class ModelSettings(Section):
    """The model that every client trains."""

    name: str = Field(
        "mlp",
        description="A model by name, torchvision:NAME for a classification model of torchvision's, or your own as "
        "package.module:factory.",
    )
    hidden: tuple[int, ...] = Field(
        (), description="Widths of the hidden layers of 'mlp'; empty: 64 for up to 64 inputs, else 200, 100."
    )
    norm: Literal["batch", "group"] = Field("batch", description="Normalisation of 'resnet18'.")
    weights: str = Field(
        "",
        description="File on the server with the weights that training starts from, .safetensors or .pt; empty: drawn "
        "from the seed.",
    )
    frozen: tuple[str, ...] = Field(
        (),
        description="Layers that are not trained and travel once, by name or by how their names begin, e.g. "
        "['features']; ['all-but-head'] for all but the last one.",
    )


class TrainSettings(Section):
    """Local SGD on the device."""

    local_epochs: int = Field(2, ge=1, description="Passes over the device's training data in a round.")
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    learning_rate_decay: float = Field(
        1.0, gt=0, le=1, description="The learning rate is multiplied by it every round."
    )
    max_gradient_norm: float | None = Field(2.0, gt=0, description="Clip the gradient to this norm; 'none': do not.")
    augment: tuple[Literal["crop", "flip", "color"], ...] = Field(
        (),
        description="Changes of images in training, drawn anew each time: 'crop' shifts by up to an eighth, 'flip' "
        "mirrors, 'color' varies brightness, contrast and saturation by a fifth.",
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none",
        description="'balanced': samples of a class that is rare on the device count more, by n / (classes there × "
        "samples of the class).",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the clients train.")
    mixed_precision: bool = Field(
        False,
        description="On CUDA local training computes in 16 bits: bfloat16 where the GPU has it, else float16 with "
        "scaled gradients. Models stay in 32 bits; without CUDA it changes nothing.",
    )
    threads: int = Field(
        1,
        ge=0,
        description="CPU threads of a simulated client; 0 leaves it to PyTorch. Real devices take their idle cores.",
    )

    @field_validator("max_gradient_norm", mode="before")
    @classmethod
    def _none_in_toml(cls, value: Any) -> Any:
        """TOML has no null."""
        return None if value == "none" else value


class StrategySettings(BaseModel):
    """The strategy by name; every other key is a hyper-parameter of its constructor."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(
        "fesem", description="A strategy by name, or your own as package.module:Class or ./file.py:Class."
    )

    @property
    def options(self) -> dict[str, Any]:
        """The hyper-parameters, as given."""
        return dict(self.model_extra or {})


class WireSettings(Section):
    """Compression of what travels, each way, as differences to what the other end holds."""

    up: Method = Field("float32", description="How devices send their models; anything but 'float32' loses bits.")
    down: Method = Field("float32", description="How devices are sent models.")
    keep: float = Field(0.2, gt=0, le=1, description="Share of the values that 'topk' and 'ternary' send.")

    @property
    def compresses(self) -> bool:
        """Whether anything is compressed: with two exact ways messages are as Flower's own."""
        return self.up != "float32" or self.down != "float32"


class ServerSettings(Section):
    """How the server samples, waits and records."""

    fraction_train: float = Field(1.0, gt=0, le=1, description="Fraction of the connected nodes that train in a round.")
    fraction_evaluate: float = Field(
        1.0, gt=0, le=1, description="Fraction of the connected nodes that are tested, each time."
    )
    tags: tuple[str, ...] = Field(
        (),
        max_length=MOST_TAGS,
        description="Real devices take part that have one of these tags (bouquet client --tag) at least; empty: all.",
    )
    min_clients: int = Field(2, ge=1, description="The run starts when this many nodes are connected.")
    min_replies: Annotated[int | float, AfterValidator(_number_or_share)] = Field(
        1,
        description="With fewer usable replies, a round leaves the models as they were: a number, or with a point a "
        "share of the clients asked (0.5: half; 1.0: all).",
    )
    max_failed_rounds: int = Field(
        3, ge=1, description="The run ends after so many rounds running without one usable reply."
    )
    wait_for_clients: float = Field(
        600.0, gt=0, description="Seconds to wait for min_clients nodes, then the run ends."
    )
    round_timeout: float = Field(
        600.0, gt=0, description="Seconds after which a round ends without the missing replies."
    )
    straggler_factor: float = Field(
        5.0,
        ge=1,
        description="Once half of the replies are in, wait at most this many times as long as they took, "
        "but at least straggler_grace seconds.",
    )
    straggler_grace: float = Field(30.0, ge=0, description="Seconds; see straggler_factor.")
    evaluate_every: int = Field(
        0, ge=0, description="Evaluate the new models every so many rounds; 0: after the last only."
    )
    public_data: str = Field(
        "",
        description="Unlabelled samples for 'fedtsdp': an .npz with x, or a folder of images; empty: the test part of "
        "the data set.",
    )
    late_replies: Literal["drop", "next"] = Field(
        "drop",
        description="A reply after its round has ended: 'drop' leaves it, 'next' takes it into the next round, for the "
        "methods that can use it (docs/reliability.md).",
    )
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints kept in the run folder.")

    @field_validator("tags")
    @classmethod
    def _are_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [tag for tag in tags if not TAG.fullmatch(tag)]:
            raise ValueError(f"{wrong[0]!r} is no tag: 1 to 40 letters, digits, '-', '_' and '.'")
        return tags


class ProtectionSettings(Section):
    """How far one client may move the others' models."""

    aggregation: Literal["mean", "median", "trimmed-mean", "krum"] = Field(
        "mean", description="How the models of a cluster become one; all but the mean bear a minority of bad ones."
    )
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="Share of bad clients that the trimmed mean and Krum are to bear."
    )
    limit_norm: float | None = Field(
        None,
        gt=0,
        description="Updates are shortened to so many times the median norm of their cluster's. With this, or another "
        "rule than the mean, weights are capped at three times the median (docs/bad-updates.md).",
    )


class PersonalSettings(Section):
    """What a device keeps and serves, whatever the method."""

    serve: Literal["own", "mixture", "best"] = Field(
        "own",
        description="'own': the method's model. 'mixture': the mean of the probabilities of the models that the device "
        "has: the received one, that after training, the method's personal one, and one trained alone "
        "(client/rounds/mixture.py). 'best': one of these, the best on a held-out part of the training data "
        "(common/model_selection.py).",
    )
    alone: Literal["judged", "always", "never"] = Field(
        "judged",
        description="For 'mixture' and 'best': also train a model alone; one more training a round, for 'best' two. "
        "'judged': a mixture has it only where it errs no more than the received model on what is held out of it. "
        "'always': every mixture has it. 'never': 'best' compares with the method's personal model, and a device may "
        "be worse off than alone.",
    )
    held_out: float = Field(
        0.2,
        gt=0,
        le=0.5,
        description="Part of the training data, at least a sample: for 'best' held out of everything, for a 'mixture' "
        "of the model alone.",
    )
    margin: float = Field(2.0, ge=0, description="For 'best': standard errors by which another model must be better.")
    compare: Literal["devices", "always", "never"] = Field(
        "devices",
        description="Also train a model alone, which is used for nothing but to say what a device would have without "
        "the others: one more training a round. 'devices': real devices do, simulated ones do not.",
    )


class PrivacySettings(Section):
    """Clipping and noise on the device, before anything leaves it (docs/privacy.md); off by default."""

    clip_norm: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Devices clip their update to this L2 norm and noise it; none: neither.",
    )
    noise_multiplier: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Deviation of the Gaussian noise, in multiples of clip_norm; 0 only clips.",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the (ε, δ) in the record.")
    scores: Literal["withhold", "send"] = Field(
        "withhold",
        description="Losses, accuracies and numbers of samples: 'withhold' keeps them on the device, and all weigh "
        "alike; 'send' sends them exactly, and (ε, δ) is then of the models alone.",
    )

    @property
    def is_on(self) -> bool:
        """Whether devices clip what they send."""
        return self.clip_norm is not None

    @property
    def withholds(self) -> bool:
        """Whether devices keep their scores to themselves."""
        return self.is_on and self.scores == "withhold"


class SimulationSettings(Section):
    """Simulation on one machine."""

    engine: Literal["ray", "inline", "batched"] = Field(
        "ray",
        description="'ray' is Flower's engine, clients in parallel; 'inline' runs one after another in this process; "
        "'batched' too, but trains many clients' models in one program.",
    )
    address: str = Field(
        "",
        description="Ray cluster that 'ray' joins, as host:port or 'auto'; empty: one is started on this machine.",
    )
    at_once: int = Field(64, ge=1, description="Clients that 'batched' trains together, at most.")
    cpus_per_client: int = Field(1, ge=1)
    gpus_per_client: float = Field(0.0, ge=0)
