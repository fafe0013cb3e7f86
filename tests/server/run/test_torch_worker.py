"""What a server asks of PyTorch, in a process that ends, and that it does without otherwise."""

import subprocess
import sys

import numpy as np
import pytest

from common.errors import BouquetError
from common.model.build import initial_model, parameter_names, state_vector
from common.settings import load_settings
from server.run.torch_worker import check_settings, initial_parameters

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
    assert check_settings(settings) == 4 * state_vector(initial_model(settings))[0].dim
    with pytest.raises(BouquetError, match="nowhere"):
        check_settings(load_settings(None, ["model.name=nowhere:make"]))


def test_a_server_that_waits_has_loaded_neither_pytorch_nor_matplotlib():
    program = (
        "import sys, bouquet.federation.serve, bouquet.federation.run, bouquet.monitor.round_table\n"
        "import server.app, server.run.loop\n"
        "print(*{'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
