"""The local federation of compose.yaml: keys for all of it, and a device for each of the client containers.

    local.py folders UID GID   as root: the folders that volumes and the host brought belong to the user of the others
    local.py keys N            an authority, the server's certificate, and those of devices 0 to N - 1 with their keys
    local.py client ...        take a device that no other container is, and run `bouquet client ...` as it

Replicas of a service are all alike, so each takes a number that is free. The claim is a file lock in the volume that
they share: the kernel gives it back however a container ends, and whichever container takes it next is that device,
with its key, its part of the data and its personal layers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

KEYS = Path("/keys")  # in the keys service; a client has there what keys/devices is in that one
AUTHORITY = Path("/authority")  # no volume of the clients: whoever has ca.key can be the server
STATE = Path("/state")
RUNS = Path("/runs")
LOOK_SECONDS = 1.0


def folders(user: int, group: int) -> None:
    """Give what Docker made as root to the user; a folder of somebody else on the host is not taken from them."""
    owner = RUNS.stat().st_uid
    if owner not in (0, user):
        sys.exit(f"The folder runs belongs to user {owner}: set BOUQUET_UID={owner}.")
    for folder in (RUNS, KEYS, KEYS / "devices", AUTHORITY, STATE):
        os.chown(folder, user, group)


def keys(number: int) -> None:
    """Make what is not there yet of the authority and the devices' keys and certificates."""
    if not (KEYS / "ca.crt").exists():
        subprocess.run(["bouquet", "keys", "init", "--dir", KEYS, "--host", "server"], check=True)
    if not (KEYS / "ca.key").is_symlink():
        shutil.move(KEYS / "ca.key", AUTHORITY / "ca.key")
        (KEYS / "ca.key").symlink_to(AUTHORITY / "ca.key")
    new = [name for name in map(device_name, range(number)) if not (KEYS / "registered" / f"{name}.crt").exists()]
    if new:
        subprocess.run(["bouquet", "keys", "add", *new, "--dir", KEYS], check=True)


def device_name(number: int) -> str:
    """The folder of a device's keys, and of its state."""
    return f"device-{number}"


def claim(state: Path, number: int) -> tuple[int, IO[str]]:
    """Take the first free device of ``number``; it is this process's as long as the returned file is open."""
    for device in range(number):
        folder = state / device_name(device)
        folder.mkdir(exist_ok=True)
        lock = (folder / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return device, lock
    sys.exit(f"All {number} devices are taken by other containers: set CLIENTS to the number of clients.")


def shape(rate: str, user: int, group: int) -> None:
    """Let this container send no more than ``rate`` (tc's form, such as 2mbit), then stop being root."""
    slow = ["tbf", "rate", rate, "burst", "32kb", "latency", "400ms"]
    subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *slow], check=True)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)


def client(arguments: list[str], number: int, finished: Path) -> int:
    """Run one device until the run has its result, or until this process is asked to end; the exit status."""
    device, lock = claim(STATE, number)
    where: list[str | Path] = ["--partition-id", str(device), "--state-dir", STATE / device_name(device)]
    if "--insecure" not in arguments:
        where += ["--keys", KEYS / device_name(device)]
    print(f"This container is {device_name(device)}.", flush=True)
    with lock:
        process = subprocess.Popen(["bouquet", "client", *arguments, *where])
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while process.poll() is None and not finished.exists():
            time.sleep(LOOK_SECONDS)
        over = process.poll() is None
        process.terminate()
        status = process.wait()
    return 0 if over else status


def main(command: str, *arguments: str) -> int:
    """The command line above; the rest comes from the environment that compose.yaml sets."""
    if command == "folders":
        folders(*map(int, arguments))
    elif command == "keys":
        keys(int(arguments[0]))
    else:
        if rate := os.environ.get("RATE"):
            shape(rate, int(os.environ["BOUQUET_UID"]), int(os.environ["BOUQUET_GID"]))
        return client(list(arguments), int(os.environ["CLIENTS"]), RUNS / os.environ["RUN"] / "summary.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
