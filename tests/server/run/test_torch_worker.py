"""What a server asks of PyTorch, in a process that ends, and that it does without otherwise."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.common.model.build import initial_model, parameter_names
from bouquet.common.settings import load_settings
from bouquet.server.initial_model.seed_model import PlainStart
from bouquet.server.run import torch_worker
from bouquet.server.run.torch_worker import check_settings, starting_point

NOISY = """
from torch import nn

def make(input_shape, num_classes):
    print("a factory that talks")
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, num_classes))
"""

PLAIN = load_settings(None, [])


@pytest.mark.parametrize("resumed", [False, True])
def test_the_initial_model_is_the_one_that_devices_have(resumed, tmp_path, monkeypatch, capfd):
    (tmp_path / "noisy.py").write_text(NOISY)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings, folder = load_settings(None, ["model.name=noisy:make", "run.seed=3"]), tmp_path if resumed else None
    begun = starting_point(settings, folder, check_settings(settings, folder))
    model = initial_model(settings)
    assert isinstance(begun, PlainStart)
    assert begun.parameters == parameter_names(model)
    state = model.state_dict()
    assert list(begun.arrays) == list(state)
    for name, array in begun.arrays.items():
        assert array.dtype == state[name].numpy().dtype
        np.testing.assert_array_equal(array, state[name].numpy())
    assert "a factory that talks" in capfd.readouterr().err


def test_what_is_wrong_is_said_here():
    with pytest.raises(BouquetError, match="nowhere"):
        check_settings(load_settings(None, ["model.name=nowhere:make"]))


def test_a_check_makes_no_model_where_the_seed_does_not_say_it_all():
    frozen = load_settings(None, ['model.frozen=["conv1"]', "model.name=cnn-dcpfl"])
    assert torch_worker.check(frozen, None) is None


def test_what_a_run_started_from_is_taken_in_place_of_what_the_seed_says(tmp_path, monkeypatch):
    kept = SimpleNamespace(starting_point=lambda settings, resumed: ("kept", resumed))
    monkeypatch.setitem(sys.modules, "bouquet.server.initial_model.torch_model", kept)
    monkeypatch.setattr("bouquet.server.initial_model.torch_model", kept, raising=False)
    assert starting_point(PLAIN, tmp_path, None) == ("kept", tmp_path)
    weights = load_settings(None, ["model.weights=file.pt"])
    assert starting_point(weights, None, None) == ("kept", None)


def test_a_server_that_waits_has_loaded_neither_pytorch_nor_matplotlib():
    program = (
        "import sys, bouquet.federation.serve, bouquet.federation.run, bouquet.monitor.round_table\n"
        "import bouquet.server.app, bouquet.server.run.loop\n"
        "print(*{'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
