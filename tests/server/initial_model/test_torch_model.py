"""What a run starts from: weights from files, the head that they leave open, several models of the same weights."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bouquet.common.errors import BouquetError
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model.freezing import trained_state
from bouquet.common.settings import load_settings
from bouquet.server.initial_model.pretrained import read_weights
from bouquet.server.initial_model.torch_model import PERTURBATION, starting_point

OWN = ["data.dataset=own", "data.classes=a,b,c", "data.input_shape=3,8,8", "model.name=cnn-batchnorm"]


def settings(*changes):
    return load_settings(None, [*OWN, *changes])


def other_model(*changes, seed=7):
    return initial_model(settings(f"run.seed={seed}", *changes))


@pytest.fixture(params=["safetensors", "pt", "pth", "wrapped"])
def weights(request, tmp_path):
    """A file of weights, and the model that it is of."""
    model = other_model()
    file = tmp_path / f"w.{'pt' if request.param == 'wrapped' else request.param}"
    if request.param == "safetensors":
        save_file(model.state_dict(), file)
    else:
        state = model.state_dict()
        torch.save({"epoch": 3, "state_dict": state} if request.param == "wrapped" else state, file)
    return file, model


def test_what_has_the_same_name_and_shape_is_taken(weights):
    file, model = weights
    start = starting_point(settings(f"model.weights={file}"))
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in start.model.state_dict().items())
    assert start.about["taken"] == len(model.state_dict()) == 14
    assert start.about["weights"] == file.name
    assert len(start.about["sha256"]) == 64
    assert start.about["fresh"] == start.about["frozen"] == []


def test_the_head_of_other_classes_is_drawn_from_the_runs_seed(weights):
    file, model = weights
    changes = ["data.classes=a,b,c,d,e", f"model.weights={file}"]
    start = starting_point(settings(*changes))
    state, seeded = start.model.state_dict(), initial_model(settings(*changes)).state_dict()
    assert start.about["fresh"] == ["fc1.weight", "fc1.bias"]
    assert start.about["taken"] == 12
    assert all(torch.equal(state[n], seeded[n]) for n in ("fc1.weight", "fc1.bias"))
    assert all(torch.equal(state[n], model.state_dict()[n]) for n in state if not n.startswith("fc1"))
    assert not torch.equal(
        starting_point(settings(*changes, "run.seed=1")).model.state_dict()["fc1.weight"], state["fc1.weight"]
    )


def test_a_backbone_without_a_head_fits_and_auxiliary_classifiers_are_passed_over(tmp_path):
    state = {n: t for n, t in other_model().state_dict().items() if not n.startswith("fc1")}
    save_file({**state, "aux1.fc.weight": torch.zeros(2)}, tmp_path / "w.safetensors")
    start = starting_point(settings(f"model.weights={tmp_path / 'w.safetensors'}"))
    assert start.about["fresh"] == ["fc1.weight", "fc1.bias"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"conv1.weight": torch.zeros(16, 3, 5, 5)},
            r"'conv1.weight' has shape \(16, 3, 5, 5\) in the file and \(16, 3",
        ),
        ({"conv2.weight": None}, r"'conv2.weight' \(32, 16, 3, 3\) is not among them \(1 of the model's 14"),
        ({"conv9.weight": torch.zeros(1)}, r"the model has no 'conv9.weight' \(1,\)"),
        ({"norm1.weight": torch.full((16,), torch.nan)}, "'norm1.weight' holds values that are not finite"),
        ({"norm1.weight": torch.zeros(16, dtype=torch.int64)}, "'norm1.weight' holds torch.int64 in the file"),
        ({"fc1.weight": torch.zeros(3, 999)}, r"'fc1.weight' has shape \(3, 999\) in the file and \(3, 128\)"),
    ],
)
def test_everything_else_that_does_not_fit_is_named(change, said, tmp_path):
    state = {**other_model().state_dict(), **change}
    save_file({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "w.safetensors")
    with pytest.raises(BouquetError, match=said):
        starting_point(settings(f"model.weights={tmp_path / 'w.safetensors'}"))


class Evil:
    def __reduce__(self):
        return print, ("code from a file was run",)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.pt", None, "cannot be read: No such file"),
        ("w.bin", b"", r"ends in none of \.safetensors, \.pt, \.pth"),
        ("w.safetensors", b"nothing", "is no file of weights"),
        ("w.pt", b"nothing", "Bouquet runs no code from a file"),
        ("evil.pt", Evil(), "Bouquet runs no code from a file"),
        ("list.pt", [torch.zeros(1)], "no tensors by name"),
        ("whole.pt", torch.nn.Linear(2, 2), "Bouquet runs no code from a file"),
    ],
)
def test_files_that_are_no_weights(name, content, said, tmp_path, capsys):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises(BouquetError, match=said) as error:
        read_weights(tmp_path / name)
    assert "model.weights" in str(error.value)
    assert "code from a file was run" not in capsys.readouterr().out


def test_several_models_of_the_same_weights_differ_in_what_the_weights_leave_open(tmp_path):
    save_file(other_model().state_dict(), tmp_path / "w.safetensors")
    given = f"model.weights={tmp_path / 'w.safetensors'}"
    start = starting_point(settings("data.classes=a,b,c,d,e", given))
    layout, first = state_vector(start.model)
    head = layout.columns(["fc1"])
    second, third = start.draw(1), start.draw(2)
    np.testing.assert_array_equal(second, start.draw(1))
    assert not np.array_equal(second[head], third[head])
    for other in (second, third):
        assert np.array_equal(np.delete(other, head), np.delete(first, head))
    # Without weights every parameter is another one.
    plain = starting_point(settings())
    assert not np.array_equal(plain.draw(1)[:100], state_vector(plain.model)[1][:100])


def test_several_models_of_weights_that_leave_nothing_open_are_perturbed(tmp_path):
    save_file(other_model().state_dict(), tmp_path / "w.safetensors")
    start = starting_point(settings(f"model.weights={tmp_path / 'w.safetensors'}"))
    layout, first = state_vector(start.model)
    second = start.draw(1)
    for spec in layout.tensors:
        moved, values = (second - first)[spec.columns], first[spec.columns]
        if spec.kind != "parameter":
            assert not moved.any()
        elif spec.size > 100:
            assert np.std(moved) == pytest.approx(PERTURBATION * np.sqrt(np.mean(values**2)), rel=0.2)
    assert not np.array_equal(second, start.draw(2))


def test_a_frozen_part_is_no_part_of_what_is_drawn(tmp_path):
    save_file(other_model().state_dict(), tmp_path / "w.safetensors")
    start = starting_point(settings(f"model.weights={tmp_path / 'w.safetensors'}", "model.frozen=all-but-head"))
    assert len(start.draw(1)) == sum(t.numel() for t in trained_state(start.model).values()) == 3 * 128 + 3
    assert start.about["frozen"] == ["conv1", "conv2", "norm1", "norm2"]
    assert set(start.delivery().frozen) == {n for n in start.arrays if not n.startswith("fc1")}


def test_what_the_run_started_from_is_kept_and_other_weights_are_refused(tmp_path):
    file, run = tmp_path / "w.safetensors", tmp_path / "run"
    run.mkdir()
    save_file(other_model().state_dict(), file)
    chosen = settings("data.classes=a,b,c,d,e", f"model.weights={file}")
    begun = starting_point(chosen)
    begun.save(run)
    moved = file.rename(tmp_path / "elsewhere.safetensors")
    for again in (chosen, settings("data.classes=a,b,c,d,e", f"model.weights={moved}")):
        same = starting_point(again, run)
        assert all(np.array_equal(array, same.arrays[name]) for name, array in begun.arrays.items())
        assert np.array_equal(same.draw(3), begun.draw(3))
        assert same.delivery().digest == begun.delivery().digest
    save_file(other_model(seed=8).state_dict(), file)
    with pytest.raises(BouquetError, match=r"cannot go on with other weights: it began with w\.safetensors of SHA-256"):
        starting_point(chosen, run)


def test_a_run_that_began_without_weights_does_not_get_any(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file(other_model().state_dict(), file)
    (tmp_path / "settings.json").write_text(json.dumps(settings().model_dump(mode="json")))
    with pytest.raises(BouquetError, match=r"it began with no file, and model\.weights"):
        starting_point(settings(f"model.weights={file}"), tmp_path)
    assert starting_point(settings(), tmp_path).about == {}
