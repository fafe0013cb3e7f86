"""``bouquet export --distil``: one model that says what a device's mixture says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from bouquet.client.data.loading import ClientData
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import load_settings
from bouquet.models.distil import distil, score_of
from bouquet.models.kept import KeptModel, Mixture, Scaled, device_model
from tests.bouquet.models.test_predict import train

FOUR = ["data.dataset=own", "data.classes=a,b,c,d", "data.input_shape=2", "model.hidden=16"]
TABLE = ["data.dataset=own", "task.kind=regression", "table.inputs=x", "table.targets=y", "model.hidden=16"]


def fitted(card, x, y, loss, seed):
    """A model of the card, trained on samples."""
    torch.manual_seed(seed)
    model = card.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(300):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def corners():
    """A mixture of two models, each of which knows two of four corners, and the data of a device with all four."""
    card = ModelCard.of(load_settings(None, FOUR))
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(4), 60)
    x = (np.stack([y % 2, y // 2], axis=1) * 4 - 2 + rng.normal(0, 0.5, (len(y), 2))).astype(np.float32)
    loss = torch.nn.functional.cross_entropy
    models = []
    for seed, known in enumerate(((0, 1), (2, 3))):
        own = np.isin(y, known)
        # Of the corners that it does not know it knows that they are none of its own.
        targets = np.where(own[:, None], np.eye(4)[y], np.where(np.isin(np.arange(4), known), 0, 0.5))
        models.append(fitted(card, torch.as_tensor(x), torch.as_tensor(targets, dtype=torch.float32), loss, seed))
    kept = KeptModel(Mixture(models, KeptModel(models[0], card, "").task).eval(), card, "here")
    return kept, ClientData(x[:120], y[:120], x[120:], y[120:], 4)


def test_the_one_model_has_what_the_mixture_has_and_looks_at_no_label(corners):
    kept, data = corners
    of_mixture = score_of(kept, data)
    of_last = score_of(replace(kept, model=kept.model.models[-1]), data)
    assert of_mixture > 0.95 > 0.85 > of_last
    one = distil(kept, replace(data, train_y=data.train_y * 0), 0)
    assert not isinstance(one.model, Mixture)
    assert score_of(one, data) >= of_mixture - 0.02


def test_the_same_seed_gives_the_same_model(corners):
    kept, data = corners
    before = [parameter.clone() for parameter in kept.model.parameters()]
    first, second, other = (distil(kept, data, seed).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())
    assert all(torch.equal(one, two) for one, two in zip(before, kept.model.parameters(), strict=True))


def test_a_regression_is_taught_the_mean_in_the_tables_units():
    scaling = Scaling(mean=(10.0,), std=(2.0,), target_mean=(100.0,), target_std=(5.0,))
    card = ModelCard.of(load_settings(None, TABLE)).model_copy(update={"scaling": scaling})
    x = np.linspace(-2, 2, 160, dtype=np.float32)[:, None]
    y = (0.8 * x).astype(np.float32)
    too_much = [
        fitted(card, torch.as_tensor(x), torch.as_tensor(y + by), torch.nn.functional.mse_loss, 0) for by in (-0.5, 0.5)
    ]
    task = KeptModel(too_much[0], card, "").task
    kept = KeptModel(Scaled(Mixture(too_much, task), scaling, card.input_shape).eval(), card, "here")
    data = ClientData(x[::2], y[::2], x[1::2], y[1::2], 0, scaling=scaling)
    last = KeptModel(Scaled(too_much[-1], scaling, card.input_shape), card, "here")
    one = distil(kept, data, 0)
    assert score_of(last, data) == pytest.approx(2.5, abs=0.3)  # half a deviation of 5
    assert score_of(one, data) < 0.5
    assert one.numbers(np.array([[10]], np.float32))[0, 0] == pytest.approx(100, abs=1)


@pytest.mark.parametrize("changed", [{"num_classes": 3}, {"train_x": np.zeros((4, 3), np.float32)}])
def test_data_of_another_layout_are_refused(corners, changed):
    kept, data = corners
    with pytest.raises(BouquetError, match="labels or columns have changed since"):
        distil(kept, replace(data, **changed), 0)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """A folder with the ``state`` of a device that serves a mixture of its photos' models."""
    folder = tmp_path_factory.mktemp("device")
    random = np.random.default_rng(0)
    for index in range(24):
        name, level = (("dark", 60), ("bright", 190))[index % 2]
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(level - 40, level + 40, size=(6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / name / f"{index:02d}.png")
    train(folder / "state", folder / "photos", "personal.serve=mixture")
    return folder


def test_the_command_writes_one_model_and_says_what_both_are_worth(device, tmp_path, bouquet):
    status, out, err = bouquet("export", tmp_path / "one.pt", "--distil", "--state-dir", device / "state")
    assert (status, err) == (0, "")
    mixture, one, written = out.splitlines()
    assert mixture.startswith("mixture    accuracy 1.000 over 5 test samples, ")
    assert one.startswith("one model  accuracy 1.000 over 5 test samples, ")
    assert "ms a sample in PyTorch" in one
    assert written.startswith(f"written  {tmp_path}/one.pt (mlp, 2 classes, ")
    bouquet("export", tmp_path / "all.pt", "--state-dir", device / "state")
    count = len(device_model(device / "state").model.models)
    assert count > 1
    sizes = [sum(p.numel() for p in torch.jit.load(tmp_path / name).parameters()) for name in ("one.pt", "all.pt")]
    assert sizes[1] == count * sizes[0]
    bouquet("export", tmp_path / "again.pt", "--distil", "--state-dir", device / "state")
    weights = [list(torch.jit.load(tmp_path / name).parameters()) for name in ("one.pt", "again.pt")]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


def test_it_is_refused_where_there_is_nothing_to_distil_or_to_teach_with(device, tmp_path, bouquet):
    train(tmp_path / "plain", device / "photos")
    status, _, err = bouquet("export", tmp_path / "m.pt", "--distil", "--state-dir", tmp_path / "plain")
    assert (status, "there is no mixture to distil. Leave --distil out." in err) == (2, True)
    status, _, err = bouquet("export", tmp_path / "m.pt", "--distil", "--run", tmp_path, "--cluster", 0)
    assert (status, "which a run's folder has not" in err) == (2, True)
    train(tmp_path / "state", device / "photos", "personal.serve=mixture")
    for file in (tmp_path / "state" / "prepared").iterdir():
        file.unlink()
    status, _, err = bouquet("export", tmp_path / "m.pt", "--distil", "--state-dir", tmp_path / "state")
    assert (status, "are not kept: --distil needs a device with data of its own" in err) == (2, True)
    assert not (tmp_path / "m.pt").exists()
