"""Samples on their way into the model: bytes, augmentation, weights of classes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bouquet.client.training.sgd import TrainingLoss
from bouquet.client.training.transforms import augmentation, class_weights, standardising
from bouquet.common.errors import BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.settings.sections import ModelSettings

CARD = ModelCard(
    model=ModelSettings(), input_shape=(3, 4, 4), classes=("a", "b"), mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 0.1)
)


def images(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_weights_of_classes_by_hand():
    """Six, two and none of three classes: 8 / (2 · 6), 8 / (2 · 2), and no weight for what is not there."""
    weights = class_weights(np.array([0, 0, 0, 2, 0, 2, 0, 0]), 3)
    np.testing.assert_allclose(weights, [8 / 12, 0, 8 / 4])
    assert class_weights(np.array([1, 1]), 3).tolist() == [0, 1, 0]


def test_the_weighted_loss_by_hand_whatever_the_mini_batches():
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [1.0]]))
    x, y = torch.tensor([[0.0], [1.0], [2.0], [-1.0]]), torch.tensor([0, 0, 0, 1])
    loss_of = TrainingLoss(torch.as_tensor(class_weights(y.numpy(), 2)))
    assert loss_of.class_weights.tolist() == pytest.approx([2 / 3, 2])
    losses = torch.log1p(torch.exp(torch.tensor([0.0, 1.0, 2.0, 1.0])))  # ln(1 + e^z) of the wrong class's margin
    expected = float((2 / 3 * losses[:3].sum() + 2 * losses[3]) / 4)
    assert loss_of(model, x, y).item() == pytest.approx(expected)
    singles = [loss_of(model, x[i : i + 1], y[i : i + 1]).item() for i in range(4)]
    assert np.mean(singles) == pytest.approx(expected)
    assert TrainingLoss()(model, x, y).item() == pytest.approx(F.cross_entropy(model(x), y).item())


def test_bytes_become_what_the_card_says_and_floats_stay():
    class Seen(nn.Module):
        def forward(self, x):
            self.x = x
            return x

    seen = Seen()
    seen.register_forward_pre_hook(standardising(CARD), prepend=True)
    x = images(5, 3, 4, 4)
    seen(x)
    assert seen.x.numpy().tobytes() == CARD.inputs(x.numpy()).tobytes()
    together = torch.vmap(lambda part: torch.func.functional_call(seen, {}, (part,)))(x[:, None])
    assert torch.equal(together[:, 0], seen(x))  # as simulated clients are trained
    floats = torch.rand(2, 3, 4, 4)
    assert seen(floats) is floats


def draw(augment, x, seed):
    torch.manual_seed(seed)
    return augment(x)


@pytest.mark.parametrize("names", [("crop",), ("flip",), ("color",), ("crop", "flip", "color")])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_the_same_seed_gives_the_same_images_and_each_image_its_own_change(names, as_bytes):
    one = images(1, 3, 16, 16)
    x = one.repeat(16, 1, 1, 1)
    if not as_bytes:
        x = torch.as_tensor(CARD.inputs(x.numpy()))
    augment = augmentation(names, CARD, x, raw_floats=False)
    first, again, other = (draw(augment, x, seed) for seed in (1, 1, 2))
    assert (first.shape, first.dtype) == (x.shape, x.dtype)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({bytes(image.numpy().tobytes()) for image in first}) >= 2
    limits = CARD.inputs(np.array([[[[0]], [[0]], [[0]]], [[[255]], [[255]], [[255]]]], dtype=np.uint8))
    low, high = (0, 255) if as_bytes else (limits[0] - 1e-5, limits[1] + 1e-5)
    assert ((first.numpy() >= low) & (first.numpy() <= high)).all()


def test_what_cannot_be_augmented():
    assert augmentation([], CARD, torch.zeros(2, 9, 128), True) is None
    with pytest.raises(BouquetError, match=r"train\.augment = \['flip'\]: samples of shape \(9, 128\) are no images"):
        augmentation(["flip"], CARD, torch.zeros(2, 9, 128), False)
    with pytest.raises(BouquetError, match="'color' needs images as bytes"):
        augmentation(["flip", "color"], CARD, torch.zeros(2, 3, 4, 4), True)
    assert augmentation(["flip", "crop"], CARD, torch.zeros(2, 3, 4, 4), True) is not None
