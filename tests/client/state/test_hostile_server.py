"""What a server can make a device keep: the device's own ClientApp, sent whatever a server may send."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from bouquet.client.app import make_client_app
from bouquet.client.state.device_state import PERSONAL, DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.compression.delta import pack_model
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model.freezing import frozen_names
from bouquet.common.protocol import ARRAYS, Backbone, Encoder, Instruction, Payload
from bouquet.common.protocol.compressed import Packing
from bouquet.common.settings import load_settings
from bouquet.common.settings.settings import AS_JSON
from bouquet.experiments.simulation.inline_grid import InlineGrid

InlineGrid({})  # gives Flower's Message its sender
OWN = ["data.dataset=own", 'data.classes=["healthy", "rust"]', "data.input_shape=[1, 2, 2]", "train.local_epochs=1"]
MOST_FILES = 60
MOST_BYTES = 2_000_000


def settings(*changes):
    return load_settings(None, [*OWN, "model.hidden=[4]", *changes])


@pytest.fixture
def device(tmp_path):
    """A real device that is sent messages; ``files()`` are those of its state folder, and their bytes."""
    x = np.random.default_rng(0).normal(size=(20, 1, 2, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(20) % 2)
    state = tmp_path / "state"
    config = {"data": str(tmp_path / "data.npz"), "state-dir": str(state), "name": "garden-pi"}
    app = make_client_app()

    def send(run, round_=1, own=None, config_of_message=None, backbone=None, start=0.0, flower_run=1):
        own = own or settings()
        layout, vector = state_vector(initial_model(own))
        instruction = Instruction({ARRAYS: Payload(vector + np.float32(start))}, config=config_of_message or {})
        content = Encoder(layout).content(instruction, round_, run, {}, backbone=backbone)
        return deliver(content, own, flower_run)

    def deliver(content, own, flower_run=1):
        context = Context(flower_run, 2, config, RecordDict(), {AS_JSON: own.model_dump_json()})
        return app(Message(content, dst_node_id=2, message_type="train"), context)

    def files():
        found = [path for path in state.rglob("*") if path.is_file()]
        return len(found), sum(path.stat().st_size for path in found)

    return SimpleNamespace(send=send, deliver=deliver, files=files, folder=state)


def attacks(number):
    """What a hostile server does in its message of this number, of each kind one."""
    yield {"run": f"run {number}"}
    yield {"run": "../" * number + "evil"}
    yield {"run": "x" * 5_000 + str(number), "round_": 10**6 + number}
    yield {"run": "", "flower_run": number + 2}
    yield {"run": "same", "round_": number}
    yield {"run": "same", "round_": -number}
    yield {"run": "same", "round_": 10**7 + number}
    yield {"run": "same", "round_": 10**15 + number}
    yield {"run": f"layout {number}", "own": settings(f"model.hidden=[{number % 7 + 1}, {number % 5 + 1}]")}
    yield {"run": f"classes {number}", "own": settings(f'data.classes=["{"a" * 9_000}", "{number}"]')}
    yield {"run": "seeds", "own": settings(f"run.seed={number}", f"run.name=name-{number}")}
    yield {"run": "parts", "backbone": Backbone(f"{number:x}", {"fc9.weight": np.zeros(3, np.float32)})}


def test_a_server_of_ever_new_runs_names_and_models_fills_no_disk_and_loses_no_model(device):
    for round_ in range(1, 6):
        device.send("home", round_, start=round_)
    home = DeviceState(FolderStore(device.folder))
    kept = {before: home.recall("home", before).slots[PERSONAL] for before in (6, 5, 4)}
    (device.folder / "ledger.json").write_text("of the owner's")
    largest = (0, 0)
    for number in range(8):
        for attack in attacks(number):
            device.send(**attack)
        largest = tuple(map(max, largest, device.files()))
    assert largest[0] < MOST_FILES
    assert largest[1] < MOST_BYTES
    assert (device.folder / "ledger.json").read_text() == "of the owner's"
    for before, model in kept.items():
        now = home.recall("home", before)
        assert now.round == before - 1
        assert all(np.array_equal(now.slots[PERSONAL][name], array) for name, array in model.items())
    assert not device.send("home", 6).has_error()
    assert home.latest().run == "home"


def test_a_server_of_ever_new_parts_that_stay_has_few_of_them_kept(device):
    net = ["model.name=cnn-batchnorm", "model.hidden=[]", "model.frozen=all-but-head", "data.input_shape=[1, 8, 8]"]
    own = settings(*net)
    x = np.random.default_rng(0).normal(size=(20, 1, 8, 8)).astype(np.float32)
    np.savez(device.folder.parent / "data.npz", x=x, y=np.arange(20) % 2)
    model = initial_model(own)
    names = frozen_names(model)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name in names}
    for number in range(15):
        reply = device.send("run", number + 1, own, backbone=Backbone(f"{number:032x}", arrays))
        assert not reply.has_error(), reply.error
        device.send(f"{number}", 1, own, backbone=Backbone(f"{number:032x}", arrays))
        device.send("run", number + 1, own, {"procedure": "none"}, Backbone(f"{number + 99:x}", arrays))
        for digest in (f"zz{number}", f"../{number}", "٣" * (number + 1)):
            assert device.send("run", number + 1, own, backbone=Backbone(digest, arrays)).has_error()
    assert len([*device.folder.rglob("backbone-*")]) <= 8


def test_a_server_that_names_all_its_models_as_still_needed_has_few_of_them_kept(device):
    own = settings()
    layout, vector = state_vector(initial_model(own))
    rng, copies = np.random.default_rng(0), []
    answered = 0
    for number in range(15):
        # Each message holds differences to all models that were sent before.
        models = {}
        for place, base in enumerate(copies):
            packed, _ = pack_model(layout, vector - place - 0.3, layout.layers, base, "int8", rng)
            models[f"model-{number}-{place}"] = packed
        packed, copy = pack_model(layout, vector + number, layout.layers, None, "float32", rng)
        copies.append(copy)
        models[ARRAYS] = packed
        packing = Packing(models, "int8", 0, tuple(copy.digest for copy in copies))
        content = Encoder(layout).content(Instruction({}), number + 1, "run", {}, packing)
        answered += not device.deliver(content, own).has_error()
    assert 3 < answered < 15  # what it no longer holds, a server has to send whole
    assert len([*device.folder.rglob("copies-*")]) <= 4
    assert device.files()[0] < MOST_FILES
