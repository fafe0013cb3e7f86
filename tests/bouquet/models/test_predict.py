"""A device uses and exports the model that it keeps, without a server."""

import json
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from PIL import Image

from bouquet.client.app import make_client_app
from bouquet.client.data.loading import load_partition
from bouquet.client.state.device_state import PERSONAL, DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.metrics import written
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model.card import ModelCard
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation import run as simulation
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.models.export import export
from bouquet.models.kept import KeptModel, _loaded, cluster_model, device_model
from bouquet.models.predict import predict

CLASSES = ("dark", "bright")
OWN = ["data.dataset=own", "data.classes=dark,bright", "data.input_shape=3,4,4", "model.hidden=8", "train.momentum=0"]
InlineGrid({})  # gives Flower's Message its sender


def write_images(folder):
    generator = np.random.default_rng(0)
    for index in range(24):
        name, level = (("dark", 60), ("bright", 190))[index % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(level - 40, level + 40, size=(6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{index:02d}.png")


def train(state_dir, data, *changes):
    """One round of a device with data of its own."""
    settings = load_settings(None, [*OWN, "train.local_epochs=20", *changes])
    layout, initial = state_vector(initial_model(settings))
    content = Encoder(layout).content(Instruction({ARRAYS: Payload(initial)}), 1, "r", {})
    context = Context(1, 2, {"data": str(data), "state-dir": str(state_dir)}, RecordDict(), {})
    reply = make_client_app(settings)(Message(content, dst_node_id=2, message_type="train"), context)
    assert reply.has_content(), reply.error


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """A folder with ``photos`` and the ``state`` of a device that trained on them."""
    folder = tmp_path_factory.mktemp("device")
    write_images(folder / "photos")
    train(folder / "state", folder / "photos")
    return folder


@pytest.mark.parametrize("strategy", METHODS)
def test_what_a_device_answers_with_is_what_the_record_says(strategy, tmp_path, monkeypatch):
    """Whatever the fleet serves, without a server it scores what the device said after the last round."""
    monkeypatch.setattr(simulation.shutil, "rmtree", lambda *_, **__: None)  # what devices kept, when the run has ended
    changes = ["data.clients=3", "data.samples_per_client=60", "data.public_fraction=0.1", "run.rounds=3"]
    changes += (
        ["strategy.num_clusters=2"]
        if strategy in ("fl-hc", "fedgroup", "clusterfl", "robust-tkm", "hypocluster")
        else []
    )
    settings = load_settings(None, [*changes, "simulation.engine=inline", f"strategy.name={strategy}"])
    summary = simulation.simulate(settings, tmp_path)
    accuracies = []
    for part in range(3):
        kept = device_model(tmp_path / simulation.STATE_FOLDER / f"client-{part}")
        options = settings.data.partition_options()
        own = load_partition("digits", "iid", part, 3, settings.run.seed, **options)
        accuracies.append(np.mean(kept.probabilities(own.test_x).argmax(axis=1) == own.test_y))
    assert np.mean(accuracies) == pytest.approx(summary["accuracy_in_use_macro"], abs=1e-6)
    assert summary["accuracy_macro"] == pytest.approx(summary["accuracy_in_use_macro"], abs=1e-6)


def test_what_has_labels_has_a_score(device, tmp_path, bouquet):
    photos = device / "photos"
    _, out, err = bouquet("predict", photos, "--state-dir", device / "state")
    right = sum(f"{name}/" in line and f": {name} " in line for line in out.splitlines() for name in CLASSES)
    assert err.endswith(f"accuracy {written(right / 24)}, over 24 samples with a label")
    _, _, err = bouquet("predict", photos / "dark" / "00.png", "--state-dir", device / "state")
    assert "accuracy" not in err  # of a single photo nobody asks
    wrong_way_round = np.array([[[[200]]], [[[60]]]], dtype=np.uint8)
    x = np.broadcast_to(wrong_way_round, (2, 3, 4, 4))
    np.savez(tmp_path / "data.npz", x=x, y=[0, 1])
    status, _, err = bouquet("predict", tmp_path, "--state-dir", device / "state")
    assert (status, err) == (0, "accuracy 0.000, over 2 samples with a label")
    np.savez(tmp_path / "data.npz", x=x, y=[0, 2])
    status, _, err = bouquet("predict", tmp_path, "--state-dir", device / "state")
    assert (status, "sample 1: 'y' holds label 2" in err) == (1, True)
    assert err.endswith("accuracy 0.000, over 1 samples with a label")


def test_one_broken_image_is_named_and_the_others_are_predicted(device, tmp_path, bouquet):
    (tmp_path / "broken.png").write_text("no image")
    paths = (tmp_path / "broken.png", device / "photos" / "dark" / "00.png", tmp_path / "none.png", tmp_path)
    status, out, err = bouquet("predict", *paths, "--state-dir", device / "state")
    assert status == 1
    assert out.startswith(f"{paths[1]}: dark 0.")
    assert f"The image {paths[0]} cannot be read" in err
    assert f"There is no file or folder {paths[2]}" in err
    status, out, err = bouquet("predict", *paths[:2], "--json", "--top", 2, "--state-dir", device / "state")
    broken, read = map(json.loads, out.splitlines())
    assert (status, err, broken["file"]) == (1, "", str(paths[0]))
    assert [found["class"] for found in read["predictions"]] == ["dark", "bright"]
    assert sum(found["probability"] for found in read["predictions"]) == pytest.approx(1, abs=1e-5)


def test_a_model_of_sensor_windows_takes_no_images(device):
    card = ModelCard.of(load_settings(None, ["data.dataset=uci-har", "model.name=cnn-har"]))
    kept = KeptModel(card.build().eval(), card, "here")
    (found,) = predict(kept, [device / "photos" / "dark" / "00.png"], top=1)
    assert "takes samples of shape (9, 128), not images" in found.error


def test_no_model_says_how_to_get_one_and_makes_no_folder(tmp_path, bouquet, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = bouquet("predict", "a.png")
    assert (status, "bouquet-state is not there" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    DeviceState(FolderStore(tmp_path / "state")).identity()
    assert "holds no model yet" in bouquet("predict", "a.png", "--state-dir", "state")[2]
    DeviceState(FolderStore(tmp_path / "state")).keep("r", 1, {PERSONAL: {"w": np.zeros(1)}}, {})
    assert "kept for another's ClientApp" in bouquet("predict", "a.png", "--state-dir", "state")[2]
    DeviceState(FolderStore(tmp_path / "state")).keep("r", 2, {PERSONAL: {"w": np.zeros(1)}}, {}, '{"model": 3}')
    assert "written by another release" in bouquet("predict", "a.png", "--state-dir", "state")[2]


FACTORY = """
from torch import nn
def build(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH), nn.ReLU(), nn.Linear(WIDTH, num_classes))
"""


def test_a_model_of_the_users_own_needs_its_code(tmp_path, monkeypatch):
    write_images(tmp_path / "photos")
    (tmp_path / "own_model_of_predict.py").write_text(FACTORY.replace("WIDTH", "5"))
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "own_model_of_predict"
    train(tmp_path / "state", tmp_path / "photos", f"model.name={name}:build", "model.hidden=")
    assert len(list(predict(device_model(tmp_path / "state", [f"{name}:build"]), [tmp_path / "photos"], 1))) == 24
    monkeypatch.setattr(sys.modules[name].nn, "ReLU", torch.nn.BatchNorm1d)
    with pytest.raises(BouquetError, match=r"failed: TypeError"):
        device_model(tmp_path / "state", [f"{name}:build"])
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BouquetError, match=rf"'{name}:build' cannot be imported"):
        device_model(tmp_path / "state", [f"{name}:build"])


def test_tensors_that_no_longer_fit_the_code(device, tmp_path):
    kept = DeviceState(FolderStore(device / "state")).latest()
    DeviceState(FolderStore(tmp_path)).keep("r", 1, {PERSONAL: {"w": np.zeros(1)}}, {}, kept.card)
    with pytest.raises(BouquetError, match="do not fit model 'mlp' as it is built here"):
        device_model(tmp_path)


def test_a_cluster_of_a_run(tmp_path, bouquet):
    changes = ["data.clients=4", "data.partition=rotated", "data.groups=2", "run.rounds=2", "simulation.engine=inline"]
    settings = load_settings(None, [*changes, "strategy.num_clusters=2"])
    simulation.simulate(settings, tmp_path / "run")
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 8, 8), dtype=np.float32))
    status, out, _ = bouquet("predict", tmp_path / "x.npz", "--run", tmp_path / "run", "--cluster", 1)
    assert (status, out.startswith(f"{tmp_path}/x.npz[0]: ")) == (0, True)
    assert "the run has clusters 0, 1" in bouquet("predict", "x", "--run", tmp_path / "run", "--cluster", 7)[2]
    assert "is no run folder" in bouquet("predict", "x", "--run", tmp_path, "--cluster", 0)[2]
    assert "has clusters 0, 1: choose one by --cluster" in bouquet("export", "x.pt", "--run", tmp_path / "run")[2]
    assert "give --run, too" in bouquet("predict", "x", "--cluster", 0)[2]
    own, text = tmp_path / "run" / "settings.json", (tmp_path / "run" / "settings.json").read_text()
    for name in ("fedper", "standalone"):
        own.write_text(text.replace('"fesem"', f'"{name}"'))
        with pytest.raises(BouquetError, match=f"'{name}', whose models are on the devices"):
            cluster_model(tmp_path / "run", 0)


def test_the_exported_model_gives_the_same_and_knows_its_classes(device, tmp_path, bouquet):
    kept = device_model(device / "state")
    x = np.random.default_rng(0).normal(size=(5, 3, 4, 4)).astype(np.float32)
    expected = kept.model(torch.as_tensor(x)).detach().numpy()
    for suffix in ("onnx", "pt"):
        status, out, err = bouquet("export", tmp_path / f"model.{suffix}", "--state-dir", device / "state")
        assert (status, err) == (0, "")
        assert "mlp, 2 classes" in out
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["logits"], {"x": x})[0], expected, atol=1e-5)
    described = {"bouquet.json": ""}
    script = torch.jit.load(tmp_path / "model.pt", _extra_files=described)
    np.testing.assert_allclose(script(torch.as_tensor(x)).numpy(), expected, atol=1e-5)
    for text in (described["bouquet.json"], session.get_modelmeta().custom_metadata_map["bouquet.json"]):
        facts = json.loads(text)
        assert (facts["classes"], facts["input_shape"], facts["mean"]) == (list(CLASSES), [3, 4, 4], [0.5])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.pt"]


