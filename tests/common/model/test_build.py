"""A model's layout at both ends: which tensors are parameters, and which cannot be sent."""

import numpy as np
import pytest
import torch
from torch import nn

from bouquet.common.model.build import initial_model, parameter_names, state_vector
from bouquet.common.parameters.layout import LayoutError
from bouquet.common.settings import load_settings

SETTINGS = ["data.dataset=own", 'data.classes=["a","b"]', "data.input_shape=[1,2,2]"]


class Odd(nn.Module):
    """Frozen and shared parameters, and a buffer that no name gives away."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.ones(4))
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.norm(self.second(self.first(x.flatten(1)))) * self.scale)


def test_frozen_and_shared_parameters_are_parameters_and_any_buffer_is_none():
    layout, _ = state_vector(Odd())
    kinds = {spec.name: spec.kind for spec in layout.tensors}
    assert {name for name, kind in kinds.items() if kind == "parameter"} == {
        f"{layer}.{which}" for layer in ("first", "second", "norm", "last") for which in ("weight", "bias")
    }
    assert {name for name, kind in kinds.items() if kind == "buffer"} == {
        "scale",
        "norm.running_mean",
        "norm.running_var",
    }
    assert kinds["norm.num_batches_tracked"] == "counter"
    assert parameter_names(Odd()) == {name for name, kind in kinds.items() if kind == "parameter"}


class Refused(Odd):
    def __init__(self, what):
        super().__init__()
        self.register_buffer("odd", what)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (torch.zeros(1, dtype=torch.bfloat16), "'odd' of the model holds bfloat16"),
        (torch.zeros(1, dtype=torch.complex64), "'odd' holds complex64"),
        (torch.zeros(1, dtype=torch.float8_e4m3fn), "'odd' of the model holds float8_e4m3fn"),
        (torch.eye(2).to_sparse(), "'odd' of the model holds"),
    ],
)
def test_what_cannot_be_sent_is_named_when_the_model_is_built(what, message, monkeypatch):
    with pytest.raises(LayoutError, match=message + ".*, not numbers that can be sent"):
        state_vector(Refused(what))
    monkeypatch.setattr("bouquet.common.model.architectures.build_model", lambda *_, **__: Refused(what))
    with pytest.raises(LayoutError, match=message):
        initial_model(load_settings(None, SETTINGS))


class Remembering(Odd):
    def get_extra_state(self):
        return {"since": 1}

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_no_tensor_is_named():
    with pytest.raises(LayoutError, match="Tensor '_extra_state' of the model holds a dict, not numbers"):
        state_vector(Remembering())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_half_and_double_precision_work(dtype):
    model = Odd().to(dtype)
    layout, vector = state_vector(model)
    assert vector.dtype == np.float32
    back = layout.unflatten(vector)
    model.load_state_dict({name: torch.as_tensor(array) for name, array in back.items()})
    assert {tensor.dtype for name, tensor in model.state_dict().items() if "num" not in name} == {dtype}
    assert np.array_equal(state_vector(model)[1], vector)
