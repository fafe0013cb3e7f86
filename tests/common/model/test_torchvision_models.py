"""torchvision's models by name: which there are, what they take, in which order their layers stand."""

import pytest
import torch

from bouquet.client.training.sgd import SGDOptions, train
from bouquet.client.trust.policy import CodeRefused, CodeTrust
from bouquet.common.errors import BouquetError
from bouquet.common.model.architectures import build_model
from bouquet.common.model.build import state_vector
from bouquet.common.model.freezing import head_layer
from bouquet.common.model.torchvision_models import torchvision_names

PHOTO = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("mobilenet_v3_small", "classifier.3"),
        ("efficientnet_b0", "classifier.1"),
        ("resnet18", "fc"),
        ("squeezenet1_1", "classifier.1"),
    ],
)
def test_layers_stand_in_the_order_in_which_they_run_and_the_last_gives_the_classes(name, head):
    model = build_model(f"torchvision:{name}", PHOTO, 7, 0)
    layout, _ = state_vector(model)
    ran = []
    for layer, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(lambda *_, layer=layer: ran.append(layer))
    assert model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, *PHOTO))
    assert tuple(ran) == layout.layers
    assert layout.layers[-1] == head_layer(model) == head
    assert [spec.shape[0] for spec in layout.tensors if spec.layer == head] == [7, 7]


@pytest.mark.parametrize("name", ["vit_b_16", "googlenet", "inception_v3", "densenet121", "swin_t", "mnasnet0_5"])
def test_the_head_of_other_families_is_the_last_layer_and_has_no_rivals(name):
    """Without memory for weights: what counts are names. Auxiliary classifiers are left out."""
    side = 80 if name == "inception_v3" else 32
    with torch.device("meta"):
        model = build_model(f"torchvision:{name}", (3, side, side), 7, 0, tried=False)
        assert model.eval()(torch.zeros(2, 3, side, side)).shape == (2, 7)
    last = model.get_submodule(head_layer(model))
    assert last.weight.shape[0] == 7
    assert list(model.state_dict())[-1].startswith(head_layer(model))
    assert sum(tuple(p.shape) == (7,) for p in model.parameters()) == 1


def test_there_are_only_classifiers():
    names = torchvision_names()
    assert {"mobilenet_v3_small", "efficientnet_b0", "vit_b_16"} <= set(names)
    assert not any("rcnn" in name or "deeplab" in name or "quantized" in name for name in names)


def test_grey_images_go_into_all_three_channels():
    grey = build_model("torchvision:squeezenet1_1", (1, 32, 32), 3, 0).eval()
    colour = build_model("torchvision:squeezenet1_1", PHOTO, 3, 0).eval()
    assert [t.shape for t in grey.state_dict().values()] == [t.shape for t in colour.state_dict().values()]
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(grey(x), colour(x.repeat(1, 3, 1, 1)))
    exported = torch.export.export(grey.requires_grad_(False), (x,)).module()(x)
    assert torch.allclose(exported, grey(x), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("mobilnet_v3_smal", PHOTO, r"model\.name = 'torchvision:mobilnet_v3_smal'.*nearest are mobilenet_v3_small"),
        ("fasterrcnn_resnet50_fpn", PHOTO, "has no classification model 'fasterrcnn_resnet50_fpn'"),
        ("vgg11", (3, 16, 16), r"\(3, 16, 16\) does not fit .*vgg11'"),
        ("vit_b_16", (3, 32, 48), "square"),
        ("resnet18", (9, 128), "images of 1 or 3 channels"),
        ("resnet18", (4, 32, 32), "images of 1 or 3 channels"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, said):
    with pytest.raises(BouquetError, match=said):
        build_model(f"torchvision:{name}", shape, 3, 0)


def test_a_device_runs_them_without_its_owners_leave_and_nothing_else_by_that_prefix():
    CodeTrust().check_config({"model": {"name": "torchvision:resnet18"}})
    with pytest.raises(CodeRefused, match="asks for the data set 'torchvision:resnet18'"):
        CodeTrust().check_config({"data": {"dataset": "torchvision:resnet18"}})
    with pytest.raises(BouquetError, match="no classification model"):
        build_model("torchvision:os.system", PHOTO, 3, 0)


def test_batch_normalisation_meets_batches_of_one():
    """The last sample of an epoch joins the mini-batch before; a device with one at a time is told what to change."""
    model = build_model("torchvision:mobilenet_v3_small", PHOTO, 3, 0)
    x, y = torch.rand(5, *PHOTO), torch.tensor([0, 1, 2, 0, 1])
    options = SGDOptions(local_epochs=1, batch_size=2, learning_rate=0.01)
    assert train(model, x, y, options, [], torch.Generator().manual_seed(0)) > 0
    with pytest.raises(BouquetError, match=r"mini-batch of one sample.*train\.batch_size"):
        train(model, x[:1], y[:1], options, [], torch.Generator().manual_seed(0))
