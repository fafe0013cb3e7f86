"""HypCluster: each device takes the hypothesis with the least loss on its data."""

PROCEDURE = "hypocluster"
