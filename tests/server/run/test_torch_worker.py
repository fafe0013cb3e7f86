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
from bouquet.server.run.torch_worker import check_settings, initial_parameters, starting_point
from bouquet.server.run_folder import START

NOISY = """
from torch import nn

def make(input_shape, num_classes):
    print("a factory that talks")
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, num_classes))
"""

PLAIN = load_settings(None, [])


def test_the_initial_model_is_the_one_that_devices_have(tmp_path, monkeypatch, capfd):
    (tmp_path / "noisy.py").write_text(NOISY)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = load_settings(None, ["model.name=noisy:make", "run.seed=3"])
    arrays, parameters = initial_parameters(settings)
    model = initial_model(settings)
    assert parameters == parameter_names(model)
    state = model.state_dict()
    assert list(arrays) == list(state)
    for name, array in arrays.items():
        assert array.dtype == state[name].numpy().dtype
        np.testing.assert_array_equal(array, state[name].numpy())
    assert "a factory that talks" in capfd.readouterr().err


def test_what_is_wrong_is_said_here():
    with pytest.raises(BouquetError, match="nowhere"):
        check_settings(load_settings(None, ["model.name=nowhere:make"]))


def test_the_model_that_the_check_made_is_taken_and_pytorch_is_asked_once(monkeypatch):
    asked, ask = [], torch_worker._ask
    monkeypatch.setattr(torch_worker, "_ask", lambda what, *more: asked.append(what) or ask(what, *more))
    given = ["model.name=cnn-batchnorm", "run.seed=3", "strategy.name=dc-pfl", "strategy.slow_ratio=0.8"]
    settings = load_settings(None, [*given, "strategy.fixed_gamma=0.3"])
    begun = starting_point(settings, None, check_settings(settings).made)
    assert asked == ["check"]
    assert isinstance(begun, PlainStart)
    arrays, parameters = torch_worker._answer(settings, "initial")  # what another process would say
    assert begun.parameters == parameters
    assert [*begun.arrays] == [*arrays]
    for name, array in arrays.items():
        assert begun.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(begun.arrays[name], array)


def test_a_check_makes_no_model_where_the_seed_does_not_say_it_all(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_worker, "_ask", lambda what, *more: torch_worker._answer(more[0], what, *more[1:]))
    assert check_settings(load_settings(None, ['model.frozen=["conv1"]', "model.name=cnn-dcpfl"])).made is None
    assert check_settings(PLAIN, tmp_path).made is None


def test_what_a_run_started_from_is_taken_in_place_of_what_the_seed_says(tmp_path, monkeypatch):
    kept = SimpleNamespace(starting_point=lambda settings, resumed: ("kept", resumed))
    monkeypatch.setitem(sys.modules, "bouquet.server.initial_model.torch_model", kept)
    monkeypatch.setattr("bouquet.server.initial_model.torch_model", kept, raising=False)
    (tmp_path / START).write_text("{}")
    assert starting_point(PLAIN, tmp_path) == ("kept", tmp_path)
    weights = load_settings(None, ["model.weights=file.pt"])
    assert starting_point(weights, None) == ("kept", None)


def test_a_server_that_waits_has_loaded_neither_pytorch_nor_matplotlib():
    program = (
        "import sys, bouquet.federation.serve, bouquet.federation.run, bouquet.monitor.round_table\n"
        "import bouquet.server.app, bouquet.server.run.loop\n"
        "print(*{'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
