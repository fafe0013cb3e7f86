"""Mixed precision. No GPU is here: autocast is tried on the CPU, and what CUDA would say is faked."""

import pytest
import torch
from torch import nn

from bouquet.client.training import sgd
from bouquet.client.training.precision import FULL, GROWS_AFTER, SCALE, LossScale, Precision
from bouquet.client.training.sgd import SGDOptions
from bouquet.common.errors import BouquetError

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(("has", "reduced"), [(True, torch.bfloat16), (False, torch.float16)])
def test_bfloat16_where_the_gpu_has_it_else_float16_with_scaled_gradients(monkeypatch, has, reduced):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **more: asked.append(more) or has)
    found = Precision.of(True, CUDA)
    assert asked == [{"including_emulation": False}]  # emulated, it is slower than 32 bits
    assert (found.reduced, found.device) == (reduced, "cuda")
    assert (found.scaling() is not None) is (reduced is torch.float16)
    assert found.note == f"Mixed precision: local training computes in {str(reduced)[6:]}."


class Watched(nn.Module):
    """A small model that notes in what its layers compute and what its weights are."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        self.seen = set()

    def forward(self, x):
        outputs = self.net(x)
        self.seen.add(outputs.dtype)
        return outputs


def trained(precision, **changes):
    torch.manual_seed(0)
    model, x = Watched(), torch.rand(48, 1, 8, 8)
    y = (x.mean(dim=(1, 2, 3)) * 60).long() % 3
    options = SGDOptions(**{"local_epochs": 3, "batch_size": 16, "learning_rate": 0.05, "momentum": 0.9, **changes})
    loss = sgd.train(model, x, y, options, (), torch.Generator().manual_seed(1), precision=precision)
    return model, loss


def test_switched_off_training_is_the_same_to_the_last_digit():
    (plain, loss), (found, same) = (trained(precision) for precision in (FULL, Precision.of(True, CPU)))
    assert loss == same
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), found.parameters(), strict=True))
    assert found.seen == {torch.float32}


@pytest.mark.parametrize("reduced", [torch.bfloat16, torch.float16])
def test_the_forward_pass_is_in_16_bits_and_the_model_stays_in_32(reduced):
    plain, loss = trained(FULL)
    found, close = trained(Precision(reduced, "cpu"))
    assert found.seen == {reduced}
    assert {tensor.dtype for tensor in found.state_dict().values() if tensor.is_floating_point()} == {torch.float32}
    assert {p.grad.dtype for p in found.parameters()} == {torch.float32}
    assert close == pytest.approx(loss, rel=0.02)
    assert close != loss
    for a, b in zip(plain.parameters(), found.parameters(), strict=True):
        assert torch.allclose(a, b, atol=0.02)


def test_gradients_too_small_for_float16_are_kept():
    weight = nn.Parameter(torch.ones(1))
    total = (weight.half() * 1e-4).float().sum() * 1e-4  # 1e-8: zero in float16
    assert LossScale().backward(total, [weight])
    assert weight.grad.item() == pytest.approx(1e-8, rel=0.01)


def test_gradients_that_overflow_halve_the_scale_and_many_good_ones_double_it():
    weight = nn.Parameter(torch.ones(1))
    scaling = LossScale()

    def step(slope):
        weight.grad = None
        return scaling.backward((weight.half() * slope).float().sum(), [weight])

    assert not step(100.0)  # 100 · 1024 is over 65504
    assert scaling.scale == SCALE / 2
    assert step(100.0)
    assert weight.grad.item() == 100.0
    for _ in range(GROWS_AFTER - 1):
        assert step(1.0)
    assert scaling.scale == SCALE


def test_gradients_that_are_no_numbers_at_any_scale_end_the_training():
    weight, scaling = nn.Parameter(torch.ones(1)), LossScale()
    with pytest.raises(BouquetError, match=r"diverged .* train\.mixed_precision = false"):
        list(iter(lambda: scaling.backward((weight * float("nan")).sum(), [weight]), None))
