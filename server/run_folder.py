"""What lies in the folder of a run, by name: for whoever writes it, reads it, or clears it away."""

from __future__ import annotations

from pathlib import Path

SETTINGS = "settings.json"
ROUNDS = "rounds.jsonl"  # a line a round
SUMMARY = "summary.json"  # written last: a run without one did not end
SIMILARITY = "similarity.json"
MODELS = "models"
CHECKPOINTS = "checkpoint"
REPORT = "report.html"
STATUS = "status.json"  # what the server does now
STOP = "stop"  # there while the owner wants the run to end
FAILURE = "failure.txt"  # why the ServerApp ended it
SERVER_LOG = "server.log"  # what the ServerApp logs
SERVERAPP = ".serverapp"  # Flower's id of the run; held by the ServerApp while that lives
MADE = ".initial-model.npz"  # what the check of the settings made, for the ServerApp, which takes it away
NAMES = "devices.json"  # who took part, and under which name
SUPERLINK = "superlink"  # SuperLink's log, database and apps
QUEUE = "queue"  # of a server that takes further runs
# Where a run started from more than the seed gives.
START, START_ARRAYS = "start.json", "start.safetensors"
STATE_FOLDER = "devices"  # what each device of a simulation, or of the demo, keeps
SINGLE_MODEL = "single-model"  # the run that the demo compares with

# What a run that ended in its first round may have left, and the next one in its folder must not take for its own.
OF_A_FALSE_START = (ROUNDS, STATUS, NAMES, START, START_ARRAYS)
EVERYTHING = frozenset(
    {
        *OF_A_FALSE_START,
        *(SETTINGS, SUMMARY, SIMILARITY, MODELS, CHECKPOINTS, REPORT, STOP, FAILURE),
        *(SERVER_LOG, SUPERLINK, QUEUE, STATE_FOLDER, SINGLE_MODEL),
    }
)

# How `bouquet server` tells its ServerApp, through the environment, where what is; devices never learn of it.
RUN_FOLDER = "BOUQUET_RUN_DIR"
RESUME = "BOUQUET_RESUME"
CURRENT = "BOUQUET_CURRENT"  # the file that names the run in hand, of a server with many: in place of the two above
CURRENT_RUN = "run-folder"
DATABASE = "BOUQUET_DATABASE"  # SuperLink's, which knows the nodes' keys
REGISTERED = "BOUQUET_REGISTERED"  # the folder of registered keys, whose names are the devices'


def holds_run(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / SETTINGS).exists()
