"""The sections of the settings: every key with its type, default, range and description.

`common.settings` puts them together, reads files and texts into them and explains what does not fit.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from common.codec import Method
from common.partitions import PARTITIONS

OWN_DATA = "own"  # each device brings its own folder or .npz


class Section(BaseModel):
    """A section of the settings file: unknown keys are errors, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _known_partition(name: str) -> str:
    if name not in PARTITIONS and ":" not in name:
        known = ", ".join(repr(rule) for rule in PARTITIONS)
        raise ValueError(f"Input should be {known}, or your own as package.module:function")
    return name


class RunSettings(Section):
    """What is run, for how long, and from which seed."""

    name: str = Field("bouquet", description="Name of the run; its record lies in runs/NAME.")
    seed: int = Field(0, ge=0, description="Everything random derives from it.")
    rounds: int = Field(10, ge=1, description="Rounds of training.")


class DataSettings(Section):
    """The data set, and how it is divided among the clients."""

    dataset: str = Field(
        "digits",
        description="A data set by name, your own as package.module:function, or "
        f"{OWN_DATA!r}: each device has its own data.",
    )
    data_dir: str = Field(
        "",
        description="Folder that holds the data set; empty for embedded data. To simulate 'own' data, a folder with a "
        "folder for each client.",
    )
    partition: Annotated[str, AfterValidator(_known_partition)] = Field(
        "iid", description="Rule that divides the data set, or your own as package.module:function."
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
    public_fraction: float = Field(
        0.0, ge=0, lt=1, description="Part that no client gets, for the server, of a data set without a test part."
    )
    classes: tuple[str, ...] = Field((), description="Names of the classes of the devices' own data, in label order.")
    input_shape: tuple[int, ...] = Field(
        (), description="Shape of one sample of the devices' own data, e.g. [3, 32, 32]."
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
            "public_fraction": self.public_fraction,
            "standardise": self.standardise,
        }

    @model_validator(mode="after")
    def _classes_differ(self) -> DataSettings:
        if twice := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise ValueError(f"data.classes names {', '.join(twice)} twice; every class needs a name of its own")
        return self

    @model_validator(mode="after")
    def _own_data_is_described(self) -> DataSettings:
        if self.dataset == OWN_DATA and not (self.classes and self.input_shape):
            raise ValueError(
                "dataset 'own' needs data.classes (names in label order) and data.input_shape (e.g. [3, 32, 32]): "
                "the server builds the model without seeing any data"
            )
        return self


class ModelSettings(Section):
    """The model that every client trains."""

    name: str = Field("mlp", description="A model by name, or the user's own as package.module:factory.")
    hidden: tuple[int, ...] = Field((), description="Widths of the hidden layers of 'mlp'; empty for the default.")
    norm: Literal["batch", "group"] = Field("batch", description="Normalisation of 'resnet18'.")


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
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the clients train.")
    threads: int = Field(1, ge=0, description="CPU threads of a client; 0 leaves the choice to PyTorch.")

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
    """Compression of what travels, each way (`common.codec`), as differences to what the other end holds."""

    up: Method = Field("float32", description="How devices send their models; anything but 'float32' loses bits.")
    down: Method = Field("float32", description="How devices are sent models.")
    keep: float = Field(0.05, gt=0, le=1, description="Share of the values that 'topk' and 'ternary' send.")

    @property
    def compresses(self) -> bool:
        """Whether anything is compressed: with two exact ways messages are as Flower's own."""
        return self.up != "float32" or self.down != "float32"


class ServerSettings(Section):
    """How the server samples, waits and records."""

    fraction_train: float = Field(1.0, gt=0, le=1, description="Fraction of the connected nodes that train in a round.")
    fraction_evaluate: float = Field(
        1.0, gt=0, le=1, description="Fraction of the connected nodes that are tested after the last round."
    )
    min_clients: int = Field(2, ge=1, description="The run starts when this many nodes are connected.")
    min_replies: int = Field(1, ge=1, description="With fewer usable replies, a round leaves the models as they were.")
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
    keep_checkpoints: int = Field(2, ge=1, description="Checkpoints kept in the run folder.")


class ProtectionSettings(Section):
    """How far one client may move the others' models."""

    aggregation: Literal["mean", "median", "trimmed-mean", "krum"] = Field(
        "mean", description="How the models of a cluster become one; all but the mean bear a minority of bad ones."
    )
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="Share of bad clients that the trimmed mean and Krum are to bear."
    )
    limit_norm: float | None = Field(
        None, gt=0, description="Updates are shortened to so many times the median norm of their cluster's."
    )


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
