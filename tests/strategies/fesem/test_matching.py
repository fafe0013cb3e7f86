"""Matched averaging: hand-computed pairings, invariance to the order of units, the function of the network kept."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.strategies.fesem.matching import hidden_layers, match_rows
from bouquet.strategies.mathematics.aggregation import weighted_mean

seeds = st.integers(0, 2**32 - 1)


def match_to_center(center: np.ndarray, row: np.ndarray, layout: ParameterLayout) -> np.ndarray:
    return match_rows(center, row[None], layout)[0]


def matched_mean(
    center: np.ndarray, rows: np.ndarray, layout: ParameterLayout, weights: list[float] | np.ndarray | None = None
) -> np.ndarray:
    """FeSEM-MA's M-step for one cluster, as `bouquet.strategies.fesem.strategy` takes it for all of them."""
    return weighted_mean(match_rows(center, rows, layout), weights)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def cnn() -> nn.Module:
    """Convolutions with batch normalisation, an average over time, a flatten with 3 × 2 positions per channel."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding=1),
        nn.PReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(3 * 3 * 2),
        nn.Linear(3 * 3 * 2, 5),
        nn.LayerNorm(5),
        nn.ReLU(),
        nn.Linear(5, 2),
    )


def har() -> nn.Module:
    """One-dimensional convolutions over time."""
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 8, 4), nn.Linear(4, 2)
    )


NETWORKS = {mlp: (5,), cnn: (2, 6, 4), har: (2, 12)}
Factory = Callable[[], nn.Module]
networks = pytest.mark.parametrize("network", NETWORKS)


def layout_of(network: Factory) -> ParameterLayout:
    return ParameterLayout.of({name: tensor.numpy() for name, tensor in network().state_dict().items()})


def random_models(layout: ParameterLayout, seed: int, count: int) -> np.ndarray:
    """Positive, because some of the tensors are variances; batch normalisation's counters are whole numbers."""
    models = np.random.default_rng(seed).uniform(0.1, 1, (count, layout.dim)).astype(np.float32)
    for spec in layout.tensors:
        if spec.kind == "counter":
            models[:, spec.columns] = [[7, *[0] * (spec.width - 1)]]
    return models


def with_permuted_units(layout: ParameterLayout, row: np.ndarray, seed: int) -> np.ndarray:
    """The model with the units of every hidden layer in another order, done by tensor shapes and nothing else."""
    random = np.random.default_rng(seed)
    tensors = {name: tensor.copy() for name, tensor in layout.unflatten(row).items()}
    weights = [name for name, tensor in tensors.items() if tensor.ndim > 1]
    names = list(tensors)
    for name, following in pairwise(weights):
        units, inputs = len(tensors[name]), tensors[following].shape[1]
        order = random.permutation(units)
        columns = np.arange(inputs).reshape(units, -1)[order].reshape(-1)
        for own in names[names.index(name) : names.index(following)]:
            if tensors[own].ndim and len(tensors[own]) == units:
                tensors[own] = tensors[own][order]
            elif tensors[own].ndim and len(tensors[own]) == inputs:
                tensors[own] = tensors[own][columns]
        tensors[following] = tensors[following][:, columns]
    return layout.flatten(tensors)


def outputs(network: Factory, layout: ParameterLayout, row: np.ndarray) -> np.ndarray:
    model = network().eval()
    model.load_state_dict({name: torch.as_tensor(tensor) for name, tensor in layout.unflatten(row).items()})
    samples = torch.from_numpy(np.random.default_rng(0).standard_normal((8, *NETWORKS[network]), dtype=np.float32))
    with torch.no_grad():
        return model(samples).numpy()


def test_a_pairing_by_hand() -> None:
    """Two hidden units swapped, one of them moved a little; the output's unit stays where it is."""
    layout = layout_of(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    center = np.array([1, 0, 0, 1, 10, 20, 3, 4, 5], dtype=np.float32)
    client = np.array([0, 1, 1, 0.5, 20, 10, 4, 3, 7], dtype=np.float32)
    assert match_to_center(center, client, layout).tolist() == [1, 0.5, 0, 1, 10, 20, 3, 4, 7]
    assert matched_mean(center, np.stack([center, client]), layout).tolist() == [1, 0.25, 0, 1, 10, 20, 3, 4, 6]
    assert matched_mean(center, np.stack([center, client]), layout, [1, 3])[1] == 0.375


@pytest.mark.parametrize("common", [0, 1024])
def test_a_tensor_counts_by_its_variance(common: int) -> None:
    """By its weights the first member keeps its order, by its biases it changes it. What another member spreads more
    has the larger variance, and counts less: weights spread by ±95 leave it to the biases, biases by ±9.5 do not.
    What all units' weights have in common does not count."""
    layout = layout_of(lambda: nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1, bias=False)))
    shift = np.array([common, common, 0, 0, 0, 0], dtype=np.float32)
    center = shift + np.array([0, 10, 0, 1, 0, 0], dtype=np.float32)
    crossed = shift + np.array([0, 10, 1, 0, 0, 0], dtype=np.float32)
    wide_weights = shift + np.array([-90, 100, 1, 0, 0, 0], dtype=np.float32)
    wide_biases = shift + np.array([0, 10, -9, 10, 0, 0], dtype=np.float32)
    by_bias = shift + np.array([10, 0, 0, 1, 0, 0], dtype=np.float32)
    assert match_rows(center, np.stack([crossed, wide_weights]), layout)[0].tolist() == by_bias.tolist()
    assert match_rows(center, np.stack([crossed, wide_biases]), layout)[0].tolist() == crossed.tolist()


