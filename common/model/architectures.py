"""The models of the papers, and the user's own, by name.

Each is built deterministically from a seed and holds its layers in the order from input to output, which is the
order in which `bouquet.common.parameters.layout` numbers them and in which strategies call layers shared or personal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from bouquet.common.errors import SAYS_MORE, BouquetError
from bouquet.common.model.torchvision_models import build_torchvision
from bouquet.common.nearest import nearest
from bouquet.common.plugins import accepted, load_object
from bouquet.common.torchvision_compat import TORCHVISION, import_torchvision

Shape = tuple[int, ...]

_LENET_UNPADDED_SIDE = 16
_GROUP_NORM_GROUPS = 32


def model_names() -> tuple[str, ...]:
    """The names that `build_model` knows, beside ``torchvision:NAME`` and ``package.module:factory``."""
    return tuple(_BUILDERS)


def build_model(
    name: str,
    input_shape: Shape,
    num_classes: int,
    seed: int,
    *,
    hidden: tuple[int, ...] | None = None,
    norm: str = "batch",
    tried: bool = True,
    least: int = 2,
) -> nn.Module:
    """Build a model whose initial weights depend on nothing but the arguments.

    Args:
        name: one of `model_names`; ``torchvision:NAME``, a classification model of torchvision's; or
            ``package.module:factory``, a callable of the user's that returns a ``torch.nn.Module``; it is given
            ``input_shape`` and ``num_classes`` where its signature takes them.
        input_shape: of one sample: (channels, height, width) for images, (channels, time) for sensor windows.
        num_classes: number of outputs, classes or targets.
        seed: of the initial weights; torch's global random state is left as it was.
        hidden: widths of ``mlp``'s hidden layers; None or empty for (64,) with at most 64 inputs, else (200, 100).
        norm: ``resnet18``'s normalisation, ``"batch"`` or ``"group"`` (Wu and He 2018, 32 groups).
        tried: whether a model of torchvision's is run once, to see that the input fits; a device leaves that to the
            server.
        least: fewest outputs; numbers may be told one at a time, classes not.

    Raises `BouquetError` for an unknown name, an input that does not fit the model, or a factory that does not work.
    """
    if num_classes < least:
        raise BouquetError(f"num_classes is {num_classes}; a model needs at least {least} classes.")
    if not input_shape or min(input_shape) < 1:
        raise BouquetError(f"input_shape is {input_shape}; every dimension must be at least 1.")
    if hidden and (name != "mlp" or min(hidden) < 1):
        raise BouquetError(f"hidden={hidden} with model {name!r}; it gives mlp's hidden widths, each at least 1.")
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would reseed the accelerators too, which fork_rng restores only when they are listed.
        torch.default_generator.manual_seed(seed)
        if name.startswith(TORCHVISION):
            return build_torchvision(name, input_shape, num_classes, tried)
        if ":" in name:
            return _build_own(name, input_shape, num_classes)
        if name not in _BUILDERS:
            raise BouquetError(
                f"Unknown model {name!r}; {nearest(name, _BUILDERS)}, {TORCHVISION}NAME for one of torchvision's, or "
                "package.module:factory for your own."
            )
        if name == "mlp":
            return _mlp(input_shape, num_classes, hidden)
        if name == "resnet18":
            return _resnet18(input_shape, num_classes, norm)
        return _BUILDERS[name](input_shape, num_classes)


def _mlp(input_shape: Shape, num_classes: int, hidden: tuple[int, ...] | None = None) -> nn.Module:
    """Fully connected layers with ReLU between them; three of them by default, two for 8×8 digits."""
    inputs = 1
    for n in input_shape:
        inputs *= n
    if not hidden:
        hidden = (64,) if inputs <= 64 else (200, 100)
    return _stack(nn.Flatten(), *_fully_connected((inputs, *hidden, num_classes)))


def _lenet(
    name: str, channels: tuple[int, int], widths: tuple[int, int], input_shape: Shape, num_classes: int
) -> nn.Module:
    """Two 5×5 convolutions, each with ReLU and 2×2 pooling, then three fully connected layers (DC-PFL, FedAC).

    Unpadded as LeNet is, except for images under 16×16, of which nothing would be left.
    """
    depth, height, width = _image_shape(name, input_shape, smallest=4)
    padding = 2 if min(height, width) < _LENET_UNPADDED_SIDE else 0
    first, second = channels
    convolutions = (
        *_pooled(nn.Conv2d(depth, first, 5, padding=padding)),
        *_pooled(nn.Conv2d(first, second, 5, padding=padding)),
        nn.Flatten(),
    )
    side = [((n + 2 * padding - 4) // 2 + 2 * padding - 4) // 2 for n in (height, width)]
    return _stack(*convolutions, *_fully_connected((second * side[0] * side[1], *widths, num_classes)))


def _cnn_fedtsdp(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two 3×3 convolutions of 32 and 64 channels, fully connected 512, dropout 0.25 and 0.5 (FedTSDP, Models).

    The paper names no pooling; each convolution is followed by 2×2 pooling here, without which the first fully
    connected layer would have 33 million weights on 32×32 images.
    """
    depth, height, width = _image_shape("cnn-fedtsdp", input_shape, smallest=4)
    return _stack(
        *_pooled(nn.Conv2d(depth, 32, 3, padding=1)),
        *_pooled(nn.Conv2d(32, 64, 3, padding=1)),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, num_classes),
    )


