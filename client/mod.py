"""A Flower ClientApp of somebody else's, made fit for methods that need more of it: ``bouquet.client.mod.around(app)``.

The app trains and tests by its own functions, on its own data, with its own model. Around them a device keeps a model,
or layers of it, between rounds, and answers the server as Bouquet's own ClientApp does, by the same procedures
(`bouquet.client.procedures`). Two things only the app itself can do: tell the training loss of a model, which is given
as ``training_loss``, and add the method's proximal terms to the loss that it trains on, by a call of `penalty`.

It is put around the app, and not among its ``mods``: Flower runs no mod for a message that the app has no function for,
and the question what a device can do (`bouquet.common.protocol.capabilities`) is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from bouquet.client.context import ClientContext
from bouquet.client.procedures.registry import procedure
from bouquet.client.rounds.model import Built
from bouquet.client.rounds.session import Session
from bouquet.client.state.device_state import Arrays
from bouquet.client.training.objective import ProximalTerm, Term
from bouquet.client.uploads.compression import CopyMemory
from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol.capabilities import LAYERS, LOSS, TERMS
from bouquet.common.protocol.error_replies import LostBackboneError, refusal
from bouquet.common.protocol.names import CAPABILITIES, INITIAL, PROCEDURE, RUN, START, UPLOAD
from bouquet.common.protocol.records import config_of, records_of
from bouquet.common.settings import Settings

TrainingLoss = Callable[[Message, Context], float]

_KEPT_INITIAL = "initial-model"


@dataclass
class _Asked:
    """The terms of the training in progress, and whether the app's loop asked for them."""

    terms: Sequence[Term]
    has_asked: bool = False


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)


def penalty(model: nn.Module) -> Tensor:
    """The method's terms of the objective at the model's parameters, to be added to the loss; 0 where there are none.

    The names of the parameters must be those in the ``arrays`` of the message.

    Examples
    --------
    In a training loop:

    >>> model, x, y = torch.nn.Linear(2, 1), torch.zeros(4, 2), torch.zeros(4, 1)
    >>> loss = torch.nn.functional.mse_loss(model(x), y) + bouquet.penalty(model)
    >>> loss.backward()
    """
    request, place = _asked.get(), next(model.parameters()).device
    total = torch.zeros((), device=place)
    if request is None:
        return total
    request.has_asked = True
    for term in request.terms:
        if isinstance(term, ProximalTerm) and any(tensor.device != place for tensor in term.anchor.values()):
            term = ProximalTerm({name: tensor.to(place) for name, tensor in term.anchor.items()}, term.weight)
        total = total + term(model)
    return total


def around(app: ClientApp, training_loss: TrainingLoss | None = None, adds_penalty: bool = False) -> ClientApp:
    """A ClientApp around ``app`` that can do what methods need beyond training and testing a whole model.

    Parameters
    ----------
    app : ClientApp
        Its train function takes ``arrays``, and replies with ``arrays`` and ``metrics`` with ``num-examples``; its
        evaluate function takes ``arrays`` and replies with ``metrics``.
    training_loss : Callable[[Message, Context], float] | None
        The mean loss of the model in the message's ``arrays`` on the data that the app trains on.
    adds_penalty : bool
        Whether the training loop adds `penalty` to its loss. Training that says so and does not ends in an error.

    Examples
    --------
    The last line of a ``client_app.py``, after its ``@app.train()`` and ``@app.evaluate()``:

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> app = bouquet.around(app, adds_penalty=True)
    """
    able = ",".join([LAYERS, *([TERMS] if adds_penalty else []), *([LOSS] if training_loss else [])])
    outer = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            session = BorrowedSession.borrow(message, context, app, training_loss)
            module = procedure(session.received.procedure)
            handler = module.evaluate if session.is_evaluation else module.train
            reply: Message = handler(session)
            return reply
        except BouquetError as error:
            error.public = str(error)  # it is the app's own user who reads it
            return refusal(message, error)

    outer.train()(answer)
    outer.evaluate()(answer)

    @outer.query("identify")
    def identify(message: Message, context: Context) -> Message:
        return protocol.reply(message, _device(context).client, {}, config={CAPABILITIES: able})

    return outer


def _device(context: Context) -> ClientContext:
    return ClientContext(Settings(), context)


