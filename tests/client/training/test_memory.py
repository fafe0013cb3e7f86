"""Mini-batches that cannot fit are refused before they are tried."""

import pytest
import torch
from torch import nn

import bouquet.common.system.resources
from bouquet.client.training import memory
from bouquet.client.training.memory import check_fits, kept_bytes
from bouquet.common.errors import BouquetError
from bouquet.common.model.freezing import freeze
from bouquet.common.system.resources import available_bytes, peak_bytes, reset_peak

SAMPLE = torch.zeros(1, 3, 64, 64)


def net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1), nn.Flatten(), nn.Linear(8192, 5)
    )


def test_what_a_step_keeps_by_hand():
    """Outputs of 4 and 2 planes of 64 × 64 and 5 logits, 4 bytes each; frozen layers keep nothing."""
    assert kept_bytes(net(), SAMPLE) == 4 * (4 * 4096 + 2 * 4096 + 5)
    assert kept_bytes(freeze(net(), ["0", "2"]), SAMPLE) == 4 * 5
    assert kept_bytes(freeze(net(), ["2"]), SAMPLE) == kept_bytes(net(), SAMPLE)  # the gradient passes through


def test_a_mini_batch_that_cannot_fit(monkeypatch):
    each = kept_bytes(net(), SAMPLE)
    monkeypatch.setattr(memory, "available_bytes", lambda swap: 20 * each)
    x = SAMPLE.repeat(64, 1, 1, 1)
    check_fits(net(), x, 16)
    check_fits(net(), x[:16], 32)  # no more samples than there are
    with pytest.raises(
        BouquetError, match=r"mini-batch of 32 needs more than 3 MB .*lower train\.batch_size \(to 10 or"
    ):
        check_fits(net(), x, 32)
    check_fits(nn.Linear(4, 2), torch.zeros(64, 4), 32)  # small samples are not asked about
    monkeypatch.setattr(memory, "available_bytes", lambda swap: None)
    check_fits(net(), x, 32)


def test_what_the_machine_has_is_read_from_its_list(tmp_path, monkeypatch):
    assert available_bytes() > 0
    listed = tmp_path / "meminfo"
    listed.write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 2 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(bouquet.common.system.resources, "_MACHINE", listed)
    monkeypatch.setattr(bouquet.common.system.resources, "_GROUP", tmp_path / "none")
    assert (available_bytes(), available_bytes(swap=True)) == (5 * 1024, 7 * 1024)
    listed.unlink()
    assert available_bytes() is None


def test_the_limit_of_a_container_or_a_service_counts(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemAvailable: 900 kB\nSwapFree: 50 kB\n")
    (tmp_path / "cgroup").write_text("0::/system.slice/bouquet.service\n")
    group = tmp_path / "groups" / "system.slice" / "bouquet.service"
    group.mkdir(parents=True)
    for name, text in {
        "memory.max": "600000\n",
        "memory.current": "200000\n",
        "memory.stat": "inactive_file 50000\n",
    }.items():
        (group / name).write_text(text)
    (group.parent / "memory.max").write_text("max\n")
    for name, file in {"_MACHINE": "meminfo", "_GROUP": "cgroup", "_GROUPS": "groups"}.items():
        monkeypatch.setattr(bouquet.common.system.resources, name, tmp_path / file)
    assert (available_bytes(), available_bytes(swap=True)) == (450_000, 450_000 + 50 * 1024)
    (group / "memory.max").write_text("max\n")
    assert available_bytes() == 900 * 1024


def test_a_peak_comes_back_down():
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    high = peak_bytes()
    del block
    reset_peak()
    assert 0 < peak_bytes() < high
