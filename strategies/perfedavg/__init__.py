"""Per-FedAvg: a global model from which one gradient step on a device's own data leads to a good one.

The wire of Per-FedAvg: keys of the config that tell a device how to adapt a model.
"""

PROCEDURE = "per-fedavg"
ADAPTATION_RATE = "adaptation-rate"  # α
ADAPTATION_STEPS = "adaptation-steps"  # gradient steps on all training data before a test
