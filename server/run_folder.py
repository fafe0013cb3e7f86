"""What lies in the folder of a run, by name: for whoever writes it, reads it, or clears it away."""

from __future__ import annotations

from pathlib import Path

SETTINGS = "settings.json"
ROUNDS = "rounds.jsonl"  # a line a round
SUMMARY = "summary.json"  # written last: a run without one did not end
MODELS = "models"
LOOKS = f"{MODELS}/looks.json"  # there: what the samples of the clusters' devices look like
VERSIONS = f"{MODELS}/versions"  # there: what was sent in earlier rounds
CHECKPOINTS = "checkpoint"
REPORT = "report.html"
STATUS = "status.json"  # what the server does now
STOP = "stop"  # there while the owner wants the run to end
ROLLBACK = "rollback.json"  # and while he wants clusters to have these versions again
IDENTITY = "id"  # of the run, for devices
SERVER_LOG = "server.log"  # what the strategy logs
NAMES = "devices.json"  # who took part, and under which name
SERVICE = "service"  # what is on its way to devices and back
CONNECTIONS = "connections.json"  # there: who is connected
QUEUE = "queue"  # of a server that takes further runs
# Where a run started from more than the seed gives.
START, START_ARRAYS = "start.json", "start.safetensors"
STATE_FOLDER = "devices"  # what each device of a simulation, or of the demo, keeps
SINGLE_MODEL = "single-model"  # the run that the demo compares with

# What a run that ended in its first round may have left, and the next one in its folder must not take for its own.
OF_A_FALSE_START = (ROUNDS, STATUS, NAMES, START, START_ARRAYS, ROLLBACK)
EVERYTHING = frozenset(
    {
        *OF_A_FALSE_START,
        *(SETTINGS, SUMMARY, MODELS, CHECKPOINTS, REPORT, STOP),
        *(IDENTITY, SERVER_LOG, SERVICE, QUEUE, STATE_FOLDER, SINGLE_MODEL),
    }
)


def holds_run(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / SETTINGS).exists()
