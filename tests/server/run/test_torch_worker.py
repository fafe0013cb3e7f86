"""What a server asks of PyTorch, in a process that ends, and that it does without otherwise."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from common.errors import BouquetError
from common.model.build import initial_model, parameter_names, state_vector
from common.settings import Settings, load_settings
from server.initial_model.seed_model import PlainStart
from server.run import torch_worker
from server.run.torch_worker import Checked, check_settings, initial_parameters, starting_point
from server.run_folder import MADE, START

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


def test_the_model_that_the_check_made_is_taken_once(tmp_path, asked):
    given = ["model.name=cnn-batchnorm", "run.seed=3", "strategy.name=dc-pfl", "strategy.slow_ratio=0.8"]
    settings = load_settings(None, [*given, "strategy.fixed_gamma=0.3"])
    checked = check_settings(settings)
    checked.hand_on(tmp_path / "run")
    assert checked.made == b""
    # What the server's section says is not the same in each start of a run.
    given = settings.with_overrides({"server.wait_for_clients": 7}).to_run_config()
    begun = starting_point(Settings.from_run_config(given), tmp_path / "run", resumed=False)
    assert asked == ["check"]
    assert is_of(begun, settings)
    assert [*(tmp_path / "run").iterdir()] == []


@pytest.fixture
def anew(monkeypatch):
    """The names of a model that is made anew."""
    monkeypatch.setattr(torch_worker, "initial_parameters", lambda settings: ({"anew": np.ones(1)}, frozenset()))
    return ["anew"]


def made_for(settings):
    return torch_worker._packed(settings, {"a": np.ones(2, np.float32)}, frozenset("a"))


@pytest.mark.parametrize("other", ["run.seed=4", "model.name=cnn-batchnorm", "data.dataset=uci-har"])
def test_a_model_for_other_settings_is_not_taken_and_goes(tmp_path, anew, other):
    (tmp_path / MADE).write_bytes(made_for(PLAIN))
    assert [*starting_point(load_settings(None, [other]), tmp_path, resumed=False).arrays] == anew
    assert not (tmp_path / MADE).exists()


def test_a_run_that_goes_on_takes_none_which_may_be_of_another_release(tmp_path, anew):
    (tmp_path / MADE).write_bytes(made_for(PLAIN))
    assert [*starting_point(PLAIN, tmp_path, resumed=True).arrays] == anew
    assert not (tmp_path / MADE).exists()
    (tmp_path / MADE).write_bytes(made_for(PLAIN))
    Checked(0, b"").hand_on(tmp_path)
    assert not (tmp_path / MADE).exists()


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


NAMES = np.array(json.dumps([PLAIN.fingerprint(), ["a"], ["a"]]))
DAMAGED = {
    "objects": npz(names=NAMES, arr_0=np.array([{}], object)),
    "a missing array": npz(names=NAMES),
    "a number for names": npz(names=np.array("3")),
    "nothing": b"",
    "half of it": made_for(PLAIN)[:400],
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_model_that_cannot_be_read_is_made_anew(tmp_path, anew, content):
    (tmp_path / MADE).write_bytes(content)
    assert [*starting_point(PLAIN, tmp_path, resumed=False).arrays] == anew
    assert not (tmp_path / MADE).exists()


def test_what_a_run_started_from_is_taken_in_place_of_what_the_seed_says(tmp_path, monkeypatch):
    kept = SimpleNamespace(starting_point=lambda settings, resumed: ("kept", resumed))
    monkeypatch.setitem(sys.modules, "server.initial_model.torch_model", kept)
    monkeypatch.setattr("server.initial_model.torch_model", kept, raising=False)
    (tmp_path / START).write_text("{}")
    assert starting_point(PLAIN, tmp_path, resumed=True) == ("kept", tmp_path)
    weights = load_settings(None, ["model.weights=file.pt"])
    assert starting_point(weights, tmp_path, resumed=False) == ("kept", None)


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
