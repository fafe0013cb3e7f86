"""What client models say of the server's public samples: the heavy step of methods that compare models by outputs.

Models that are rows of one matrix can run as one: `torch.vmap` over `torch.func.functional_call` turns m products of a
layer into one batched product, and m passes of many small steps into one of larger steps, which a GPU and several cores
need to be busy. On a CPU, convolutions of many models become a grouped convolution, which is as fast as one model after
another while its outputs fit into the cache, and half as fast when they do not: hence few such models at a time.
``benchmarks/server_inference.py`` measures it.
"""

from __future__ import annotations

from logging import INFO

import numpy as np
import torch
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model.freezing import load_trained
from bouquet.common.settings import Settings
from bouquet.server.public_data.samples import PublicSamples, load_public_samples
from bouquet.strategies.base.replies import Matrix, PublicData

# Models times samples that go through a layer together; fewer for convolutions on a CPU.
OUTPUTS_AT_ONCE = 2048
CONVOLVED_AT_ONCE = 256


def public_data(settings: Settings, model: nn.Module | None = None) -> PublicData:
    """The public samples that the settings name, and the outputs of the settings' model on them.

    ``model`` is that model, where it has frozen layers that the seed does not give. On a GPU where there is one. Raises
    `BouquetError` where there are no such samples, or they do not fit the model.
    """
    samples = load_public_samples(settings)
    return PublicData(samples.size, Inference(model or initial_model(settings), samples))


class Inference:
    """Softmax outputs of many models of one architecture, in evaluation mode.

    ``batched`` runs models together. Models that `torch.vmap` cannot take, such as those whose path depends on their
    values, run one after another all the same.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: PublicSamples,
        batched: bool = True,
        device: str | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.layout, _ = state_vector(model)
        self.model = model.to(self.device).eval()
        self.samples = samples
        self.batched = batched
        convolves = any(isinstance(module, _ConvNd) for module in model.modules())
        self.at_once = CONVOLVED_AT_ONCE if convolves and self.device.type == "cpu" else OUTPUTS_AT_ONCE

    def __call__(self, W: Matrix, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Outputs (m, B, classes) of the models W (m, d) on the samples with these indices (B,); rows sum to one."""
        inputs = torch.as_tensor(self.samples.take(indices)).to(self.device)
        if self.batched:
            try:
                return self._together(W, inputs)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                reason = str(error).strip().partition("\n")[0]
                log(INFO, "inference runs one model after another, because vmap cannot take this one: %s", reason)
                self.batched = False
        return self._one_by_one(W, inputs)

    def _together(self, W: Matrix, inputs: Tensor) -> NDArray[np.float32]:
        def outputs(parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
            return torch.func.functional_call(self.model, parameters, (batch,)).softmax(dim=-1)

        every = torch.vmap(outputs, in_dims=(0, None))
        batches = inputs.split(self.at_once)
        models = max(1, self.at_once // len(batches[0]))
        parts = []
        with torch.no_grad():
            for rows in np.split(W, range(models, len(W), models)):
                parameters = self._parameters(rows)
                parts.append(torch.cat([every(parameters, batch) for batch in batches], dim=1).float().cpu())
        result: NDArray[np.float32] = torch.cat(parts).numpy()
        return result

    def _one_by_one(self, W: Matrix, inputs: Tensor) -> NDArray[np.float32]:
        outputs = []
        with torch.no_grad():
            for row in W:
                tensors = self._parameters(row[None, :])
                load_trained(self.model, {name: tensor[0] for name, tensor in tensors.items()})
                logits = torch.cat([self.model(batch) for batch in inputs.split(self.at_once)])
                outputs.append(logits.softmax(dim=-1).float().cpu())
        result: NDArray[np.float32] = torch.stack(outputs).numpy()
        return result

    def _parameters(self, rows: Matrix) -> dict[str, Tensor]:
        """Parameters and buffers of some models, each stacked along a first dimension, in their own dtypes."""
        matrix = torch.as_tensor(rows).to(self.device)
        stacked = {}
        for spec in self.layout.tensors:
            if spec.kind == "counter":
                stacked[spec.name] = torch.as_tensor(spec.decode(rows[:, spec.columns])).to(self.device)
            else:
                tensor = matrix[:, spec.columns].reshape(len(rows), *spec.shape)
                stacked[spec.name] = tensor.to(getattr(torch, spec.dtype))
        return stacked