@dataclass
class BorrowedSession(Session):
    """A session whose training and tests are another ClientApp's."""

    app: ClientApp | None = None
    loss_by: TrainingLoss | None = None

    @classmethod
    def borrow(
        cls, message: Message, context: Context, app: ClientApp, loss_by: TrainingLoss | None
    ) -> BorrowedSession:
        """Read the message. Raises `BouquetError` for whatever does not fit."""
        node, run = _device(context), str(config_of(message.content, protocol.CONFIG).get(RUN, ""))
        initial = _initial_model(message, node, run or str(context.run_id))
        layout = ParameterLayout.of(initial)
        received = protocol.read_instruction(message, layout)
        built = Built(nn.Module(), layout, layout.flatten(initial), is_known=False)
        own_run, copies = received.run or str(context.run_id), CopyMemory(node.state, layout)
        return cls(message, node, built, torch.device("cpu"), received, own_run, copies, app=app, loss_by=loss_by)

    def train(
        self,
        start: Vector,
        terms: Sequence[Term] = (),
        data: tuple[Tensor, Tensor] | None = None,
        stream: str = "",
        layers: Sequence[str] | None = None,
        **changes: Any,
    ) -> tuple[Vector, float]:
        """The app's own training from ``start``. Raises `BouquetError` for one that it cannot do, or did not."""
        if data is not None or layers is not None or changes:
            raise BouquetError("This device's ClientApp trains in its own way, and the server asks for another.")
        request = _Asked(terms)
        token = _asked.set(request)
        try:
            reply = self._call(start)
        finally:
            _asked.reset(token)
        if terms and not request.has_asked:
            raise BouquetError(
                "This device's ClientApp was to add bouquet.client.mod.penalty(model) to its loss (adds_penalty), "
                "and did not."
            )
        records = records_of(reply.content, ArrayRecord)
        if len(records) != 1:
            raise BouquetError(
                f"The ClientApp's train function replied with {len(records)} ArrayRecords, not with one."
            )
        trained = self.layout.flatten(protocol.from_record(next(iter(records.values()))))
        return trained, self.metrics.get("train_loss", float("nan"))

    def training_loss(self, model: Vector) -> float:
        """By the function that was given for it."""
        if self.loss_by is None:
            raise BouquetError("This device's ClientApp cannot tell the training loss of a model: give training_loss.")
        return float(self.loss_by(self._holding(model), self.node.context))

    def load(self, vector: Vector) -> nn.Module:
        """Raises `BouquetError`: the model is the app's own."""
        raise BouquetError(f"What the server asks for ({self.received.procedure}) takes Bouquet's own ClientApp.")

    def report_start(self, start: Vector) -> None:
        """Nothing but the loss, where it can be told; the app reports what it likes."""
        if self.loss_by is not None:
            self.metrics[protocol.LOSS] = self.training_loss(start)

    def report_trained(self, trained: Vector, train_loss: float) -> None:
        """Nothing: the app's own metrics are there."""

    def keep(
        self, personal: Vector, slots: Mapping[str, Arrays] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Beside the app's own state, in Flower's context."""
        own = {"personal": self.layout.unflatten(personal), **(slots or {})}
        self.node.state.keep(self.run, self.received.round, own, facts or {})

    def reply_evaluation(self, vector: Vector) -> Message:
        """The app's own metrics of this model."""
        self._call(vector)
        return protocol.reply(self.message, self.node.client, self.metrics)

    def _holding(self, vector: Vector) -> Message:
        """The message as the app knows it: one whole model, and the config."""
        message = copy(self.message)
        config = ConfigRecord(dict(config_of(self.message.content, protocol.CONFIG)))
        arrays = protocol.to_record(self.layout, vector)
        message.content = RecordDict({protocol.ARRAYS: arrays, protocol.CONFIG: config})
        return message

    def _call(self, vector: Vector) -> Message:
        """What the app says of a model; its metrics become this session's."""
        assert self.app is not None
        reply = self.app(self._holding(vector), self.node.context)
        if reply.has_error():
            raise BouquetError(str(reply.error.reason))
        for record in records_of(reply.content, MetricRecord).values():
            self.metrics |= {name: value for name, value in record.items() if isinstance(value, int | float)}
        return reply


def _initial_model(message: Message, node: ClientContext, run: str) -> Arrays:
    """The model that the run begins with: sent with the first message, out of which it is taken, or kept."""
    if INITIAL in message.content:
        initial = protocol.from_record(records_of(message.content, ArrayRecord)[INITIAL])
        message.content = RecordDict({name: record for name, record in message.content.items() if name != INITIAL})
        node.state.save_arrays(run, _KEPT_INITIAL, 0, initial)
        return initial
    if (kept := node.state.load_arrays(run, _KEPT_INITIAL, 0)) is not None:
        return kept
    # A method that needs nothing of a device does not ask what it can do, and sends it whole models.
    if protocol.ARRAYS in message.content and not {START, UPLOAD, PROCEDURE} & set(
        config_of(message.content, protocol.CONFIG)
    ):
        return protocol.from_record(records_of(message.content, ArrayRecord)[protocol.ARRAYS])
    raise LostBackboneError("This device no longer has the model that the run began with; it will be sent it again.")
