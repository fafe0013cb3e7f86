"""HypCluster: each device takes the hypothesis with the least loss on its data.

The names that both ends need: ``center-k`` holds the model of cluster k.
"""

PROCEDURE = "hypocluster"
CENTER = "center-"  # beginning of the names of records
CHOSEN = "cluster"  # metric: the cluster that a device took
LOSS_GAP = "loss-gap"  # metric: between the worst and the best of the models on the device's training data
