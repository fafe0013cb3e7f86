"""Outputs of many client models on the public samples: together, one by one, and as each would give by itself."""

import numpy as np
import pytest
import torch
from torch import nn

from bouquet.common.model.architectures import build_model
from bouquet.common.model.build import state_vector
from bouquet.common.settings import load_settings
from bouquet.server.public_data.inference import OUTPUTS_AT_ONCE, Inference, public_data
from bouquet.server.public_data.samples import PublicSamples

SHAPE = (1, 8, 8)


def samples(count=40, shape=SHAPE):
    x = np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)
    return PublicSamples(count, lambda indices: x[indices])


def with_norm():
    """Convolution, BatchNorm with buffers that count, and dropout that would be random in training."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.9), nn.Flatten(), nn.Linear(108, 4)
    return nn.Sequential(*layers)


def clients(model, count):
    """Models (count, d) around one; counters are large."""
    layout, vector = state_vector(model)
    generator = np.random.default_rng(1)
    W = vector * generator.uniform(0.5, 1.5, (count, layout.dim))
    for spec in layout.tensors:
        if spec.kind == "counter":
            W[:, spec.columns] = [[10_000, *[0] * (spec.width - 1)]]
    return W.astype(np.float32)


def alone(model, W, inputs):
    """What each model says when it is loaded and run by itself, in evaluation mode."""
    layout, _ = state_vector(model)
    found = []
    for row in W:
        model.load_state_dict({name: torch.as_tensor(a) for name, a in layout.unflatten(row).items()})
        with torch.no_grad():
            found.append(model.eval()(torch.as_tensor(inputs)).softmax(dim=1).numpy())
    return np.stack(found)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "build", [with_norm, lambda: build_model("mlp", SHAPE, 4, 0), lambda: build_model("cnn-fedtsdp", SHAPE, 4, 0)]
)
def test_every_model_says_what_it_says_alone(build, batched):
    public, indices = samples(), np.array([3, 5, 5, 38])
    W = clients(build(), 7)
    inference = Inference(build(), public, batched=batched, device="cpu")
    found = inference(W, indices)
    assert inference.batched is batched
    assert found.shape == (7, 4, 4)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, alone(build(), W, public.take(indices)), atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_allclose(found.sum(axis=2), 1, atol=1e-5)


def test_resnet_runs_together():
    model = build_model("resnet18", (3, 8, 8), 3, 0)
    W = clients(model, 2)
    inference = Inference(model, samples(4, (3, 8, 8)), batched=True, device="cpu")
    together = inference(W, np.arange(4))
    assert inference.batched
    inference.batched = False
    np.testing.assert_allclose(together, inference(W, np.arange(4)), atol=1e-5)


@pytest.mark.parametrize("count", [3, OUTPUTS_AT_ONCE + 5])
def test_many_models_and_many_samples_go_in_parts(count):
    model = build_model("mlp", (1, 2, 2), 3, 0)
    public = samples(count, (1, 2, 2))
    W = clients(model, OUTPUTS_AT_ONCE // 3 + 2)[:: 1 if count == 3 else 200]
    found = [Inference(model, public, batched=b, device="cpu")(W, np.arange(count)) for b in (True, False)]
    assert found[0].shape == (len(W), count, 3)
    np.testing.assert_allclose(*found, atol=1e-6)


class Branching(nn.Module):
    """Its path depends on its values, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 3)

    def forward(self, x):
        logits = self.fc(x.flatten(1))
        return logits if logits.sum() > 0 else 2 * logits


def test_a_model_that_vmap_cannot_take_runs_one_by_one():
    W = clients(Branching(), 3)
    inference = Inference(Branching(), samples(), batched=True, device="cpu")
    found = inference(W, np.arange(5))
    assert not inference.batched
    np.testing.assert_allclose(found, alone(Branching(), W, samples().take(np.arange(5))), atol=1e-6)


def test_a_model_that_has_diverged_says_nothing():
    model = build_model("mlp", SHAPE, 4, 0)
    W = np.stack([state_vector(model)[1], np.full_like(state_vector(model)[1], 3e38)])
    found = Inference(model, samples(), device="cpu")(W, np.arange(3))
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1]).all()


def test_the_settings_model_on_held_out_digits():
    settings = load_settings(None, ["data.public_fraction=0.1", "strategy.name=fedtsdp"])
    public = public_data(settings)
    assert public.size == 180
    W = np.stack([state_vector(build_model("mlp", SHAPE, 10, seed))[1] for seed in (0, 1)])
    assert public.predict(W, np.arange(6)).shape == (2, 6, 10)
