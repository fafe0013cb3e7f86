"""A simulation on two Ray nodes, both started on this machine: which of them the clients' actors ran on, as JSON.

It ends the nodes that it started, and no other Ray. From the repository's root:

    python benchmarks/ray_nodes.py
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bouquet.common.settings import load_settings
from bouquet.common.system.ports import free_port
from bouquet.experiments.simulation.run import simulate


def start_node(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A Ray node of one core, which ends with its process group."""
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--block", "--num-cpus=1"]
    command += ["--node-ip-address=127.0.0.1", *arguments]
    return subprocess.Popen(command, start_new_session=True, stdout=log.open("wb"), stderr=subprocess.STDOUT)


def nodes_at(address: str) -> int:
    """How many nodes the cluster has; 0 while it cannot be reached."""
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error'); "
    code += "print(sum(node['Alive'] for node in ray.nodes()))"
    done = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    port = free_port()
    address = f"127.0.0.1:{port}"
    logs = Path(tempfile.mkdtemp())
    nodes = [start_node(logs / "1", "--head", "--include-dashboard=false", f"--port={port}")]
    try:
        for wanted in (1, 2):
            until = time.monotonic() + 300
            while nodes_at(address) < wanted:
                if time.monotonic() > until:
                    said = (logs / str(wanted)).read_text(errors="replace")[-2000:]
                    raise SystemExit(f"Ray node {wanted} did not come up within five minutes:\n{said}")
                time.sleep(1)
            if wanted == 1:
                nodes.append(start_node(logs / "2", f"--address={address}"))
        found: Counter[str] = Counter()

        def follow(line: dict) -> None:
            import ray._private.state as state

            found.update(actor["Address"]["NodeID"][:8] for actor in state.actors().values())
            print(json.dumps({"round": line["round"], "seconds": line["seconds"]}), flush=True)

        changes = ["data.clients=6", f"run.rounds={options.rounds}"]
        os.environ["RAY_ADDRESS"] = address
        with tempfile.TemporaryDirectory() as folder:
            settings = load_settings(None, [*changes, "strategy.name=fedavg"])
            summary = simulate(settings, Path(folder) / "run", follow=follow)
        print(json.dumps({"accuracy": summary["accuracy_macro"], "actors seen, by node": dict(found)}))
    finally:
        for node in reversed(nodes):
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
