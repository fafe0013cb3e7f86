"""Waiting for real processes, and counting what they leave."""

import time
from pathlib import Path

from client.supernode.launcher import SuperNode
from common.errors import BouquetError
from common.system.process_group import GROUP_VARIABLE
from server.superlink.process import RunLog, RunStatus, SuperLink, run_status


def processes_tagged(tag: str) -> list[int]:
    """Ids of the running processes that carry a `ProcessGroup`'s tag; empty where there is no /proc.

    ``flower-superexec`` hides its environment, so of those only root sees all.
    """
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{GROUP_VARIABLE}={tag}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def wait_until_connected(node: SuperNode, timeout: float = 300.0) -> int:
    """Wait for the server to admit a SuperNode; its id. `BouquetError`, with its log, if that does not come about."""
    deadline = time.monotonic() + timeout
    while (node_id := node.node_id) is None:
        if not node.process.alive or time.monotonic() >= deadline:
            what = "is not connected yet" if node.process.alive else "has ended"
            raise BouquetError(f"{node.process.name} {what}. Its log, {node.log_file}:\n{node.process.tail()}")
        time.sleep(0.1)
    return node_id


def wait_for_run(superlink: SuperLink, run_id: int, log_file: Path, timeout: float = 400.0) -> RunStatus:
    """Wait for the end of a run, its log going to ``log_file``; a failed run is a status, not an exception."""
    deadline = time.monotonic() + timeout
    log = RunLog(superlink, run_id, log_file)
    while log.alive or not run_status(superlink, run_id).finished:
        assert time.monotonic() < deadline, f"Run {run_id} is not over after {timeout:g} s."
        time.sleep(0.1)
    return run_status(superlink, run_id)
