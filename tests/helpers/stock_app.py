"""A plain Flower ClientApp, and Bouquet's own on the same data and model; each step is on all of a device's data."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from bouquet.client.app import make_client_app
from bouquet.client.data.loading import part_of
from bouquet.common.model.build import initial_model
from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers

DEVICES = 6
SETTINGS = parse_settings(
    {
        "data": {"clients": DEVICES, "partition": "label-permuted", "groups": 2},
        "model": {"name": "mlp"},
        "train": {"local_epochs": 3, "batch_size": 10_000, "learning_rate": 0.3, "momentum": 0.0, "threads": 1},
    },
    {},
)


def samples(context):
    """Training and test samples of a device, with their labels."""
    data = part_of(SETTINGS, int(context.node_config["partition-id"]), DEVICES)
    return [torch.as_tensor(part) for part in (data.train_x, data.train_y, data.test_x, data.test_y)]


def received_model(message):
    """The model that a message holds."""
    model = initial_model(SETTINGS)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def stock_app(penalty=None):
    """As Flower's template has it; with a ``penalty`` its loop adds that to the loss."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, (x, y, *_) = received_model(message), samples(context)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(3):
            loss = cross_entropy(model(x), y)
            optimiser.zero_grad()
            (loss if penalty is None else loss + penalty(model)).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": len(y), "train_loss": loss.item()})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model, (*_, x, y) = received_model(message), samples(context)
        with torch.no_grad():
            loss = cross_entropy(model(x), y).item()
        metrics = MetricRecord({"num-examples": len(y), "test-loss": loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def training_loss(message: Message, context: Context) -> float:
    """The mean loss of the received model on the device's training data."""
    model, (x, y, *_) = received_model(message).eval(), samples(context)
    with torch.no_grad():
        return cross_entropy(model(x), y).item()


def grid_of(app, asked=None):
    """Six devices with this app; the types of the messages that they are sent go into ``asked``."""
    places = {10 + i: {"partition-id": i, "num-partitions": DEVICES} for i in range(DEVICES)}
    handlers = app_handlers(app, {n: Context(1, n, config, RecordDict(), {}) for n, config in places.items()})

    def noting(handler):
        def handle(message):
            if asked is not None:
                asked.append(message.metadata.message_type)
            return handler(message)

        return handle

    return InlineGrid({node: noting(handler) for node, handler in handlers.items()})


def initial():
    """The model that a run begins with."""
    return ArrayRecord(initial_model(SETTINGS).state_dict())


def play(strategy, app, rounds, asked=None):
    """A run from the initial model; what `Strategy.start` gives."""
    return strategy.start(grid_of(app, asked), initial(), num_rounds=rounds, timeout=60)


def own_app(folder):
    """Bouquet's own ClientApp, its devices' state in a folder."""
    return make_client_app(SETTINGS, folder)
