"""The server: rounds, checkpoints, the record of a run, and the SuperLink it runs on."""
