"""The other end of ``against_others.py``: another project's own code, run in this process, with nothing of Bouquet's.

    python benchmarks/inside_others.py pfllib JOB.json
    python benchmarks/inside_others.py ifca JOB.json

``JOB.json`` says where the clone is, which data and initial weights to take, and where the result goes. Their files
stay as they are. What is changed from outside is below: what gives both ends the same model, data and seed.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

RESULTS: dict[str, dict[str, Any]] = {}  # what PFLlib would write to HDF5: file → name → values


class Mlp(nn.Module):
    """Bouquet's ``mlp`` with one hidden layer, with the layers' names that PFLlib splits a model by.

    It takes the place of their ``DNN``, which ends in ``log_softmax``: FedAvg and FedPer cut the last layer off, and
    with it their ``log_softmax`` would be between the two layers, which makes another model of it than Ditto has.
    """

    weights: Path

    def __init__(self, inputs: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        with np.load(self.weights) as initial:
            first, bias, second, other = (torch.as_tensor(initial[f"model-0/{i}"]) for i in range(4))
        self.fc1, self.fc = nn.Linear(inputs, len(first)), nn.Linear(len(first), num_classes)
        self.load_state_dict({"fc1.weight": first, "fc1.bias": bias, "fc.weight": second, "fc.bias": other})

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fc(torch.relu(self.fc1(torch.flatten(x, 1))))
        return outputs


class ResultFile:
    """Of ``h5py.File`` what PFLlib uses, in memory."""

    def __init__(self, path: str, mode: str) -> None:
        self.values = RESULTS.setdefault(Path(path).name, {})

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_dataset(self, name: str, data: Any) -> None:
        self.values[name] = list(data)

    def get(self, name: str) -> Any:
        return self.values[name]


def replace_modules() -> None:
    """Empty modules for what both projects import and do not use here."""
    for name in ("torchvision", "torchvision.datasets", "torchvision.models", "torchvision.transforms", "cvxpy"):
        sys.modules[name] = MagicMock(__path__=[])
    for name, members in {"h5py": {"File": ResultFile}, "calmsize": {"size": float}}.items():
        sys.modules[name] = module = ModuleType(name)
        vars(module).update(members)


def pfllib(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Their ``main.py`` with their own arguments, once for each of the ``runs``; accuracies by tested round."""
    system = Path(job["clone"]) / "system"
    sys.path.insert(0, str(system))
    os.chdir(job["folder"])  # they look for ../dataset
    from flcore.clients.clientperavg import clientPerAvg
    from flcore.trainmodel import models

    Mlp.weights = Path(job["initial"])
    models.DNN = Mlp
    Mlp.__module__, Mlp.__qualname__ = models.__name__, "DNN"  # they save the model, and it is looked up by name
    # They seed 0 in main.py and again for each client, so that all repetitions draw the same mini-batches.
    seed = torch.manual_seed
    torch.manual_seed = lambda _: seed(job["seed"])  # type: ignore[assignment]
    step = clientPerAvg.train_one_step
    found = []
    for run in job["runs"]:
        clientPerAvg.train_one_step = functools.partialmethod(_on_all_data, step) if run["adapt_on_all"] else step
        sys.argv = ["main.py", *run["arguments"]]
        runpy.run_path(str(system / "main.py"), run_name="__main__")
        _, values = RESULTS.popitem()
        # Ditto's list holds the global model's accuracy and the personal models' in turn.
        found.append({"accuracies": values["rs_test_acc"][run["offset"] :: run["every"]]})
    return found


def _on_all_data(client: Any, step: Any) -> None:
    """Per-FedAvg's step before a test on all training data, in place of one mini-batch."""
    size, client.batch_size = client.batch_size, client.train_samples
    step(client)
    client.batch_size = size


def ifca(job: dict[str, Any]) -> dict[str, Any]:
    """The authors' ``TrainMNISTCluster``, given the devices' samples; accuracies and clusters after the last round."""
    sys.path.insert(0, str(Path(job["clone"]) / "mnist"))
    os.chdir(job["folder"])
    import train_cluster_mnist

    with np.load(job["data"]) as arrays:
        data = {name: torch.as_tensor(arrays[name]) for name in arrays.files}
    with np.load(job["initial"]) as initial:
        models = [[torch.as_tensor(initial[f"model-{k}/{i}"]) for i in range(4)] for k in range(job["config"]["p"])]

    class Given(train_cluster_mnist.TrainMNISTCluster):  # type: ignore[misc]
        """Their training, clustering and test, on samples and initial weights that are given."""

        def setup_datasets(self) -> None:
            self.dataset = {part: {"cluster_assign": data["groups"].tolist()} for part in ("train", "test")}

        def load_data(self, m_i: int, train: bool = True) -> tuple[Tensor, Tensor]:
            part = "train" if train else "test"
            return data[f"{part}-x/{m_i}"], data[f"{part}-y/{m_i}"]

        def setup_models(self) -> None:
            super().setup_models()
            for model, tensors in zip(self.models, models, strict=True):
                model.load_state_dict(dict(zip(model.state_dict(), tensors, strict=True)))

        def print_epoch_stats(self, res: dict[str, Any]) -> None:
            super().print_epoch_stats(res)
            if not res["is_train"]:
                return
            # Bouquet's devices test the model that has the least loss on their training data, theirs on the test data.
            found = [
                self.n_correct(self.models[k](x), y) / len(y)
                for m_i, k in enumerate(res["cluster_assign"])
                for x, y in [self.load_data(m_i, train=False)]
            ]
            seen.append({"accuracy": float(np.mean(found)), "clusters": [int(k) for k in res["cluster_assign"]]})

    seen: list[dict[str, Any]] = []
    experiment = Given(job["config"])
    experiment.setup()
    experiment.run()
    by_test_loss = float(experiment.test(train=False)["acc"])
    return {"accuracies": [s["accuracy"] for s in seen], "clusters": seen[-1]["clusters"], "by_test_loss": by_test_loss}


def main() -> None:
    project, file = sys.argv[1:]
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    replace_modules()
    result = {"pfllib": pfllib, "ifca": ifca}[project](job)
    Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
