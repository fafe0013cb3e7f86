import numpy as np
import pytest

from common.errors import BouquetError
from common.layout import ParameterLayout
from server.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

LAYOUT = ParameterLayout.of({"fc.weight": np.zeros((1, 2), dtype=np.float32)})


def checkpoint(round_, fingerprint="f"):
    arrays = {"centers": np.full((1, 2), round_, dtype=np.float32)}
    return Checkpoint(round_, "run", fingerprint, "fesem", LAYOUT, arrays, {"assignment": {"a": 0}})


def test_the_latest_is_loaded_as_it_was_written(tmp_path):
    assert load_checkpoint(tmp_path, "f") is None
    for round_ in (1, 2, 10):
        save_checkpoint(tmp_path, checkpoint(round_), keep=2)
    loaded = load_checkpoint(tmp_path, "f")
    assert (loaded.round, loaded.run_id, loaded.layout, loaded.state) == (10, "run", LAYOUT, {"assignment": {"a": 0}})
    assert loaded.arrays["centers"].tolist() == [[10, 10]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000002", "round-000010"]


def test_one_of_other_settings_is_refused(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), keep=1)
    with pytest.raises(BouquetError, match="written with other settings"):
        load_checkpoint(tmp_path, "other")


def test_a_damaged_one_is_named(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(1), keep=1)
    (path / "state.safetensors").write_bytes(b"cut off")
    with pytest.raises(BouquetError, match="round-000001 is damaged"):
        load_checkpoint(tmp_path, "f")


def test_a_half_written_one_does_not_count(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(1), keep=2)

    def power_cut(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("server.checkpoint.os.replace", power_cut)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, checkpoint(2), keep=2)
    assert load_checkpoint(tmp_path, "f").round == 1
