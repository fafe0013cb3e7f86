"""Runs the benchmarks that take a minute or so each, and writes what they say: ``make bench``.

``results.jsonl`` gets a line for each (name, command, seconds, load, output), ``results.md`` the same to read. Those
that need images (BOUQUET_DATA_DIR) take the embedded digits where they can, else are left out; those that need root, a
quiet machine or hours are not among them, and are named where their figures are, in docs/. From the repository's root:

    python benchmarks/run.py --out runs/bench [NAME ...]
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WITH_DATA = "--data-dir"  # only where BOUQUET_DATA_DIR names a folder
BENCHMARKS = {
    "model_discrepancy": ["model_discrepancy.py", "--clients", "300", "--repeats", "1"],
    "server_mathematics": ["server_mathematics.py", "--clients", "200", "--parameters", "200000"],
    "server_inference": ["server_inference.py", "--models", "mlp", "cnn-dcpfl", "--clients", "20"],
    "round_memory": ["round_memory.py", "--clients", "100", "--parameters", "200000"],
    "local_training": ["local_training.py"],
    "simulation": ["simulation.py", "rounds", "--turns", "1"],
    "many_clients": ["simulation.py", "many", "--clients-many", "100", "1000", WITH_DATA],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count()
    page = [f"# Benchmarks\n\n{datetime.date.today()}, {platform.machine()}, {cores} cores, {platform.platform()}\n"]
    failed = []
    with (options.out / "results.jsonl").open("w", encoding="utf-8") as lines:
        for name in options.names or BENCHMARKS:
            command = BENCHMARKS[name]
            if WITH_DATA in command and not os.environ.get("BOUQUET_DATA_DIR"):
                print(f"{name}: left out, because BOUQUET_DATA_DIR names no folder", flush=True)
                continue
            shown = [word for word in command if word != WITH_DATA]
            load, started = os.getloadavg()[0], time.monotonic()
            print(f"{name} …", flush=True)
            done = subprocess.run([sys.executable, str(HERE / shown[0]), *shown[1:]], capture_output=True, text=True)
            seconds = round(time.monotonic() - started, 1)
            output = done.stdout if done.returncode == 0 else done.stderr[-2000:]
            failed += [name] if done.returncode else []
            line = {"name": name, "command": shown, "seconds": seconds, "load": load, "code": done.returncode}
            lines.write(json.dumps({**line, "output": output.splitlines()}) + "\n")
            lines.flush()
            page.append(
                f"## {name}\n\n`python benchmarks/{' '.join(shown)}`: {seconds} s, load {load:.1f} at its start\n\n"
                f"```\n{output.rstrip()}\n```\n"
            )
            (options.out / "results.md").write_text("\n".join(page), encoding="utf-8")
            print(output, flush=True)
    print(f"{options.out / 'results.md'}, {options.out / 'results.jsonl'}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
