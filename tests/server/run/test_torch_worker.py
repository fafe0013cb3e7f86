"""What a server asks of PyTorch, in a process that ends, and that it does without otherwise."""

import subprocess
import sys

import numpy as np
import pytest

from common.errors import BouquetError
from common.model.build import initial_model, parameter_names, state_vector
from common.settings import Settings, load_settings
from server.initial_model.seed_model import PlainStart
from server.run import torch_worker
from server.run.torch_worker import check_settings, initial_parameters, starting_point
from server.run_folder import MADE

NOISY = """
from torch import nn

def make(input_shape, num_classes):
    print("a factory that talks")
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, num_classes))
"""


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
    settings = load_settings(None, [])
    assert check_settings(settings).model_bytes == 4 * state_vector(initial_model(settings))[0].dim
    with pytest.raises(BouquetError, match="nowhere"):
        check_settings(load_settings(None, ["model.name=nowhere:make"]))


@pytest.fixture
def asked(monkeypatch):
    """What PyTorch was asked for, each time in a process that starts with it."""
    asked, ask = [], torch_worker._ask
    monkeypatch.setattr(torch_worker, "_ask", lambda what, *more: asked.append(what) or ask(what, *more))
    return asked


def is_of(start, settings):
    assert isinstance(start, PlainStart)
    arrays, parameters = initial_parameters(settings)
    assert start.parameters == parameters
    assert [*start.arrays] == [*arrays]
    for name, array in arrays.items():
        assert start.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(start.arrays[name], array)
    return True


def test_the_model_that_the_check_made_is_taken_once_and_for_its_settings_alone(tmp_path, asked):
    given = ["model.name=cnn-batchnorm", "run.seed=3", "strategy.name=dc-pfl", "strategy.slow_ratio=0.8"]
    settings = load_settings(None, [*given, "strategy.fixed_gamma=0.3"])
    checked = check_settings(settings)
    checked.hand_on(tmp_path / "run")
    assert checked.made == b""
    # What the server's section says is not the same in each start of a run.
    given = settings.with_overrides({"server.wait_for_clients": 7}).to_run_config()
    begun = starting_point(Settings.from_run_config(given), tmp_path / "run", resumed=True)
    assert asked == ["check"]
    assert is_of(begun, settings)
    assert [*(tmp_path / "run").iterdir()] == []
    asked.clear()
    check_settings(settings).hand_on(tmp_path / "run")
    other = settings.with_overrides({"run.seed": 4})
    assert is_of(starting_point(other, tmp_path / "run", resumed=False), other)
    assert asked[:2] == ["check", "initial"]


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:900])])
def test_a_model_that_cannot_be_read_is_made_anew(tmp_path, damage):
    settings = load_settings(None, [])
    check_settings(settings).hand_on(tmp_path)
    damage(tmp_path / MADE)
    assert is_of(starting_point(settings, tmp_path, resumed=False), settings)


def test_nothing_is_handed_on_where_the_seed_does_not_say_it_all_or_there_is_no_room(tmp_path):
    frozen = load_settings(None, ['model.frozen=["conv1"]', "model.name=cnn-dcpfl"])
    assert check_settings(frozen).made == b""
    (tmp_path / "file").write_text("")
    checked = check_settings(load_settings(None, []))
    checked.hand_on(tmp_path / "file")
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_a_server_that_waits_has_loaded_neither_pytorch_nor_matplotlib():
    program = (
        "import sys, bouquet.federation.serve, bouquet.federation.run, bouquet.monitor.round_table\n"
        "import server.app, server.run.loop\n"
        "print(*{'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
