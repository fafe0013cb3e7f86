"""A table whose rows are tuned."""

TUNED = """
name = "small"
seeds = [0, 1]
[tune]
seeds = [100, 101]
"train.learning_rate" = [0.2, 0.05, 0.1]
[base.run]
rounds = 3
[base.data]
test_samples = 20
reserved_fraction = 0.2
[base.simulation]
engine = "inline"
[[strategy]]
label = "FedAvg"
name = "fedavg"
[[strategy]]
label = "FedAvg, after local training"
name = "fedavg"
tested = "trained"
[[strategy]]
label = "Prox"
name = "fedprox"
tune = { "strategy.proximal_mu" = [0.01, 1.0] }
[[data]]
label = "digits"
clients = 4
[[data]]
label = "more"
clients = 5
"""


def taken(results):
    """(row, column) → the step size of its cells that were run."""
    return {
        (one.cell.strategy, one.cell.data): one.run.settings.train.learning_rate for one in results.cells if one.run
    }
