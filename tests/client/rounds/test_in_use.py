"""A real device's model in use: never replaced by a worse one, taken back by its owner, kept over runs."""

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

from bouquet.cli import app as commands
from bouquet.client.app import make_client_app
from bouquet.client.context import own_data
from bouquet.client.rounds.in_use import InUse, is_clearly_worse
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model_selection import HELD, IN_USE, VOTE
from bouquet.common.protocol import ARRAYS, CLIENT, Encoder, Instruction, Payload
from bouquet.common.protocol.records import config_of
from bouquet.common.settings import load_settings
from bouquet.common.settings.settings import AS_JSON
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.models.kept import device_model
from bouquet.strategies.base import reply_checks
from tests.helpers.two_classes import settings_of

InlineGrid({})  # gives Flower's Message its sender
STILL = {"train.learning_rate": 1e-12, "personal.serve": "own"}


class Device:
    """With two classes that a threshold tells apart; ``right`` tells them, ``wrong`` tells the opposite."""

    data_file = "data.npz"

    def __init__(self, folder, samples):
        (folder / "run.toml").write_text(settings_of("run", 9))
        self.settings = load_settings(folder / "run.toml").with_overrides(STILL)
        self.layout, initial = state_vector(initial_model(self.settings))
        self.folder, self.client_app = folder, make_client_app()
        y = np.arange(samples) % 2
        x = np.random.default_rng(0).normal(size=(samples, 1, 2, 2)) + np.where(y, 3.0, -3.0)[:, None, None, None]
        self.data = {"x": x.astype(np.float32), "y": y}
        self.holds(self.data["y"])
        self.right = {name: np.zeros_like(array) for name, array in self.layout.unflatten(initial).items()}
        first, _, last, _ = self.right
        self.right[first][0], self.right[first][1] = 1, -1  # two hidden units: the sum of the values, and its opposite
        self.right[last][:] = [[-1, 1, 0, 0], [1, -1, 0, 0]]
        self.wrong = {**self.right, last: -self.right[last]}

    def holds(self, y):
        """Its labels are these from now on; each message of a real device is a process of its own."""
        own_data.cache_clear()
        np.savez(self.folder / "data.npz", x=self.data["x"], y=y)

    def round(self, number, model, kind="train", run="r", **changes):
        """The metrics of its reply, of a round that starts from this model and hardly trains."""
        return reply_checks.read_metrics(self.reply(number, model, kind, run, **changes))

    def reply(self, number, model, kind="train", run="r", told=None, **changes):
        """Its reply; ``told`` is what the server says beside."""
        settings = self.settings.with_overrides(changes)
        instruction = Instruction({ARRAYS: Payload(self.layout.flatten(model))}, config=told or {})
        content = Encoder(self.layout).content(instruction, number, run, {})
        config = {"data": str(self.folder / self.data_file), "state-dir": str(self.folder / "state"), "name": "pi"}
        context = Context(1, 2, config, RecordDict(), {AS_JSON: settings.model_dump_json()})
        return self.client_app(Message(content, dst_node_id=2, message_type=kind), context)

    def in_use(self):
        """Where what ``bouquet predict`` answers with comes from, and whether it is right."""
        kept = device_model(self.folder / "state")
        right = kept.probabilities(self.data["x"]).argmax(1) == self.data["y"]
        return kept.origin.rpartition(" ")[2], right.mean() > 0.9


@pytest.fixture
def device(tmp_path):
    return Device(tmp_path, 100)


def test_a_worse_model_does_not_take_the_place_of_the_one_in_use(device, capsys):
    assert IN_USE not in device.round(1, device.right)
    told = device.round(2, device.wrong)
    assert (told[IN_USE], told["accuracy-own"], told["accuracy-trained"]) == (1, 1.0, 0.0)
    assert "serves its model of round 1, which stays in use" in capsys.readouterr().out
    assert device.in_use() == ("1", True)
    assert device.round(2, device.wrong, "evaluate")[IN_USE] == 1
    assert IN_USE not in device.round(3, device.right)  # as good, and newer
    assert device.in_use() == ("3", True)


def test_the_first_model_is_tested_by_nothing_that_it_could_be_compared_with(device, monkeypatch):
    monkeypatch.setattr(InUse, "_outputs", lambda *_: pytest.fail("a forward pass for no comparison"))
    device.round(1, device.right)
    assert device.in_use() == ("1", True)


def test_judged_on_its_newest_data(device):
    device.round(1, device.right)
    device.holds(1 - device.data["y"])  # what was right is wrong now
    assert IN_USE not in device.round(2, device.wrong)
    assert device.in_use() == ("2", False)


def test_with_few_samples_each_new_model_is_in_use(tmp_path):
    device = Device(tmp_path, 20)
    device.round(1, device.right)
    assert IN_USE not in device.round(2, device.wrong)  # by four samples
    assert device.in_use() == ("2", False)