def test_outgoing_weights_count_where_they_lead_to_the_output() -> None:
    """Two units alike but for their outgoing weights, in the last hidden layer."""
    layout = layout_of(lambda: nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2, bias=False)))
    center = np.array([1, 1, 0, 0, 5, -5, 6, -6], dtype=np.float32)
    client = np.array([1, 1, 0, 0, -5, 5, -6, 6], dtype=np.float32)
    assert match_to_center(center, client, layout).tolist() == center.tolist()


@networks
@settings(deadline=None, max_examples=25)
@given(seed=seeds)
def test_a_permuted_center_comes_back_exactly(network: Factory, seed: int) -> None:
    layout = layout_of(network)
    center = random_models(layout, seed, 1)[0]
    permuted = with_permuted_units(layout, center, seed)
    assert np.array_equal(match_to_center(center, permuted, layout), center)


@networks
@settings(deadline=None, max_examples=25)
@given(seed=seeds)
def test_the_order_of_a_members_units_does_not_matter(network: Factory, seed: int) -> None:
    layout = layout_of(network)
    center, *rows = random_models(layout, seed, 4)
    weights = [1, 2, 5]
    permuted = np.stack([with_permuted_units(layout, row, seed + i) for i, row in enumerate(rows)])
    assert np.array_equal(match_rows(center, permuted, layout), match_rows(center, np.stack(rows), layout))
    assert np.array_equal(
        matched_mean(center, permuted, layout, weights), matched_mean(center, np.stack(rows), layout, weights)
    )


@networks
@settings(deadline=None, max_examples=10)
@given(seed=seeds)
def test_the_network_computes_the_same(network: Factory, seed: int) -> None:
    layout = layout_of(network)
    center, row = random_models(layout, seed, 2)
    matched = match_to_center(center, row, layout)
    assert not np.array_equal(matched, row)
    assert np.allclose(outputs(network, layout, matched), outputs(network, layout, row), rtol=1e-4, atol=1e-4)


def test_rows_that_match_already_stay_and_the_callers_are_not_touched() -> None:
    layout = layout_of(cnn)
    center, other = random_models(layout, 1, 2)
    rows = np.stack([center, np.float32(0.999) * center, with_permuted_units(layout, other, 2)])
    before = rows.copy()
    assert np.array_equal(match_rows(center, rows, layout)[:2], rows[:2])
    assert np.array_equal(rows, before)


def test_the_chain_of_a_network() -> None:
    conv, second, linear = hidden_layers(layout_of(cnn))
    assert [layer.name for layer in (conv, second, linear)] == ["0", "3", "8"]
    # Weight; batch normalisation's weight and bias; its running mean and variance move with them.
    assert [view.shape for view in conv.own] == [(1, 4, 18), (1, 4, 1), (1, 4, 1)]
    assert [view.shape for view in conv.buffers] == [(1, 4, 1), (1, 4, 1)]
    assert conv.outgoing.shape == (3, 4, 9)
    # Weight and bias; the normalisation after the flatten has six values a channel.
    assert [view.shape for view in second.own] == [(1, 3, 36), (1, 3, 1)] + 2 * [(1, 3, 6)]
    assert [view.shape for view in second.buffers] == 2 * [(1, 3, 6)]
    assert second.outgoing.shape == (5, 3, 6)
    assert [view.shape for view in linear.own] == [(1, 5, 18), (1, 5, 1), (1, 5, 1), (1, 5, 1)]
    assert [layer.last for layer in (conv, second, linear)] == [False, False, True]


@pytest.mark.parametrize("order", [("bias", "weight"), ("weight", "bias")])
def test_a_bias_belongs_to_its_own_layer_in_either_order(order: tuple[str, str]) -> None:
    shapes = {"a.weight": (3, 2), "a.bias": (3,), "b.weight": (3, 3), "b.bias": (3,), "c.weight": (1, 3)}
    names = ["a." + order[0], "a." + order[1], "b." + order[0], "b." + order[1], "c.weight"]
    layout = ParameterLayout.of({name: np.zeros(shapes[name], dtype=np.float32) for name in names})
    offsets = {spec.name: spec.columns for spec in layout.tensors}
    assert [view.columns for view in hidden_layers(layout)[1].own] == [offsets["b.weight"], offsets["b.bias"]]


def test_a_model_without_hidden_layers_is_left_as_it_is() -> None:
    layout = layout_of(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    rows = random_models(layout, 0, 2)
    assert hidden_layers(layout) == ()
    assert np.array_equal(match_rows(rows[0], rows, layout), rows)


class Residual(nn.Module):
    """A skip connection with a projection, as in ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.downsample = nn.Conv2d(4, 8, 1)
        self.head = nn.Linear(8, 2)


@pytest.mark.parametrize(
    ("network", "layer", "reason"),
    [
        (Residual, "downsample", "takes 4 inputs, but 'conv2' has 8 units"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4, 2)),
            "1",
            "takes 1 inputs",
        ),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(8, 2)), "1", "takes 8 inputs, but '0' has 4 units"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4, 2)), "1", "group normalisation"),
        (lambda: nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 2)), "0", "two weights"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(5), nn.Linear(4, 2)), "1", "5 values for the 4 units"),
    ],
)
def test_what_is_no_plain_chain_is_refused(network: Factory, layer: str, reason: str) -> None:
    with pytest.raises(BouquetError, match=f"Layer '{layer}' cannot be matched: .*{reason}"):
        hidden_layers(layout_of(network))
