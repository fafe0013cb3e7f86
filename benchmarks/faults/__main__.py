"""Schedules of faults over short runs of each strategy: real processes over gRPC. From the repository's root, as root:

    python -m benchmarks.faults --seeds 0-199 --results faults.jsonl
    python -m benchmarks.faults --seeds 0-199 --results faults.jsonl --jobs 3     (on three fleets side by side)
    python -m benchmarks.faults --only 17 --results faults.jsonl --keep FOLDER    (replays a schedule)
    python -m benchmarks.faults resume --points 20 --results resume.jsonl         (exact resumption)

Each schedule is drawn from its seed: who is killed, stopped, cut off, whose disk is full, which file is damaged, after
which event. One line of JSON a schedule; seeds that are in the file are not run again. Without root there are neither
links nor disks of their own, and the schedules that need them are passed over.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["schedules", "resume"], default="schedules")
    parser.add_argument("--points", type=int, default=20, help="of each strategy at which its server is killed")
    parser.add_argument("--seeds", default="0-199", metavar="A-B,C,…")
    parser.add_argument("--floor", type=float, help="compare with this accuracy instead of with runs without faults")
    parser.add_argument("--only", type=int, metavar="SEED", help="one schedule, also if it is in the file")
    parser.add_argument("--most", type=int, default=10**6, help="so many schedules, then the end")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after so many, no schedule begins")
    parser.add_argument("--jobs", type=int, default=1, help="so many schedules at once, each on a fleet of its own")
    parser.add_argument("--results", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--keep", type=Path, help="where the folders of what went wrong are copied")
    options = parser.parse_args()
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
    from benchmarks.faults import resume
    from benchmarks.faults.run import Series, leave, side_by_side, table

    signal.signal(signal.SIGTERM, leave)
    begun = time.monotonic()
    if options.what == "resume":
        well = resume.play(options.results, options.points, begun + options.seconds, options.keep)
        print(resume.table(options.results))
        return 0 if well else 1
    series = Series(options.results, options.keep, begun + options.seconds, options.floor)
    if options.only is not None:
        well = series.play([options.only], again=True)
    else:
        spans = [text.partition("-") for text in options.seeds.split(",")]
        every = [seed for first, _, last in spans for seed in range(int(first), int(last or first) + 1)]
        # Each kind of fault comes early.
        seeds = sorted((seed for seed in every if seed not in series.done), key=lambda seed: (seed % 6, seed))
        seeds = seeds[: options.most]
        well = side_by_side(options.jobs, series, seeds) if options.jobs > 1 else series.play(seeds)
    print(table(options.results))
    print(f"{time.monotonic() - begun:.0f} s; load {os.getloadavg()[0]:.1f}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
