"""A run from its settings to its last round: building, the loop, checkpoints, going on, stopping."""
