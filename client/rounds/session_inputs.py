"""What one message's work on a device begins with: the message, the device's data, and the models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from flwr.app import Message, MessageType
from torch import Tensor, nn

from bouquet.client.context import ClientContext
from bouquet.client.rounds.model import Built
from bouquet.client.rounds.observer import Observer
from bouquet.client.rounds.samples import RoundSamples, Samples
from bouquet.client.rounds.start_model import starting_model
from bouquet.client.state.device_state import Kept
from bouquet.client.training import evaluation, sgd
from bouquet.client.training.precision import Precision
from bouquet.client.training.sgd import TrainingLoss
from bouquet.client.training.transforms import augmentation, class_weights
from bouquet.client.uploads.compression import CopyMemory
from bouquet.client.uploads.privacy import PrivateUploads
from bouquet.common import protocol
from bouquet.common.model.card import ModelCard
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Payload, Received


@dataclass
class SessionInputs:
    """The part of `bouquet.client.rounds.session.Session` that holds data and models."""

    message: Message
    node: ClientContext
    built: Built
    device: torch.device
    received: Received
    run: str
    copies: CopyMemory
    private: PrivateUploads | None = None  # where the settings ask for it
    metrics: dict[str, float] = field(default_factory=dict)
    observer: Observer = field(default_factory=Observer)
    learns: bool = True  # else training ends where it began (`bouquet.client.rounds.blank_session`)
    _fit: set[int] = field(default_factory=set)  # sizes of mini-batches that were looked at
    said: dict[str, protocol.Scalar] = field(default_factory=dict)  # of classes, if the owner says so, and of the data

    # --- data -----------------------------------------------------------------------------------------------

    @cached_property
    def samples(self) -> RoundSamples:
        """The device's samples, loaded when they are first asked for."""
        data = self.node.data
        self.metrics[protocol.GROUP] = -1 if data.group is None else data.group
        self.metrics |= {protocol.LEFT_OUT: data.left_out} if data.left_out else {}
        return RoundSamples.of(data, self.device, self.node.seed(0))

    @cached_property
    def scorer(self) -> evaluation.Scorer:
        """What the outputs of models are worth here."""
        return evaluation.Scorer(self.node.task, self.node.data.scaling, self.node.data.naive)

    @cached_property
    def _validated(self) -> tuple[Samples, Samples | None]:
        """What the message does not hold out for validation, and what it does."""
        fraction = self.received.validation_fraction
        if fraction and self.learns:
            return self.samples.split(fraction)
        return self.samples.all_train, self.samples.all_train if fraction else None

    @property
    def train_data(self) -> Samples:
        """Samples and labels to train on: all but what the message, or the observer, holds out."""
        return self._folded[0]

    @property
    def fold(self) -> Samples:
        """Samples and labels that the observer keeps out of this round's training; maybe none."""
        return self._folded[1]

    @cached_property
    def _folded(self) -> tuple[Samples, Samples]:
        x, y = self._validated[0]
        if not self.observer.keeps_fold:
            return (x, y), (x[:0], y[:0])
        return self.samples.fold((x, y), self.received.round)

    @property
    def validation_data(self) -> Samples:
        """Samples and labels to compare models on: what is held out for validation, else all that is trained on."""
        return self._validated[1] or self.train_data

    @property
    def test_data(self) -> Samples:
        """Samples and labels to test on."""
        return self.samples.test

    @cached_property
    def loss_of(self) -> TrainingLoss:
        """The loss of a mini-batch in training, as the settings want it (`train.augment`, `train.class_weights`)."""
        train, (x, y), task = self.node.settings.train, self.train_data, self.node.task
        plain = sgd.PLAIN if task.has_classes else TrainingLoss(loss=task.loss)
        if not self.learns or (not train.augment and train.class_weights == "none"):
            return plain
        weights = None
        if train.class_weights == "balanced":
            weights = torch.as_tensor(class_weights(y.cpu().numpy(), self.node.data.num_classes)).to(self.device)
        augment = augmentation(train.augment, self.card, x, self.node.has_own_data)
        return replace(plain, class_weights=weights, augment=augment)

    @cached_property
    def card(self) -> ModelCard:
        """How samples become the model's inputs, and what it gives."""
        return ModelCard.of(self.node.settings)

    @cached_property
    def precision(self) -> Precision:
        """What `train` computes in, as the settings and this device's hardware have it."""
        return Precision.of(self.node.settings.train.mixed_precision, self.device)

    # --- models ---------------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The model in PyTorch, to be filled by `load` after each `train`."""
        return self.built.model

    @property
    def layout(self) -> ParameterLayout:
        """The layout of the model's layers that are not frozen."""
        return self.built.layout

    @property
    def initial(self) -> Vector:
        """The model (d,) that the run begins with; a copy."""
        return self.built.initial.copy()

    def start(self) -> Vector:
        """The model (d,) that the instruction starts from; the reply will say whether own layers of it are lost."""
        vector, lost = starting_model(self.received, self.recall, self.initial, self.layout)
        self.metrics[protocol.STATE_LOST] = int(lost)
        return vector

    def recall(self) -> Kept | None:
        """What the device kept of this run before this round; in an evaluation, which follows it, of this round too."""
        return self.node.state.recall(self.run, self.received.round + self.is_evaluation)

    @property
    def is_evaluation(self) -> bool:
        """Whether this is an evaluate message."""
        return bool(self.message.metadata.message_type == MessageType.EVALUATE)

    def load(self, vector: Vector) -> nn.Module:
        """Put a flat vector (d,) into the model."""
        return self.built.load(vector)

    def tensors(self, payload: Payload) -> dict[str, Tensor]:
        """The tensors of a received model by name, on the device."""
        arrays = self.layout.unflatten(payload.vector, payload.layers)
        return {name: torch.as_tensor(array).to(self.device) for name, array in arrays.items()}

    def whole(self, record: str) -> Vector:
        """A received model that must be whole. Raises `BouquetError`, naming the record, when it is not."""
        payload = self.received.models.get(record)
        if payload is None or (payload.layers is not None and len(payload.layers) < len(self.layout.layers)):
            raise protocol.ProtocolError(f"Record {record!r} must hold a whole model in this message.")
        return payload.vector
