"""Devices in network namespaces of their own, each joined to the server's by a veth pair, and programs in a folder.

Linux, root, iproute2.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Link:
    """A client's namespace and the server's end of its veth pair."""

    number: int

    @property
    def namespace(self) -> str:
        """Its name; one benchmark at a time."""
        return f"bouquet-{self.number}"

    @property
    def device(self) -> str:
        """The server's end."""
        return f"bouquet{self.number}"

    @property
    def server(self) -> str:
        """The server's address on this link."""
        return f"10.213.{self.number}.1"

    def up(self) -> None:
        """Make the namespace and the pair."""
        inside = ["ip", "-n", self.namespace]
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self.device, "type", "veth", "peer", "name", "uplink", "netns", self.namespace)
        run("ip", "addr", "add", f"{self.server}/24", "dev", self.device)
        run("ip", "link", "set", self.device, "up")
        run(*inside, "addr", "add", f"10.213.{self.number}.2/24", "dev", "uplink")
        run(*inside, "link", "set", "uplink", "up")
        run(*inside, "link", "set", "lo", "up")

    def down(self) -> None:
        """Remove the namespace, and with it the pair."""
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)

    def counters(self) -> tuple[int, int]:
        """Bytes so far to the client and from it, with all headers and acknowledgements."""
        folder = Path("/sys/class/net") / self.device / "statistics"
        return tuple(int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))  # type: ignore[return-value]


def run(*command: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts commands in a folder, with their output in its ``log``, and ends them all in the end."""
    running: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with (folder / "log").open("wb") as log:

        def start(*command: str) -> subprocess.Popen[bytes]:
            running.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment))
            return running[-1]

        try:
            yield start
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def written_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's record that are whole."""
    record = run / "rounds.jsonl"
    text = record.read_text() if record.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