def _cnn_gradient_loss(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two 5×5 convolutions with pooling, then two fully connected layers (gradient-loss, section IV-A).

    The paper gives the widths only in a figure; 16 and 32 channels and 128 units are Bouquet's choice.
    """
    depth, height, width = _image_shape("cnn-gradient-loss", input_shape, smallest=4)
    return _stack(
        *_pooled(nn.Conv2d(depth, 16, 5, padding=2)),
        *_pooled(nn.Conv2d(16, 32, 5, padding=2)),
        nn.Flatten(),
        *_fully_connected((32 * (height // 4) * (width // 4), 128, num_classes)),
    )


def _cnn_batchnorm(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two 3×3 convolutions of 16 and 32 channels, each with batch normalisation, ReLU and pooling; a linear layer.

    Of no paper: a small model with buffers beside its parameters (Ioffe and Szegedy 2015).
    """
    depth, height, width = _image_shape("cnn-batchnorm", input_shape, smallest=4)
    return _stack(
        *_pooled(nn.Conv2d(depth, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)),
        *_pooled(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), num_classes),
    )


def _cnn_har(input_shape: Shape, num_classes: int) -> nn.Module:
    """Two convolutions over time with pooling, then two fully connected layers, for windows of sensor data."""
    if len(input_shape) != 2 or input_shape[1] < 4:
        raise _does_not_fit("cnn-har", input_shape, "sensor windows (channels, time) of at least 4 time steps")
    depth, steps = input_shape
    return _stack(
        *_pooled(nn.Conv1d(depth, 32, 5, padding=2)),
        *_pooled(nn.Conv1d(32, 64, 5, padding=2)),
        nn.Flatten(),
        *_fully_connected((64 * (steps // 4), 100, num_classes)),
    )


class _LastState(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) over windows (n, channels, time); its last state, (n, width)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(channels, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The state after the last step."""
        states: Tensor = self.cell(x.transpose(1, 2))[0]
        return states[:, -1]


def _gru(input_shape: Shape, num_classes: int) -> nn.Module:
    """A gated recurrent unit of width 32 and a fully connected layer, for windows of sensor data."""
    if len(input_shape) != 2:
        raise _does_not_fit("gru", input_shape, "sensor windows (channels, time)")
    return _stack(_LastState(input_shape[0], 32), nn.Linear(32, num_classes))


def _resnet18(input_shape: Shape, num_classes: int, norm: str = "batch") -> nn.Module:
    """torchvision's ResNet-18 with a 3×3 stem of stride 1 and no first pooling, for 32×32 images (FedTSDP, Models)."""
    depth, _, _ = _image_shape("resnet18", input_shape, smallest=8)
    norm_layer = nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, _GROUP_NORM_GROUPS)
    model: nn.Module = import_torchvision().models.resnet18(num_classes=num_classes, norm_layer=norm_layer)
    stem = nn.Conv2d(depth, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model


def _build_own(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Call the user's ``package.module:factory`` and try what it returns on an empty batch."""
    factory = load_object(name, "Model")
    if not callable(factory):
        raise BouquetError(f"Model {name!r} is a {type(factory).__name__}; it must be callable and return a Module.")
    try:
        model = factory(**accepted(factory, {"input_shape": input_shape, "num_classes": num_classes}))
    except Exception as error:
        reason = f"Model {name!r} failed: {type(error).__name__}"
        raise BouquetError(f"{reason}: {error}", public=f"{reason}. {SAYS_MORE}") from error
    if not isinstance(model, nn.Module):
        raise BouquetError(f"Model {name!r} returned a {type(model).__name__}; it must return a torch.nn.Module.")
    try:
        with torch.no_grad():
            output_shape = tuple(model.eval()(torch.zeros(2, *input_shape)).shape)
    except Exception as error:
        raise _does_not_fit(name, input_shape, f"what it was written for; it failed with: {error}") from error
    finally:
        model.train()
    if output_shape != (2, num_classes):
        raise BouquetError(f"Model {name!r} maps 2 samples to shape {output_shape}; expected (2, {num_classes}).")
    return model


def _pooled(convolution: nn.Conv1d | nn.Conv2d, *more: nn.Module) -> list[nn.Module]:
    """A convolution, with what follows it at once, ReLU and pooling of two."""
    pooling = nn.MaxPool1d(2) if isinstance(convolution, nn.Conv1d) else nn.MaxPool2d(2)
    return [convolution, *more, nn.ReLU(), pooling]


def _fully_connected(widths: tuple[int, ...]) -> list[nn.Module]:
    """Linear layers between the given widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _stack(*modules: nn.Module) -> nn.Sequential:
    """A Sequential whose layers have short names in reports: conv1, conv2 …, norm1 …, and fc1 … for linear ones."""
    kinds = {_LastState: "gru", nn.Conv1d: "conv", nn.Conv2d: "conv", nn.Linear: "fc", nn.BatchNorm2d: "norm"}
    counts: dict[str, int] = {}
    named: OrderedDict[str, nn.Module] = OrderedDict()
    for module in modules:
        kind = kinds.get(type(module), type(module).__name__.lower())
        counts[kind] = counts.get(kind, 0) + 1
        named[f"{kind}{counts[kind]}"] = module
    return nn.Sequential(named)


def _image_shape(name: str, input_shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise _does_not_fit(name, input_shape, f"images (channels, height, width) of at least {smallest}×{smallest}")
    depth, height, width = input_shape
    return depth, height, width


def _does_not_fit(name: str, input_shape: Shape, what_fits: str) -> BouquetError:
    return BouquetError(f"Input of shape {input_shape} does not fit model {name!r}, which takes {what_fits}.")


_BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": _mlp,
    "cnn-dcpfl": partial(_lenet, "cnn-dcpfl", (6, 16), (120, 84)),
    "cnn-dcpfl-large": partial(_lenet, "cnn-dcpfl-large", (32, 64), (512, 128)),
    "cnn-fedtsdp": _cnn_fedtsdp,
    "cnn-gradient-loss": _cnn_gradient_loss,
    "cnn-batchnorm": _cnn_batchnorm,
    "resnet18": _resnet18,
    "cnn-har": _cnn_har,
    "gru": _gru,
}
