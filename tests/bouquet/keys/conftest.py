import shutil

import pytest

from bouquet.keys.store import init_keys


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation's keys, made once."""
    folder = tmp_path_factory.mktemp("made") / "keys"
    init_keys(folder, ["server.local", "192.168.1.10"])
    return folder


@pytest.fixture
def keys(tmp_path, made):
    return shutil.copytree(made, tmp_path / "keys")
