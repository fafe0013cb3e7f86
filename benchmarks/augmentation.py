"""What augmentation costs: one mini-batch of photos, beside a step of training on it.

    python benchmarks/augmentation.py [--batch 16] [--model torchvision:mobilenet_v3_small]

One thread; the median of several mini-batches, in milliseconds for a photo.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from bouquet.client.training import sgd
from bouquet.client.training.transforms import augmentation, standardising
from bouquet.common.model.architectures import build_model
from bouquet.common.model.card import ModelCard
from bouquet.common.settings.sections import ModelSettings

KINDS = (("crop",), ("flip",), ("color",), ("crop", "flip", "color"))


def milliseconds(work: Callable[[], object], batch: int, times: int = 7) -> float:
    work()
    found = []
    for _ in range(times):
        clock = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - clock) / batch)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default="torchvision:mobilenet_v3_small")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| pixels | " + " | ".join("+".join(kind) for kind in KINDS) + " | a step without |")
    for side in (32, 224):
        print(row(side, arguments.batch, arguments.model), flush=True)


def row(side: int, batch: int, name: str) -> str:
    shape = (3, side, side)
    card = ModelCard(model=ModelSettings(name=name), input_shape=shape, classes=("a", "b"), mean=(0.5,), std=(0.5,))
    x = torch.randint(0, 256, (batch, *shape), dtype=torch.uint8)
    y = torch.arange(batch) % 2
    model = build_model(name, shape, 2, 0)
    model.register_forward_pre_hook(standardising(card), prepend=True)
    options = sgd.SGDOptions(1, batch, 0.01, 0.9)
    costs = []
    for kind in KINDS:
        augment = augmentation(kind, card, x, raw_floats=True)
        assert augment is not None
        costs.append(milliseconds(partial(augment, x), batch))
    generator = torch.Generator().manual_seed(0)
    costs.append(milliseconds(partial(sgd.train, model, x, y, options, [], generator), batch))
    return f"| {side} × {side} | " + " | ".join(f"{cost:.2f} ms" for cost in costs) + " |"


if __name__ == "__main__":
    main()
