"""An ordinary Flower ServerApp: FeSEM stands where FedAvg stood."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from bouquet.strategies import FeSEM
from dropin.client_app import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the centers and who belongs to which."""
    torch.manual_seed(0)
    initial = ArrayRecord(make_model().state_dict())
    strategy = FeSEM(num_clusters=2, proximal_weight=0)  # was: FedAvg()
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=int(context.run_config.get("num-rounds", 5)))
    print("loss of each client's own center:", result.evaluate_metrics_clientapp)
    print("centers (slope, intercept):", strategy.centers(strategy.state).round(2).tolist())
    print("clusters:", strategy.assignment(strategy.state))
