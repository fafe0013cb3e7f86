"""The sections of the settings: every key with its type, default, range and description.

`bouquet.common.settings` puts them together, reads files and texts into them and explains what does not fit.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from bouquet.common.compression.codecs import Codec
from bouquet.common.settings.data_sections import OWN_DATA as OWN_DATA
from bouquet.common.settings.data_sections import DataSettings as DataSettings
from bouquet.common.settings.data_sections import Section
from bouquet.common.settings.data_sections import TableSettings as TableSettings
from bouquet.common.settings.data_sections import TaskSettings as TaskSettings
from bouquet.common.texts import ENDLESS, MOST_TAGS, TAG


def number_or_share(value: int | float) -> int | float:
    """Raise ValueError for what is neither a number of replies nor a share of the clients asked."""
    if value < 1 if isinstance(value, int) else not 0 < value <= 1:
        raise ValueError(
            "Input should be a whole number from 1 (so many replies), or a number with a point above 0, at most 1.0 (a "
            "share of the clients asked in the round)"
        )
    return value


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
    rounds: Annotated[int, BeforeValidator(lambda value: ENDLESS if value == "endless" else value)] = Field(
        10, ge=1, description="Rounds of training; 'endless': until it is stopped, as devices have new samples."
    )
    patience: int = Field(
        0, ge=0, description="End before, when most devices did no better for so many rounds; 0: do not."
    )

    @property
    def is_endless(self) -> bool:
        """Whether the run has no last round."""
        return self.rounds >= ENDLESS


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
    budget: Literal["epochs", "fleet"] = Field(
        "epochs",
        description="'fleet': a slow device does fewer steps, as many as fit the time that the median device takes for "
        "its local_epochs.",
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

    up: Codec = Field("float32", description="How devices send their models; anything but 'float32' loses bits.")
    down: Codec = Field("float32", description="How devices are sent models.")

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
    min_replies: Annotated[int | float, AfterValidator(number_or_share)] = Field(
        1,
        description="With fewer usable replies, a round leaves the models as they were: a number, or with a point a "
        "share of the clients asked (0.5: half; 1.0: all).",
    )
    wait_for_clients: float = Field(
        600.0, gt=0, description="Seconds to wait for min_clients nodes, then the run ends."
    )
    round_timeout: float = Field(
        600.0, gt=0, description="Seconds after which a round ends without the missing replies."
    )
    straggler_grace: float = Field(
        30.0,
        ge=0,
        description="Once half of the replies are in, the others get five times as long as those took, but at least so "
        "many seconds.",
    )
    evaluate_every: int = Field(
        0, ge=0, description="Evaluate the new models every so many rounds; 0: after the last only."
    )
    new_samples: int = Field(
        10,
        ge=1,
        description="In an endless run: a real device works in ten rounds, and rests until so many of its samples are "
        "new; a round begins when min_clients work.",
    )
    public_data: str = Field(
        "",
        description="Unlabelled samples for 'fedtsdp': an .npz with x, or a folder of images; empty: the test part of "
        "the data set.",
    )
    buffer: float = Field(
        1.0,
        gt=0,
        le=1,
        description="A round ends when this share of the devices at work have replied; the others go on, and count "
        "when they come. 1: every round waits for all.",
    )

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
    limit_norm: float | None = Field(
        None,
        gt=0,
        description="Updates are shortened to so many times the median norm of their cluster's. With this, or another "
        "rule than the mean, weights are capped at three times the median.",
    )


class PersonalSettings(Section):
    """What a device keeps and serves, whatever the method."""

    serve: Literal["auto", "own", "mixture"] = Field(
        "auto",
        description="'auto': the received model, or the mean of what the device's models say (the received one, that "
        "after training, the method's personal one, and one trained alone), as the fleet finds better. 'own': the "
        "method's model. 'mixture': the mean, in which each device judges whether the model alone is part of it.",
    )
    compare: bool = Field(
        True,
        description="Also train a model alone: it says what a device would have without the others, and with 'auto' is "
        "a part of the mean. One more training a round.",
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
    speeds: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (),
        description="Training samples a second of one device after another, from the first again where they end; "
        "times are then those of such a fleet. Empty: times are this machine's.",
    )
    links: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), description="Mbit/s of one device's link after another, with speeds; empty: sending takes no time."
    )
