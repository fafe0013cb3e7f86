import os
import shutil
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from bouquet.strategies.baselines.fedavg import FedAvg
from bouquet.strategies.fesem.strategy import FeSEM

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


def test_nobody_else_reads_it_also_where_one_of_before_was_open(tmp_path):
    folder, old = tmp_path / "checkpoint", os.umask(0o022)
    try:
        (folder / "round-000001").mkdir(parents=True)
        save_checkpoint(folder, checkpoint(2), keep=2)
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}


def test_a_copy_beside_is_neither_read_nor_dropped(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), keep=1)
    shutil.copytree(tmp_path / "round-000001", tmp_path / "round-000009-of-monday")
    for round_ in (2, 3):
        save_checkpoint(tmp_path, checkpoint(round_), keep=1)
    assert load_checkpoint(tmp_path, "f").round == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000003", "round-000009-of-monday"]


def test_one_of_other_settings_is_refused(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1), keep=1)
    with pytest.raises(BouquetError, match="written with other settings"):
        load_checkpoint(tmp_path, "other")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


DAMAGE = {
    "cut off": lambda path: (path / "state.safetensors").write_bytes(b"cut off"),
    "a bit of an array": lambda path: flip_a_bit(path / "state.safetensors"),
    "a digit of the rest": lambda path: (path / "state.json").write_text(
        (path / "state.json").read_text().replace('"round": 2', '"round": 3')
    ),
    "no arrays": lambda path: (path / "state.safetensors").unlink(),
    "no sums": lambda path: (path / "SHA256SUMS").unlink(),
    "empty sums": lambda path: (path / "SHA256SUMS").write_bytes(b""),
    "empty": lambda path: [file.write_bytes(b"") for file in path.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_passed_over_with_a_message_for_the_one_before(tmp_path, damage, caplog):
    save_checkpoint(tmp_path, checkpoint(1), keep=2)
    DAMAGE[damage](save_checkpoint(tmp_path, checkpoint(2), keep=2))
    assert load_checkpoint(tmp_path, "f").round == 1
    assert "round-000002 is damaged" in caplog.text
    DAMAGE["cut off"](tmp_path / "round-000001")
    with pytest.raises(BouquetError, match=r"No checkpoint in .* is whole: round-000002 .* round-000001"):
        load_checkpoint(tmp_path, "f")


def test_the_sums_are_those_of_coreutils(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(1), keep=1)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=path, check=True, capture_output=True)


def test_one_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bouquet.server.run.checkpoint.VERSION", 99)
    save_checkpoint(tmp_path, checkpoint(1), keep=1)
    monkeypatch.undo()
    with pytest.raises(BouquetError, match="has version 99; this release of Bouquet reads version 1"):
        load_checkpoint(tmp_path, "f")


def test_a_half_written_one_does_not_count(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, checkpoint(1), keep=2)

    def power_cut(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("bouquet.server.run.checkpoint.os.replace", power_cut)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, checkpoint(2), keep=2)
    assert load_checkpoint(tmp_path, "f").round == 1


def test_large_integers_survive_aggregation_the_checkpoint_and_the_record(tmp_path, play):
    """The mean of clients with equal integers, above 2^24 and without axes, is what they sent."""
    tensors = {
        "fc.weight": np.zeros((1, 2), dtype=np.float32),
        "norm.num_batches_tracked": np.array(2**40 + 1),
        "table": np.array([2**24 + 1, -(2**31)], dtype=np.int32),
    }
    layout = ParameterLayout.of(tensors)
    row = layout.flatten(tensors)

    def client(message):
        examples = 10 + message.metadata.dst_node_id
        return protocol.reply(message, "", {"num-examples": examples}, protocol.to_record(layout, row))

    settings = parse_settings({}, {})
    for make in (FedAvg, lambda: FeSEM(num_clusters=1)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        strategy = make()
        play(strategy, InlineGrid({1: client, 2: client}), range(1, 3), protocol.to_record(layout, np.zeros_like(row)))
        record = RunRecord(folder)
        record.create(settings)
        arrays, state = strategy.checkpoint()
        written = Checkpoint(2, "run", "f", "any", strategy.layout, arrays, state)
        save_checkpoint(folder / "checkpoint", written, keep=1)
        loaded = load_checkpoint(folder / "checkpoint", "f")
        resumed = make()
        resumed.restore(loaded.layout, loaded.arrays, loaded.state)
        assert np.array_equal(resumed.centers(resumed.state), [row])
        record.finish({}, resumed)
        found = load_file(folder / "models" / "cluster-0.safetensors")
        for name, array in tensors.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert (found[name] == array).all()
