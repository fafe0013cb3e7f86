"""An ordinary Flower ClientApp, written as Flower's own tutorial does: it knows nothing of Bouquet.

Each client fits y = w·x + b; odd clients' lines fall, even ones' rise.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def make_model() -> torch.nn.Module:
    """One input, one output."""
    return torch.nn.Linear(1, 1)


def load_data(partition_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fifty noisy points on a line of slope +2 or −2."""
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.rand(50, 1, generator=generator)
    slope = 2.0 if partition_id % 2 == 0 else -2.0
    return x, slope * x + 0.05 * torch.randn(50, 1, generator=generator)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the received model to this client's data."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(int(context.node_config["partition-id"]))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(50):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(x), "train_loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Mean squared error of the received model on this client's data."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(int(context.node_config["partition-id"]))
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(x), y).item()
    metrics = MetricRecord({"num-examples": len(x), "eval_loss": loss})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
