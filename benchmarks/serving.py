"""What it costs to serve a mixture: size of the exported file, and milliseconds a sample, beside a single model's.

The models are as they are drawn; what they have learned changes neither figure. One thread, one sample a call, its
CPU time, the least of all calls. Two steps, so that the second one can be run on another machine, which needs no
Bouquet: NumPy, and onnxruntime for .onnx or PyTorch for .pt. From the repository's root:

    python -m benchmarks.serving export FOLDER --models mlp cnn-dcpfl resnet18
    python -m benchmarks.serving run FOLDER
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SHAPES = {"mlp": (1, 28, 28)}
COLOUR = (3, 32, 32)


def export_all(folder: Path, models: list[str], mixed: list[int]) -> None:
    """Write each model, and mixtures of so many of it, as both kinds of file, and a list of them."""
    from bouquet.common.model.card import ModelCard
    from bouquet.common.settings import load_settings
    from bouquet.common.task.task import make_task
    from bouquet.models.export import export
    from bouquet.models.kept import KeptModel, Mixture

    folder.mkdir(parents=True, exist_ok=True)
    shapes = {}
    for name in models:
        shape = SHAPES.get(name, COLOUR)
        classes = [str(k) for k in range(10)]
        changes = [f"model.name={name}", "data.dataset=own", f"data.input_shape={list(shape)}"]
        card = ModelCard.of(load_settings(None, [*changes, f"data.classes={json.dumps(classes)}"]))
        for count in mixed:
            built = [card.build() for _ in range(count)]
            model = built[0] if count == 1 else Mixture(built, make_task(card.task))
            kept = KeptModel(model.eval().requires_grad_(False), card, "drawn")
            for suffix in (".onnx", ".pt"):
                file = folder / f"{name.replace(':', '-')}-{count}{suffix}"
                export(kept, file)
                shapes[file.name] = shape
    (folder / "shapes.json").write_text(json.dumps(shapes))


def runner(file: Path) -> Callable[[np.ndarray], object]:
    """What runs a file once."""
    if file.suffix == ".onnx":
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})
    import torch

    torch.set_num_threads(1)
    model = torch.jit.load(str(file)).eval()

    def call(x: np.ndarray) -> object:
        with torch.inference_mode():
            return model(torch.as_tensor(x))

    return call


def run_all(folder: Path, repeats: int) -> None:
    """Print size and milliseconds of each file for which the runtime is there."""
    there = {".onnx": importlib.util.find_spec("onnxruntime"), ".pt": importlib.util.find_spec("torch")}
    print(f"{platform.machine()}, one thread, CPU time, the least of {repeats} calls of one sample")
    print(f"{'file':24} {'kB':>9} {'ms':>9}")
    for name, shape in json.loads((folder / "shapes.json").read_text()).items():
        file = folder / name
        if there[file.suffix] is None:
            continue
        call, x = runner(file), np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32)
        times = []
        for _ in range(repeats + 10):  # the first ones warm up
            started = time.process_time()
            call(x)
            times.append(time.process_time() - started)
        print(f"{name:24} {file.stat().st_size / 1000:9.1f} {1000 * min(times[10:]):9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn-dcpfl", "resnet18"])
    parser.add_argument("--mixed", type=int, nargs="+", default=[1, 3, 4], help="models in a file")
    parser.add_argument("--repeats", type=int, default=300)
    options = parser.parse_args()
    if options.what == "export":
        export_all(options.folder, options.models, options.mixed)
    else:
        run_all(options.folder, options.repeats)


if __name__ == "__main__":
    main()
