"""Models: shapes, layer order, parameter shares, seeds, and what a wrong name or input says."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bouquet.common.errors import BouquetError
from bouquet.common.model.architectures import build_model, model_names
from bouquet.common.torchvision_compat import import_torchvision

DIGITS, GREY, COLOUR, WINDOW = (1, 8, 8), (1, 28, 28), (3, 32, 32), (9, 128)
OF_WINDOWS = ("cnn-har", "gru")
FITS = [
    *[(name, shape) for name in model_names() if name not in OF_WINDOWS for shape in (DIGITS, GREY, COLOUR)],
    *[(name, WINDOW) for name in ("mlp", *OF_WINDOWS)],
]


def layer_sizes(model: nn.Module) -> dict[str, int]:
    return {
        name: sum(p.numel() for p in layer.parameters())
        for name, layer in model.named_children()
        if list(layer.parameters())
    }


@pytest.mark.parametrize(("name", "shape"), FITS)
def test_every_model_fits_its_inputs_and_lists_its_layers_in_the_order_they_run(name: str, shape: tuple) -> None:
    model = build_model(name, shape, num_classes=7, seed=0).eval()
    ran: list[str] = []
    for layer, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, 7)
    assert ran == list(dict.fromkeys(key.rpartition(".")[0] for key in model.state_dict()))


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("cnn-dcpfl", [0.004, 0.054, 0.694, 0.229, 0.019]),
        ("cnn-dcpfl-large", [0.001, 0.080, 0.815, 0.102, 0.002]),
    ],
)
def test_the_dcpfl_models_have_the_parameter_shares_measured_on_fashion_mnist(name: str, shares: list[float]) -> None:
    sizes = layer_sizes(build_model(name, GREY, 10, seed=0))
    assert list(sizes) == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert [round(n / sum(sizes.values()), 3) for n in sizes.values()] == shares


def test_layer_sizes_counted_by_hand() -> None:
    assert layer_sizes(build_model("cnn-dcpfl", GREY, 10, seed=0)) == {
        "conv1": 6 * 25 + 6,
        "conv2": 16 * 6 * 25 + 16,
        "fc1": 16 * 4 * 4 * 120 + 120,
        "fc2": 120 * 84 + 84,
        "fc3": 84 * 10 + 10,
    }
    assert layer_sizes(build_model("cnn-fedtsdp", COLOUR, 10, seed=0)) == {
        "conv1": 32 * 3 * 9 + 32,
        "conv2": 64 * 32 * 9 + 64,
        "fc1": 64 * 8 * 8 * 512 + 512,
        "fc2": 512 * 10 + 10,
    }
    assert layer_sizes(build_model("mlp", DIGITS, 10, seed=0)) == {"fc1": 64 * 64 + 64, "fc2": 64 * 10 + 10}
    assert layer_sizes(build_model("mlp", GREY, 10, seed=0)) == {
        "fc1": 784 * 200 + 200,
        "fc2": 200 * 100 + 100,
        "fc3": 100 * 10 + 10,
    }
    assert list(layer_sizes(build_model("mlp", GREY, 10, seed=0, hidden=(5,))).values()) == [784 * 5 + 5, 5 * 10 + 10]


def test_resnet18_has_a_small_stem_no_first_pooling_and_the_chosen_normalisation() -> None:
    batch = build_model("resnet18", COLOUR, 10, seed=0)
    assert (batch.conv1.kernel_size, batch.conv1.stride) == ((3, 3), (1, 1))
    assert isinstance(batch.maxpool, nn.Identity)
    group = build_model("resnet18", GREY, 10, seed=0, norm="group")
    kinds = [type(m) for m in group.modules()]
    assert kinds.count(nn.GroupNorm) == 20
    assert nn.BatchNorm2d not in kinds
    assert not any("num_batches_tracked" in key for key in group.state_dict())


@pytest.mark.parametrize("name", ["mlp", "resnet18"])
def test_weights_depend_on_the_seed_alone_and_the_global_state_is_left_as_it_was(name: str) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = build_model(name, GREY, 10, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    second, other = (build_model(name, GREY, 10, seed=seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "cnn"}, "Unknown model 'cnn'; nearest are cnn-har"),
        ({"name": "cnn-har"}, r"\(1, 28, 28\) does not fit model 'cnn-har', which takes sensor windows"),
        ({"name": "cnn-dcpfl", "input_shape": WINDOW}, "does not fit model 'cnn-dcpfl', which takes images"),
        ({"name": "resnet18", "input_shape": (1, 4, 4)}, "at least 8×8"),
        ({"name": "mlp", "input_shape": (0, 8)}, "every dimension must be at least 1"),
        ({"name": "mlp", "num_classes": 1}, "at least 2 classes"),
        ({"name": "cnn-dcpfl", "hidden": (5,)}, r"hidden=\(5,\) with model 'cnn-dcpfl'"),
        ({"name": "mlp", "hidden": (5, 0)}, "each at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict, said: str) -> None:
    with pytest.raises(BouquetError, match=said):
        build_model(**{"input_shape": GREY, "num_classes": 10, "seed": 0, **arguments})


OWN = """
from torch import nn

def sized(input_shape, num_classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], width), nn.Linear(width, num_classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def anything(**given):
    return sized(**given)

def broken():
    raise RuntimeError("no weights today")

def text(num_classes):
    return "a model"

number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models_for_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("factory", ["sized", "fixed", "anything"])
def test_the_users_own_model_is_built_from_the_seed(factory: str) -> None:
    first, second = (build_model(f"own_models_for_test:{factory}", DIGITS, 10, seed=1) for _ in range(2))
    assert first.training
    assert torch.equal(next(first.parameters()), next(second.parameters()))


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_here:f", "cannot be imported"),
        ("own_models_for_test:missing", "cannot be imported"),
        (":f", "cannot be imported"),
        ("own_models_for_test:number", "is a int; it must be callable"),
        ("own_models_for_test:broken", "failed: RuntimeError: no weights today"),
        ("own_models_for_test:text", "returned a str"),
    ],
)
def test_a_factory_that_does_not_work_is_named(name: str, said: str) -> None:
    with pytest.raises(BouquetError, match=said):
        build_model(name, DIGITS, 10, seed=0)


@pytest.mark.usefixtures("own_module")
def test_an_own_model_is_tried_on_the_data_before_any_device_trains_it() -> None:
    with pytest.raises(BouquetError, match=r"\(1, 28, 28\) does not fit model 'own_models_for_test:fixed'"):
        build_model("own_models_for_test:fixed", GREY, 10, seed=0)
    with pytest.raises(BouquetError, match=r"shape \(2, 10\); expected \(2, 4\)"):
        build_model("own_models_for_test:fixed", DIGITS, 4, seed=0)


def test_torchvision_is_imported_only_for_resnet18() -> None:
    program = (
        "import sys; "
        "from bouquet.common.model.architectures import build_model; build_model('cnn-dcpfl', (1, 28, 28), 10, 0); "
        "assert 'torchvision' not in sys.modules; build_model('resnet18', (1, 8, 8), 10, 0); "
        "assert 'torchvision' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_torchvision_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bouquet.common.torchvision_compat.find_spec", lambda name: None)
    with pytest.raises(BouquetError, match="torchvision is not installed"):
        import_torchvision.__wrapped__()
