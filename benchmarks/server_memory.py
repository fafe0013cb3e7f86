"""What a server takes while it waits for devices, and in a run: proportional set size of its processes, from /proc.

    python benchmarks/server_memory.py [--keep-waiting] [--web]

One device with a small model, so that what is seen is the program. Linux.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from processes import proportional, tree
from wire import programs, written_lines

from bouquet.common.system.ports import free_port
from bouquet.common.system.processes import ending_in_order

SETTINGS = {
    "run.rounds": 6,
    "data.clients": 1,
    "data.samples_per_client": 100,
    "server.min_clients": 1,
    "strategy.num_clusters": 1,
}
ROUND = 4
SETTLING_SECONDS, PATIENCE_SECONDS = 15.0, 300.0


def look(root: int) -> Counter[str]:
    """MB of the server itself, and of what it has started."""
    found: Counter[str] = Counter()
    for pid in tree(root):
        found["server" if pid == root else "beside it"] += round(proportional(pid) / 1e6)
    return found


def wait_for(true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            sys.exit(log.read_text())
        time.sleep(0.1)


def main() -> None:
    more = [argument for argument in sys.argv[1:] if argument == "--keep-waiting"]
    if "--web" in sys.argv:
        more += ["--web", f"127.0.0.1:{free_port()}"]
    bouquet, port = (sys.executable, "-m", "bouquet"), str(free_port())
    sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    with ending_in_order(), tempfile.TemporaryDirectory() as temporary, programs(Path(temporary)) as start:
        run, log = Path(temporary) / "run", Path(temporary) / "log"
        server = start(*bouquet, "server", "--insecure", "--port", port, "--out", "run", *more, *sets)
        status = run / "status.json"
        wait_for(lambda: status.exists() and json.loads(status.read_text())["state"] == "waiting", log)
        time.sleep(SETTLING_SECONDS)
        waiting = look(server.pid)
        start(*bouquet, "client", "--insecure", "--server", f"127.0.0.1:{port}", "--partition-id", "0")
        wait_for(lambda: len(written_lines(run)) >= ROUND, log)
        training = look(server.pid)
    print("| process | waiting | in a run |\n| --- | ---: | ---: |")
    for name in waiting | training:
        print(f"| {name} | {waiting[name]} MB | {training[name]} MB |")


if __name__ == "__main__":
    main()