class Branches(torch.nn.Module):
    """Its path depends on what it is given, so that no graph is the model."""

    def forward(self, x):
        flat = x.flatten(1)[:, :2]
        return flat if flat.sum() > 0 else -flat


def test_what_cannot_be_exported_says_so_and_leaves_no_file(device, tmp_path, bouquet, monkeypatch):
    card = device_model(device / "state").card
    with pytest.raises(BouquetError, match="PyTorch cannot translate this model to TorchScript"):
        export(KeptModel(Branches().eval(), card, "here"), tmp_path / "model.pt")
    status, _, err = bouquet("export", tmp_path / "model.tflite", "--state-dir", device / "state")
    assert (status, "ends in neither .onnx nor .pt" in err) == (2, True)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    status, _, err = bouquet("export", tmp_path / "model.onnx", "--state-dir", device / "state")
    assert (status, "-m pip install onnx onnxscript" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_classes_that_the_device_never_trained_on_are_named(device, tmp_path, bouquet):
    train(tmp_path / "state", device / "photos", 'data.classes=["dark","grey","bright","red"]')
    photo = device / "photos" / "dark" / "00.png"
    code, out, err = bouquet("predict", "--state-dir", tmp_path / "state", photo, "--json")
    assert (code, err) == (0, "This device never trained on grey, red: what shows one is taken for another.")
    json.loads(out.splitlines()[-1])
    code, _, err = bouquet("predict", "--state-dir", device / "state", photo)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("key", ["model.name", "task.kind", "data.dataset"])
def test_opening_somebody_elses_run_imports_nothing_unless_it_is_allowed(tmp_path, key):
    own = tmp_path / "theirs.py"
    own.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    section, name = key.split(".")
    settings = {section: {name: f"{own}:make"}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(BouquetError, match=f"give --allow-model {own}:make"):
        cluster_model(tmp_path / "run", 0)
    assert not (tmp_path / "imported").exists()
    with pytest.raises(BouquetError, match=r"is no run folder|no models|needs data.dataset"):
        cluster_model(tmp_path / "run", 0, [f"{own}:make"])
    (tmp_path / "run" / "settings.json").write_text("[")
    with pytest.raises(BouquetError, match="is no run folder"):
        cluster_model(tmp_path / "run", 0)


def test_nor_does_a_state_folder_whose_card_names_code(tmp_path):
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    card = json.dumps({"model": {"name": f"{tmp_path / 'theirs.py'}:make"}, "input_shape": [1], "classes": ["a"]})
    with pytest.raises(BouquetError, match=r"names the model .* --allow-model"):
        _loaded(card, [{}], "state", ())
    assert not (tmp_path / "imported").exists()
    with pytest.raises(BouquetError, match="another release"):  # allowed, and no whole card
        _loaded(card, [{}], "state", (f"{tmp_path / 'theirs.py'}:make",))
