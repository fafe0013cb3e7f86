"""A budget of privacy counts all that was ever released, whatever breaks."""

import multiprocessing
import os

import numpy as np
import pytest

from bouquet.client.rounds.session import Session
from bouquet.client.uploads import privacy
from bouquet.client.uploads.privacy_budget import Budget
from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.privacy_accounting import epsilon_spent
from bouquet.common.protocol.error_replies import owners_refusal
from tests.helpers.scripted_server import Device, samples

OFF = {"privacy.clip_norm": None}


BUDGET = {"most-epsilon": 16.0}


def test_a_budget_holds_over_runs_and_restarts(tmp_path):
    device = Device(tmp_path, BUDGET, samples())
    refused = None
    for number in range(10):
        reply = device.ask(run=f"run-{number}", round_=1 + number % 3)
        if reply.has_error():
            refused = reply
            break
    allowed = next(n for n in range(1, 100) if epsilon_spent(n + 1, 1.0) > 16)
    assert number == allowed == 2
    spent, more = (f"{epsilon_spent(n, 1.0):.4g}" for n in (allowed, allowed + 1))
    assert f"(--most-epsilon, δ = 1e-05); {spent} is spent" in owners_refusal(refused)
    assert f"would make it {more}." in owners_refusal(refused)
    # Before it is sent a model, too; a run with more noise can go on, one with less cannot.
    assert owners_refusal(device.ask(kind=protocol.IDENTIFY)) == owners_refusal(refused)
    assert owners_refusal(device.ask(**{"privacy.noise_multiplier": 0.5}))
    assert device.ask(**{"privacy.noise_multiplier": 10.0}).has_content()
    assert device.ask(kind="evaluate").has_content()  # which uploads nothing


def test_different_noise_composes_exactly(tmp_path):
    """Two releases of μ = 1 and one of μ = √2 are one of μ = 2."""
    spent = Budget(tmp_path, 100.0)
    for noise in (2.0, 2.0, np.sqrt(2.0)):
        spent.spend(float(noise))
    assert f"ε = {epsilon_spent(1, 1.0):.4g} of 100 spent" in spent.told()


def test_what_was_released_without_a_limit_counts_when_there_is_one(tmp_path):
    Device(tmp_path, (), samples()).ask(run="before")
    assert owners_refusal(Device(tmp_path, {"most-epsilon": 12.0}, samples()).ask())


def test_a_crash_after_the_count_has_spent(tmp_path, monkeypatch):
    device = Device(tmp_path, {"most-epsilon": 12.0}, samples())
    with monkeypatch.context() as patch:
        patch.setattr(privacy.PrivateUploads, "_base", None)  # dies in the middle of a release
        with pytest.raises(TypeError):
            Session.reply.__globals__["PrivateUploads"].release(_uploads(device), np.zeros(1), (), None, np.zeros(1))
    assert owners_refusal(device.ask())


def _uploads(device):
    from bouquet.client.state.device_state import DeviceState
    from bouquet.client.state.store import FolderStore
    from bouquet.common.settings.sections import PrivacySettings

    state = device.folder / "state"
    return privacy.PrivateUploads(
        PrivacySettings(clip_norm=1.0),
        DeviceState(FolderStore(state)),
        device.model()[0],
        "r",
        None,
        Budget(state, 12.0),
    )


def test_messages_at_the_same_time_are_all_counted(tmp_path):
    together = multiprocessing.get_context("fork")
    workers = [together.Process(target=_spend, args=(tmp_path, 5)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert f"ε = {epsilon_spent(20, 1.0):.4g} spent" in Budget(tmp_path).told()


def _spend(folder, times):
    for _ in range(times):
        Budget(folder).spend(1.0)
    os._exit(0)


def test_a_damaged_count_is_not_taken_for_none(tmp_path):
    Budget(tmp_path).spend(1.0)
    file = tmp_path / "privacy-spent"
    file.write_bytes(file.read_bytes().replace(b"4", b"3", 1))
    with pytest.raises(BouquetError, match="is damaged; delete it to count anew"):
        Budget(tmp_path, 10.0).check(1.0)


def test_a_budget_needs_a_folder_to_count_in(tmp_path):
    device = Device(tmp_path, BUDGET, samples())
    del device.config["state-dir"]
    assert "counts in a state folder" in owners_refusal(device.ask())


OFF = {"privacy.clip_norm": None}


def test_without_noise_or_with_scores_a_budget_allows_nothing(tmp_path):
    device = Device(tmp_path, BUDGET, samples())
    for changes in (OFF, {"privacy.scores": "send"}, {"privacy.noise_multiplier": 0.0}):
        assert "--most-epsilon" in owners_refusal(device.ask(**changes))
        assert "--most-epsilon" in owners_refusal(device.ask(kind=protocol.IDENTIFY, **changes))
