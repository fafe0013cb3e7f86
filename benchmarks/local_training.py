"""Local SGD as a device does it, beside the bare PyTorch loop on the same cores: seconds a step.

    python benchmarks/local_training.py --threads 1 2 --models cnn-dcpfl torchvision:mobilenet_v3_small

Both train the same model on the same mini-batches of random images: `bouquet.client.training.sgd.train`, on a model
laid out as a device's, and the loop of PyTorch's tutorial, with `torch.optim.SGD`, once in PyTorch's own layout and
once in channels-last, of which the one with the lower median counts. They take turns, in another order each time; shown
are the medians, and the median of what ours took by what the loop took in the same turn, with the load; also of the CPU
time, which others on the machine lengthen less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from bouquet.client.training import sgd
from bouquet.client.training.sgd import SGDOptions
from bouquet.common.model.build import initial_model
from bouquet.common.settings import load_settings

SIDES = {"cnn-dcpfl": (3, 32, 32)}
PHOTO = (3, 224, 224)
BATCH, RATE, MOMENTUM, CLIP = 16, 0.01, 0.9, 2.0


def built(name: str, channels_last: bool) -> nn.Module:
    shape = SIDES.get(name, PHOTO)
    changes = [f"model.name={name}", "data.dataset=own", f"data.input_shape={list(shape)}"]
    model = initial_model(
        load_settings(None, [*changes, f"data.classes={[f'c{k}' for k in range(10)]}".replace("'", '"')])
    )
    return nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last) if channels_last else model


def bare(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    model.train()
    for batch in torch.randperm(len(y)).split(BATCH):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", default=["cnn-dcpfl", "torchvision:mobilenet_v3_small"])
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 2], help="in a turn, of each model")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    made = SGDOptions(local_epochs=1, batch_size=BATCH, learning_rate=RATE, momentum=MOMENTUM, max_gradient_norm=CLIP)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, mini-batches of {BATCH}\n")
    print("| model | threads | ours, ms a step | bare loop | × | × of CPU time | load |\n" + "| --- " * 7 + "|")
    for name, steps in zip(options.models, options.steps, strict=True):
        x = torch.rand(steps * BATCH, *SIDES.get(name, PHOTO))
        y = torch.arange(len(x)) % 10
        ours, plain, last = built(name, True), built(name, False), built(name, True)
        generator = torch.Generator().manual_seed(0)
        turns: dict[str, Callable[[], object]] = {
            "ours": lambda: sgd.train(ours, x, y, made, (), generator),  # noqa: B023
            "plain": lambda: bare(plain, x, y),  # noqa: B023
            "channels-last": lambda: bare(last, x, y),  # noqa: B023
        }
        for threads in options.threads:
            torch.set_num_threads(threads)
            seconds: dict[str, list[float]] = {kind: [] for kind in turns}
            used: dict[str, list[float]] = {kind: [] for kind in turns}
            for turn in range(options.turns + 1):
                order = list(turns.items())
                for kind, train in order[turn % len(order) :] + order[: turn % len(order)]:
                    clock, before = time.perf_counter(), time.process_time()
                    train()
                    if turn:  # the first one pays for what PyTorch sets up
                        seconds[kind].append((time.perf_counter() - clock) / steps * 1000)
                        used[kind].append(time.process_time() - before)
            median = {kind: statistics.median(values) for kind, values in seconds.items()}
            best = min(("plain", "channels-last"), key=lambda kind: median[kind])
            by_turn = [
                statistics.median([mine / its for mine, its in zip(took["ours"], took[best], strict=True)])
                for took in (seconds, used)
            ]
            row = [name, str(threads), f"{median['ours']:.2f}", f"{median[best]:.2f}, {best}"]
            row += [*(f"{times:.3f}" for times in by_turn), f"{os.getloadavg()[0]:.1f}"]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
