"""What is known of each data set without loading it: shapes, number of classes, statistics, where to get it.

The server needs no more than this to build a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest
from bouquet.common.plugins import load_object

Loader = TypeVar("Loader", bound=Callable[..., Any])

IMAGES = "images"  # a folder of images


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without loading it.

    Attributes:
        input_shape: of one sample: (channels, height, width) or (channels, time).
        num_classes: number of labels.
        scale: the raw value that becomes 1: 255 for images as bytes, 1 for sensor data.
        mean, std: of the training samples' scaled values, for each channel.
        origin: where to get it, or who made it.
        folder: where in the data folder it lies; empty for embedded data.
        classes: names of the labels, where the files are kept by them: a folder of images.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    origin: str = ""
    folder: str = ""
    classes: tuple[str, ...] = ()


def is_images(name: str) -> bool:
    """Whether a data set is a folder of images: ``images``, or ``images/NAME`` in the data folder."""
    return name.partition("/")[0] == IMAGES


def dataset_info(name: str, classes: tuple[str, ...] = (), input_shape: tuple[int, ...] = ()) -> DatasetInfo:
    """Shapes and origin of a data set, one's own (``module:function``, see `described`) included.

    ``classes`` and ``input_shape`` are those of the settings, and describe a folder of images; the others are known.
    Raises `BouquetError` for an unknown name, with the known ones, and for a function without a description.
    """
    if is_images(name):
        return replace(_FOLDER_OF_IMAGES, input_shape=input_shape, num_classes=len(classes), classes=classes)
    if ":" in name:
        info = getattr(load_object(name, "Data set"), "info", None)
        if not isinstance(info, DatasetInfo):
            raise BouquetError(
                f"Data set {name!r} does not say what it holds: decorate the function with "
                "bouquet.common.data.datasets.described(DatasetInfo(input_shape=…, num_classes=…))."
            )
        return info
    if name not in DATASETS:
        raise BouquetError(
            f"Unknown data set {name!r}; {nearest(name, [*DATASETS, 'images', 'own'])}. 'images' or 'images/NAME' is a "
            "folder of images, with 'own' each device has its own; or yours as module:function."
        )
    return DATASETS[name]


def described(info: DatasetInfo) -> Callable[[Loader], Loader]:
    """Say what the decorated function, which loads a data set of one's own, will load: see `common.data.datasets`."""

    def note(function: Loader) -> Loader:
        function.info = info  # type: ignore[attr-defined]
        return function

    return note


def _torchvision(
    call: str, folder: str, classes: int, shape: tuple[int, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> DatasetInfo:
    return DatasetInfo(shape, classes, 255, mean, std, f"torchvision.datasets.{call} downloads it", folder)


# Bytes become −1 to 1, as devices' own photos do: a folder's mean is not known without reading it.
_FOLDER_OF_IMAGES = DatasetInfo(
    input_shape=(),
    num_classes=0,
    scale=255,
    mean=(0.5,),
    std=(0.5,),
    origin="put the images into train/CLASS/ and, if some are to test on, into test/CLASS/; "
    "'images' is the data folder itself, 'images/NAME' the folder NAME in it",
    folder="train/CLASS/*.jpg",
)

_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_DOWNLOAD = "(FOLDER, download=True)"
_SVHN = "SVHN(FOLDER + '/SVHN', split=…, download=True), for 'train' and for 'test',"
_QMNIST = "QMNIST(FOLDER, what=…, download=True), for 'train' and for 'test',"
DATASETS: dict[str, DatasetInfo] = {
    # Digits stay between 0 and 1, as in the reference runs that this project checks itself against
    # (docs/decisions.md).
    "digits": DatasetInfo((1, 8, 8), 10, 16, (0.0,), (1.0,), "embedded in scikit-learn (UCI optdigits)"),
    "mnist": _torchvision(f"MNIST{_DOWNLOAD}", "MNIST", 10, _GREY, (0.1307,), (0.3081,)),
    "fashion-mnist": _torchvision(f"FashionMNIST{_DOWNLOAD}", "FashionMNIST", 10, _GREY, (0.2860,), (0.3530,)),
    "emnist": _torchvision(
        "EMNIST(FOLDER, split='balanced', download=True)", "EMNIST", 47, _GREY, (0.1751,), (0.3332,)
    ),
    "cifar10": _torchvision(
        f"CIFAR10{_DOWNLOAD}", "cifar-10-batches-py", 10, _COLOUR, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": _torchvision(
        f"CIFAR100{_DOWNLOAD}", "cifar-100-python", 100, _COLOUR, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
    "svhn": _torchvision(_SVHN, "SVHN", 10, _COLOUR, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "mnist-writers": _torchvision(_QMNIST, "QMNIST, or MNIST and mnist_writers.npz", 10, _GREY, (0.1307,), (0.3081,)),
    "uci-har": DatasetInfo(
        (9, 128),
        6,
        1,
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8083, 0.0218, 0.0848),
        (0.1919, 0.1219, 0.1038, 0.4039, 0.3705, 0.2540, 0.4120, 0.3973, 0.3443),
        "UCI publishes it as Human Activity Recognition Using Smartphones (CC BY 4.0); unpack it there",
        "uci_har.npz or the folder 'UCI HAR Dataset'",
    ),
}
