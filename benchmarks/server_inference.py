"""Seconds of the server's inference of m client models on the public batch: batched, against a plain loop over them.

The plain loop loads each model and runs it, as one would write it down. Both take turns in one process on the same
models and samples, and the least seconds count. On a GPU where there is one. From the repository's root:

    python benchmarks/server_inference.py --clients 20 100 --models mlp cnn-dcpfl cnn-fedtsdp resnet18
"""

import argparse
import time

import numpy as np
import torch

from bouquet.common.model.architectures import build_model
from bouquet.common.model.build import state_vector
from bouquet.server.public_data.inference import Inference
from bouquet.server.public_data.samples import PublicSamples

SHAPES = {"resnet18": (3, 32, 32)}
GREY = (1, 28, 28)


def measure(name: str, clients: int, batch: int, repeats: int) -> tuple[dict[bool, float], float]:
    """Least seconds batched and not, and the largest difference of the outputs."""
    shape = SHAPES.get(name, GREY)
    model = build_model(name, shape, 10, 0)
    generator = np.random.default_rng(0)
    vector = state_vector(model)[1]
    W = np.empty((clients, len(vector)), dtype=np.float32)
    for row in W:  # one by one: the noise of all of them at once would be as large as W, in float64
        row[:] = vector * generator.uniform(0.9, 1.1, len(vector))
    x = generator.normal(size=(batch, *shape)).astype(np.float32)
    public, indices = PublicSamples(batch, lambda chosen: x[chosen]), np.arange(batch)
    ways = {batched: Inference(model, public, batched) for batched in (True, False)}
    outputs = {batched: way(W, indices) for batched, way in ways.items()}  # and the first call warms up
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(repeats):
        for batched, way in ways.items():
            started = time.perf_counter()
            way(W, indices)  # returns the outputs in the CPU's memory, so that a GPU has finished
            times[batched].append(time.perf_counter() - started)
    assert ways[True].batched, "vmap cannot take this model"
    difference = float(np.abs(outputs[True] - outputs[False]).max())
    return {batched: min(found) for batched, found in times.items()}, difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn-dcpfl", "cnn-fedtsdp"])
    parser.add_argument("--batch", type=int, default=64, help="B, public samples")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU; all cores by default")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"{device}; {options.batch} samples")
    print(f"{'model':12} {'m':>4} {'loop s':>9} {'batched s':>10} {'loop / batched':>15} {'difference':>11}")
    for name in options.models:
        for clients in options.clients:
            found, difference = measure(name, clients, options.batch, options.repeats)
            times = f"{found[False]:9.4f} {found[True]:10.4f} {found[False] / found[True]:15.2f}"
            print(f"{name:12} {clients:4} {times} {difference:11.1e}", flush=True)


if __name__ == "__main__":
    main()
