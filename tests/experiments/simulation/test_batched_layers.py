import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bouquet.experiments.simulation.batched_layers import Layers, Product, Whole


def plain():
    return nn.Sequential(
        nn.Flatten(), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3)
    )


def by_itself(model, x, y, shares):
    """What PyTorch makes of one model."""
    loss = (F.cross_entropy(model(x), y, reduction="none") * shares).sum()
    names = [name for name, _ in model.named_parameters()]
    return loss, dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def halved(_module, inputs):
    return (inputs[0].float() / 2,)


@pytest.mark.parametrize("hook", [None, halved])
def test_loss_and_gradients_are_those_of_each_model_by_itself(hook):
    torch.manual_seed(0)
    models = [plain() for _ in range(3)]
    for model in models:
        if hook:
            model.register_forward_pre_hook(hook)
    x, y = torch.randn(3, 7, 2, 3), torch.randint(3, (3, 7))
    shares = torch.rand(3, 7)
    shares[1, 4:] = 0  # a smaller mini-batch
    parameters = {name: torch.stack([dict(m.named_parameters())[name].detach() for m in models]) for name, _ in
                  models[0].named_parameters()}  # fmt: skip
    loss, found = Layers.of(models[0]).step(parameters, x, y, shares)
    for row, model in enumerate(models):
        own_loss, own = by_itself(model, x[row], y[row], shares[row])
        assert loss[row].item() == pytest.approx(own_loss.item(), abs=1e-6)
        assert found.keys() == own.keys()
        for name, gradient in own.items():
            torch.testing.assert_close(found[name].whole()[row], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Tanh()),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
        nn.Sequential(nn.Flatten()),
        nn.Linear(6, 3),
    ],
)
def test_other_models_are_left_to_automatic_differentiation(model):
    assert Layers.of(model) is None


def test_a_layer_with_a_hook_of_its_own_is_left_to_automatic_differentiation():
    model = plain()
    model[2].register_forward_hook(lambda *_: None)
    assert Layers.of(model) is None


@pytest.mark.parametrize("shares", [None, torch.tensor([0.5, 2.0])])
@pytest.mark.parametrize(("keep", "by"), [(0.9, 1.0), (1.0, -0.1), (0.8, -0.1)])
def test_a_product_is_added_and_measured_like_what_it_stands_for(keep, by, shares):
    torch.manual_seed(0)
    product = Product(torch.randn(2, 5, 4), torch.randn(2, 5, 3))
    whole, target = Whole(product.whole()), torch.randn(2, 4, 3)
    torch.testing.assert_close(product.squares(), whole.squares())
    factors = torch.ones(2) if shares is None else shares
    expected = keep * target + by * factors[:, None, None] * whole.values
    for gradient in (product, whole):
        changed = target.clone()
        gradient.add_to(changed, keep, by, shares)
        torch.testing.assert_close(changed, expected)
