"""The server: rounds, checkpoints, the record of a run, and the service that devices reach."""