def test_with_few_samples_a_model_is_in_use_once_it_has_held_on_other_devices(tmp_path):
    device = Device(tmp_path, 20)

    def after(number, model, held, **more):
        found = device.reply(number, model, told={HELD: held}, **more)
        return config_of(found.content, CLIENT).get(VOTE), reply_checks.read_metrics(found).get(IN_USE)

    assert after(1, device.right, 0) == (None, None)  # the first one: better than none
    assert after(2, device.wrong, 0) == (1, 1)
    assert after(3, device.right, 0) == (0, 1)  # the second has not held, and the third is to show it
    assert device.in_use() == ("1", True)
    assert after(4, device.wrong, 3) == (1, 3)
    assert after(5, device.wrong, 3) == (1, 3)  # the fourth has not held
    assert after(6, device.right, 5) == (0, 5)  # others say so; what it made is as good as what was in use
    assert device.in_use() == ("5", False)
    CliRunner().invoke(commands, ["rollback", "--state-dir", str(tmp_path / "state")])
    assert after(7, device.wrong, 6) == (1, 3)  # no better than what was taken back to
    assert after(7, device.right, 6, kind="evaluate")[1] == 3


def test_with_many_samples_a_device_judges_and_says_what_it_finds(device):
    device.round(1, device.right)
    found = device.reply(2, device.wrong, told={HELD: 0})
    assert config_of(found.content, CLIENT)[VOTE] == 1
    assert VOTE not in config_of(device.reply(3, device.right).content, CLIENT)  # who is not asked says nothing
    assert device.in_use() == ("3", True)


@pytest.mark.parametrize(
    ("more", "less", "is_it"), [(4, 0, False), (5, 0, True), (7, 2, False), (12, 2, True), (0, 9, False)]
)
def test_worse_is_beyond_chance(more, less, is_it):
    """`more` - `less` samples against 2 √(`more` + `less`)."""
    newer = torch.tensor([1.0] * more + [0.0] * (less + 30))
    older = torch.tensor([0.0] * more + [1.0] * less + [0.0] * 30)
    assert is_clearly_worse(newer, older) is is_it
    assert is_clearly_worse(torch.full_like(older, torch.nan), older)
    assert not is_clearly_worse(newer, torch.full_like(older, torch.inf))


def test_a_new_run_begins_with_the_model_of_the_last_one_in_use(device):
    device.round(8, device.right)
    assert device.round(1, device.wrong, run="next")[IN_USE] == 0
    assert device.in_use() == ("8", True)
    assert IN_USE not in device.round(1, device.wrong, run="wider", **{"model.hidden": (4,), "model.norm": "group"})
    assert device.in_use() == ("1", False)  # another model cannot be held against it


def test_a_rollback_holds_until_a_model_is_better_than_both(device):
    none = CliRunner().invoke(commands, ["rollback", "--state-dir", str(device.folder / "state")])
    assert "is not there" in str(none.exception)
    half = {**device.right, [*device.right][3]: np.array([0, 1e3], np.float32)}  # one class for all
    for number in (1, 2, 3, 4):
        device.round(number, half)
    rollback = ["rollback", "--state-dir", str(device.folder / "state")]
    assert "in use   the model of round 3 again" in CliRunner().invoke(commands, rollback).output
    assert device.round(5, half)[IN_USE] == 3  # no better
    assert "of round 2 again" in CliRunner().invoke(commands, rollback).output
    assert "no model before the one in use" in str(CliRunner().invoke(commands, rollback).exception)
    assert device.round(6, half)[IN_USE] == 2
    assert device.in_use()[0] == "2"
    assert IN_USE not in device.round(7, device.right)
    assert device.in_use() == ("7", True)
    assert IN_USE not in device.round(8, device.right)  # as before
    device.round(1, device.right, run="next")
    assert "the model of round 8 of an earlier run again" in CliRunner().invoke(commands, rollback).output


def test_of_a_table_each_model_is_judged_with_its_own_scaling(tmp_path):
    changes = ["data.classes=[]", "data.input_shape=[]", "task.kind=regression", "model.hidden=[8]"]
    changes += ['table.inputs=["a", "b"]', 'table.targets=["c"]', "train.local_epochs=30", "personal.serve=own"]
    (tmp_path / "run.toml").write_text(settings_of("run", 9))
    device = Device.__new__(Device)
    device.settings = load_settings(tmp_path / "run.toml", changes)
    device.layout, initial = state_vector(initial_model(device.settings))
    device.folder, device.client_app = tmp_path, make_client_app()
    rows = np.random.default_rng(0).normal(size=(120, 2)) * [1, 5] + [0, 10]

    def holds(count):
        own_data.cache_clear()
        (tmp_path / "data.npz").unlink(missing_ok=True)
        lines = [f"{a},{b},{abs(a) + b}" for a, b in rows[:count]]
        (tmp_path / "data.csv").write_text("\n".join(["a,b,c", *lines]))
        return own_data(device.settings, str(tmp_path / "data.csv"))

    before = holds(60)
    device.data_file = "data.csv"
    device.round(1, device.layout.unflatten(initial))
    rows[60:] *= 3
    now = holds(120)
    told = device.round(2, device.layout.unflatten(0 * initial), **STILL)
    assert (told[IN_USE], before.scaling == now.scaling) == (1, False)
    raw = now.test_x.astype(float) * now.scaling.std + now.scaling.mean
    errors = device_model(tmp_path / "state").numbers(raw) - now.scaling.undone(now.test_y)
    assert told["mae-own"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)


def test_what_is_kept_has_a_bound(device):
    for number in range(1, 8):
        device.round(number, device.right)
    state = DeviceState(FolderStore(device.folder / "state"))
    assert [kept.round // 2 for kept in state._all("in-use")] == [7, 6, 5]
