"""One message's work on a device: the model in PyTorch, the device's data, and what it kept from before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from bouquet.client.context import ClientContext
from bouquet.client.owner.sensors import Sensors
from bouquet.client.rounds.model import Built
from bouquet.client.rounds.reply import class_counts, machine_metrics, metrics_that_leave, said_of_data, score_metrics
from bouquet.client.rounds.rival import judged
from bouquet.client.rounds.samples import Samples
from bouquet.client.rounds.session_inputs import SessionInputs
from bouquet.client.state.device_state import PERSONAL, Arrays
from bouquet.client.training import evaluation, sgd
from bouquet.client.training.delegate import LocalTraining, trainer
from bouquet.client.training.memory import check_fits
from bouquet.client.training.objective import ProximalTerm, Term
from bouquet.client.training.precision import FULL
from bouquet.client.training.sgd import SGDOptions, sgd_options
from bouquet.client.uploads.compression import CopyMemory
from bouquet.client.uploads.privacy import PrivateUploads
from bouquet.common import protocol
from bouquet.common.data.looks import look_of, projected, to_bytes
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import ARRAYS, LOOK, RIVAL, TRAIN_SECONDS
from bouquet.common.protocol.compressed import reply_config


@dataclass
class Session(SessionInputs):
    """What a procedure works with. ``metrics`` collects what the reply will report.

    Examples
    --------
    >>> def train(session):
    ...     start = session.start()
    ...     session.report_start(start)
    ...     model, loss = session.train(start, local_epochs=1)
    ...     session.report_trained(model, loss)
    ...     session.keep(model)
    ...     return session.reply(model)
    """

    @classmethod
    def open(cls, message: Message, node: ClientContext) -> Session:
        """Build the model and check the message against it. Raises `BouquetError` for whatever does not fit."""
        if node.threads:
            torch.set_num_threads(node.threads)
        device = sgd.choose_device(node.settings.train.device)
        begun = Built.begin(node, device)
        copies = CopyMemory(node.state, begun.layout)
        received = protocol.read_instruction(message, begun.layout, copies.find)
        run = received.run or str(node.context.run_id)
        built = begun.with_backbone(received.backbone, node, device, run)
        private = None
        if node.settings.privacy.is_on:
            seed = node.seed(received.round, "privacy") if node.is_simulated else None
            private = PrivateUploads(node.settings.privacy, node.state, built.layout, run, seed, node.budget)
        return cls(message, node, built, device, received, run, copies, private)

    # --- training and testing -----------------------------------------------------------------------------------

    def proximal_terms(self) -> list[Term]:
        """The proximal terms that the instruction asks for."""
        return [ProximalTerm(self.tensors(self.received.models[p.anchor]), p.weight) for p in self.received.proximal]

    def train(
        self,
        start: Vector,
        terms: Sequence[Term] = (),
        data: Samples | None = None,
        stream: str = "",
        layers: Sequence[str] | None = None,
        **changes: Any,
    ) -> tuple[Vector, float]:
        """Local SGD from ``start``; returns the trained model (d,) and its mean loss over the last epoch.

        The randomness is that of this device in this round, whatever was trained before it in the same message; a name
        for ``stream`` gives other randomness, independent of it. ``data`` takes the place of `train_data`; of the
        model only ``layers`` are trained, None for all, and the others stay as they are; ``changes`` are those of
        `options`. Raises `BouquetError` for a layer or an option that there is not.
        """
        if not self.learns:
            return start, 0.0
        options = self.options(**changes)
        samples = self.train_data if data is None else data
        trained = None if layers is None else self.layout.names(layers)
        generator = self.generator(stream)
        if (take_over := trainer.get()) is not None and self.loss_of is sgd.PLAIN and self.precision is FULL:
            task = LocalTraining(self.model, self.layout, start, *samples, options, terms, generator, trained)
            if (result := take_over(task)) is not None:
                return result
        model = self.load(start)
        if options.batch_size not in self._fit:
            check_fits(model, samples[0], options.batch_size)
            self._fit.add(options.batch_size)
        began = time.perf_counter()
        with self.seeded(stream):
            loss = sgd.train(model, *samples, options, terms, generator, trained, self.loss_of, self.precision)
        if options.local_steps:
            self.metrics[TRAIN_SECONDS] = self.metrics.get(TRAIN_SECONDS, 0.0) + time.perf_counter() - began
        return self.built.vector(), loss

    def options(self, **changes: Any) -> SGDOptions:
        """What the server sent, else the settings; ``changes`` replace fields. `BouquetError` names what is none."""
        known = [f.name for f in fields(SGDOptions)]
        if unknown := [name for name in changes if name not in known]:
            raise BouquetError(f"Local training has no option {unknown[0]!r}; there are {', '.join(known)}.")
        options = replace(sgd_options(self.received.config, self.node.settings.train), **changes)
        return options if self.learns else replace(options, local_epochs=0)

    def gradient(self, vector: Vector, data: Samples | None = None, stream: str = "") -> Vector:
        """∇L (d,) of the mean loss at a model (d,) on ``data``, by default `train_data`; zero in what is not trained.

        In training mode, as a gradient step is, a part of the data at a time; the model's buffers stay as they were.
        """
        flat = np.zeros(self.layout.dim, dtype=np.float32)
        if not self.learns:
            return flat
        x, y = self.train_data if data is None else data
        with self.seeded(stream):
            gradients = sgd.mean_gradients(self.load(vector), x, y, self.loss_of.as_they_are, evaluation.together(x))
        for spec in self.layout.tensors:
            if spec.name in gradients:
                flat[spec.columns] = gradients[spec.name].flatten().float().cpu().numpy()
        return flat

    def training_loss(self, model: Vector) -> float:
        """The loss of a model (d,) on `train_data`, in evaluation mode."""
        x, y = self.train_data
        return float(self.loss_of.of_logits(evaluation.predict(self.load(model), x), y))

    def batches(self, count: int, batch_size: int, stream: str = "") -> list[Tensor]:
        """Indices of one epoch's mini-batches of ``count`` samples, shuffled by this device's `generator`."""
        return list(sgd.mini_batches(count, batch_size, self.generator(stream)))

    def generator(self, stream: str = "") -> torch.Generator:
        """This device's randomness in this round; each ``stream`` is independent of the others, and always the same."""
        return torch.Generator().manual_seed(self.node.seed(self.received.round, stream))

    @contextmanager
    def seeded(self, stream: str = "") -> Iterator[None]:
        """Inside, what draws from PyTorch's global generators (dropout) is seeded by this device and round."""
        # `torch.manual_seed` would note a seed, with a stack trace, for every kind of accelerator that is not there.
        seed, on_gpu = self.node.seed(self.received.round, stream), self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            yield

    def test(self, *models: Vector) -> evaluation.Scores:
        """Scores on `test_data` of a model (d,), of several those of what they say together."""
        x, y = self.test_data
        outputs = [evaluation.predict(self.load(model), x) for model in models]
        return self.scorer.scores(self.node.task.together(outputs) if len(outputs) > 1 else outputs[0], y)

    def mean_loss(self, model: Vector, data: Samples | None = None) -> float:
        """The mean loss of a model (d,) on `validation_data` or others, neither weighted nor augmented."""
        return evaluation.mean_loss(self.load(model), *(self.validation_data if data is None else data), self.scorer)

    # --- what is reported -------------------------------------------------------------------------------------

    def report_start(self, start: Vector) -> None:
        """Metrics of the model that training starts from: training loss, test scores, and validation if asked for."""
        self.observer.on_start(start)
        model = self.load(start)
        self.metrics[protocol.NUM_EXAMPLES] = len(self._validated[0][1])  # the fold is trained on in other rounds
        self.metrics[protocol.LOSS] = evaluation.mean_loss(model, *self.train_data, self.scorer)
        if self.received.validation_fraction:
            held = evaluation.test(model, *self.validation_data, self.scorer)
            self.metrics[self.node.task.score.validation] = held.score
            self.metrics[protocol.VALIDATION_EXAMPLES] = held.examples
        scores = evaluation.test(model, *self.test_data, self.scorer)
        self.metrics |= score_metrics(scores, self.node.task.score)
        if self.node.is_real:
            self.metrics |= machine_metrics(Sensors())
        self.said = class_counts(self.node, scores) | said_of_data(self.node)

    def report_trained(self, trained: Vector, train_loss: float) -> None:
        """Metrics of the model after training."""
        self.metrics[protocol.TRAIN_LOSS] = train_loss
        self.metrics[self.node.task.score.trained] = self.test(trained).score

    def keep(
        self, personal: Vector, slots: Mapping[str, Arrays] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write what the device keeps of this round, before the reply.

        A device that dies between the two repeats the round from the state before it.
        """
        self.observer.on_keep(personal)
        own = {PERSONAL: self.layout.unflatten(personal), **(slots or {})}
        backbone = self.received.backbone.digest if self.received.backbone else ""
        # The model can be used without a server: its card goes into the same file.
        untrained = self.samples.untrained(self.card.classes) if self.node.task.has_classes else ()
        update = {"untrained": untrained, "scaling": self.scorer.scaling}
        card = self.card.model_copy(update=update).to_json()
        self.node.state.keep(self.run, self.received.round, own, facts or {}, card, backbone, self.samples.kept_as)

    def reply(
        self,
        trained: Vector | None = None,
        config: Mapping[str, protocol.Scalar] | None = None,
        is_model: bool = True,
        from_received: bool = False,
        base: str = ARRAYS,
    ) -> Message:
        """The reply, with the layers of ``trained`` that the instruction asks for.

        With `[privacy]` they are clipped and noised first (`release`), and the scores stay here; what is in ``config``
        and depends on the data must be made of a `release`. In a run that compresses they are packed as a difference;
        where ``trained`` is no model (a gradient), say so by ``is_model``, and they are packed as they are, in 16 bits
        at least. ``from_received`` says that ``trained`` began with what was received although the instruction's
        ``start`` is the personal model; ``base`` names the record that it began with, where that is not the first.
        """
        received, arrays = self.received, None
        heard = self.observer.on_reply(trained if is_model else None, from_received or received.start == "received")
        config = {**(config or {}), **heard, **self.said}
        if RIVAL in received.models and trained is not None and is_model and self.private is None:
            is_served_alone = self.node.settings.personal.serve == "own" and received.start == "received"
            models, beside = (self.whole(base), self.whole(RIVAL)), None if is_served_alone else trained
            config |= judged(self.load, models, beside, self.samples.all_train, self.node.task, self.scorer)
        if LOOK in received.config and self.private is None:
            config[LOOK] = to_bytes(look_of(projected(self.samples.all_train[0].cpu().numpy())))
        if trained is not None and received.upload:
            trained = self.release(trained, base if is_model else None, received.upload)
        if self.private is not None:
            config |= self.private.remember(received, self.initial)
        if received.unpacked is not None:
            seed = self.node.seed(received.round)
            packed, copies = self.copies.answer(self.run, received, trained, is_model, seed, from_received)
            config |= reply_config(self.layout, packed, copies)
        elif trained is not None and received.upload:
            arrays = protocol.to_record(self.layout, trained, received.upload)
        return protocol.reply(
            self.message, self.node.client, metrics_that_leave(self.metrics, self.node), arrays, config
        )

    def release(self, trained: Vector, base: str | None = ARRAYS, layers: Sequence[str] | None = None) -> Vector:
        """What may leave of a model (d,): itself, or with `[privacy]` clipped and noised (`client.uploads.privacy`).

        `reply` does so with what it uploads. Who sends something else that is made of a model makes it of this.
        """
        if self.private is None:
            return trained
        chosen = self.layout.layers if layers is None else layers
        return self.private.release(trained, chosen, self.received, self.initial, base)

    def reply_evaluation(self, vector: Vector) -> Message:
        """Test a model and reply with its scores; ``num-examples`` are those it was tested on."""
        scores = self.observer.on_test(vector) or self.test(vector)
        self.metrics |= score_metrics(scores, self.node.task.score) | {protocol.NUM_EXAMPLES: scores.examples}
        return protocol.reply(self.message, self.node.client, metrics_that_leave(self.metrics, self.node))
