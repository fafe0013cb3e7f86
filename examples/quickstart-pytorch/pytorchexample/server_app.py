"""pytorchexample: A Flower / PyTorch app, changed from Flower's quickstart: FeSEM in the place of FedAvg."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from bouquet.strategies import FeSEM
from pytorchexample.task import Net

# Create ServerApp
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""

    # Read run config
    fraction_evaluate: float = context.run_config["fraction-evaluate"]
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]

    # Load global model
    torch.manual_seed(0)
    global_model = Net()
    arrays = ArrayRecord(global_model.state_dict())

    # Initialize FeSEM strategy
    strategy = FeSEM(num_clusters=2, proximal_weight=0, fraction_evaluate=fraction_evaluate)

    # Start strategy, run FeSEM for `num_rounds`
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
    )
    print("\nAccuracy:", round(result.evaluate_metrics_clientapp[num_rounds]["eval_acc"], 3))

    # Save a model for each cluster to disk
    clusters = strategy.assignment(strategy.state)
    for cluster, center in enumerate(strategy.centers(strategy.state)):
        state_dict = {name: torch.tensor(array) for name, array in strategy.layout.unflatten(center).items()}
        torch.save(state_dict, f"cluster-{cluster}.pt")
        print(f"cluster-{cluster}.pt is the model of", *(node for node, found in clusters.items() if found == cluster))
