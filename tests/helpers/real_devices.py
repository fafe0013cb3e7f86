"""A strategy on an in-memory grid of real devices: Bouquet's own ClientApp, each with its part of the digits."""

from flwr.app import ConfigRecord, Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.client.context import ClientContext
from bouquet.client.rounds.session import Session
from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.protocol import Encoder
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers
from bouquet.server.run.build import build_strategy
from bouquet.server.run.round_config import train_config
from bouquet.strategies.base import reply_checks
from bouquet.strategies.base.exchange import Patience, exchange

SMALL = ["data.clients=4", "data.samples_per_client=40", "data.partition=pathological", "model.hidden=[8]"]
SMALL += ["train.momentum=0.0", "train.local_epochs=1"]


class Federation:
    """``settings``, ``strategy`` and ``layout``; a node in ``silent`` takes messages and never answers."""

    def __init__(self, folder, *changes):
        self.settings = load_settings(None, [*SMALL, *changes])
        self.layout, self.initial = state_vector(initial_model(self.settings))
        self.strategy = build_strategy(self.settings)
        self.strategy.run_id = "r"
        self.strategy.round_patience = Patience(0.3)  # devices answer while they are asked; nobody else will
        self.silent = set()
        self.folder = folder
        clients = self.settings.data.clients
        self.contexts = {
            2 + part: Context(1, 2 + part, {"partition-id": part, "num-partitions": clients}, RecordDict(), {})
            for part in range(clients)
        }
        self.client_app = make_client_app(self.settings, folder)
        handlers = app_handlers(self.client_app, self.contexts)
        self.grid = InlineGrid({node: self._unless_silent(node, handler) for node, handler in handlers.items()})
        self.arrays = protocol.to_record(self.layout, self.initial)

    def _unless_silent(self, node, handler):
        def handle(message):
            return (
                None if node in self.silent and message.metadata.message_type != protocol.IDENTIFY else handler(message)
            )

        return handle

    def message(self, instruction, round_=1, kind="train", node=2):
        """What a device is sent."""
        content = Encoder(self.layout).content(instruction, round_, "r", dict(train_config(self.settings, round_)))
        return Message(content, dst_node_id=node, message_type=kind)

    def session(self, instruction, round_=1, kind="train", part=0):
        """A device's session for an instruction."""
        return Session.open(
            self.message(instruction, round_, kind),
            ClientContext(self.settings, self.contexts[2 + part], self.folder, round=round_),
        )

    def ask(self, instruction, round_=1, part=0):
        """A device's checked reply to an instruction."""
        reply = self.client_app(self.message(instruction, round_), self.contexts[2 + part])
        return reply_checks.read_reply(reply, self.layout, instruction.upload)

    def play(self, *rounds):
        """Rounds of training, as the server's loop has them; returns the first of its models (d,)."""
        for round_ in rounds:
            config = train_config(self.settings, round_)
            messages = list(self.strategy.configure_train(round_, self.arrays, config, self.grid))
            replies, silent = exchange(self.grid, messages, self.strategy.round_patience)
            self.strategy.give_up(silent)
            self.strategy.aggregate_train(round_, replies)
        centers = self.strategy.centers(self.strategy.state)
        return centers[0] if len(centers) else self.initial

    def evaluate(self, round_):
        """Accuracy of every device that answers an evaluation after a round."""
        messages = list(self.strategy.configure_evaluate(round_, self.arrays, ConfigRecord(), self.grid))
        replies, silent = exchange(self.grid, messages, self.strategy.round_patience)
        self.strategy.give_up(silent)
        self.strategy.aggregate_evaluate(round_, replies)
        return {client: values["accuracy"] for client, values in self.strategy.evaluate_round.scores.items()}
