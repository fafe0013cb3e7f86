"""What a server that means ill learns of a device: each is an attack that once went through, or one close to it."""

from functools import cached_property
from itertools import product

import numpy as np
import pytest
from flwr.app import ConfigRecord

from bouquet.client.context import ClientContext
from bouquet.client.rounds.session import Session
from bouquet.client.uploads import privacy
from bouquet.client.uploads.privacy_budget import Budget
from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.privacy_accounting import RELEASES
from bouquet.common.protocol import ARRAYS, Instruction, Payload
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.error_replies import OwnerRefusal, owners_refusal
from bouquet.common.protocol.names import CENTER
from tests.helpers.real_devices import Federation
from tests.helpers.scripted_server import NOISE, Device, said, samples

OFF = {"privacy.clip_norm": None}


def whole(vector, **more):
    return Instruction({ARRAYS: Payload(vector)}, **more)


def uploaded(reply):
    return protocol.from_record(reply.content.array_records[ARRAYS])


def overflowing(layout, initial):
    """A model of three layers that predicts, and whose gradient in the first one overflows where pixels are bright."""
    tensors = {name: np.zeros_like(array) for name, array in layout.unflatten(initial).items()}
    tensors["fc1.weight"][:] = 1e-20
    tensors["fc2.weight"][:] = np.float32(6e19)
    tensors["fc3.weight"][0], tensors["fc3.weight"][1:] = np.float32(8e17), np.float32(-8e17)
    return layout.flatten(tensors)


@pytest.fixture
def without_noise(monkeypatch):
    """Noise of the right shape, and zero: what is under it shows."""
    monkeypatch.setattr(privacy, "gaussian", lambda count, read: np.zeros(count))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_update_that_is_not_finite_is_clipped_to_zero(bad):
    np.testing.assert_array_equal(privacy.clipped(np.array([1.0, bad, 2.0]), 1.0), np.zeros(3))


def test_a_gradient_that_overflows_does_not_show_the_mean_picture(tmp_path, without_noise):
    """Where it overflowed was read off the values that were no numbers: the device's mean picture, at a threshold."""
    own = samples()
    own["x"] *= np.linspace(0, 4, 16, dtype=np.float32).reshape(4, 4)
    device = Device(tmp_path, NOISE, own, **{"model.hidden": [8, 8]})
    layout, initial = device.model()
    bright = overflowing(layout, initial)
    with np.errstate(over="ignore"):
        found = gradient(tmp_path / "open", own, bright)
    assert (
        0 < np.isfinite(found).all(axis=0).mean() < 1
    )  # the attack: some pixels' weights overflow, and others' do not
    reply = device.ask(whole(bright, procedure="feddane"))
    assert all((array == 0).all() for array in uploaded(reply).values())
    assert protocol.about(reply)[RELEASES] == 1  # and it is counted


def gradient(folder, own, model):
    """The first layer's gradient, as it is before it is clipped."""
    device = Device(folder, (), own, **{"model.hidden": [8, 8]})
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            privacy.PrivateUploads, "release", lambda self, trained, *_, **__: seen.append(trained) or trained
        )
        device.ask(whole(model, procedure="feddane"))
    return device.model()[0].unflatten(seen[0])["fc1.weight"]


def test_training_that_diverges_is_told_by_nothing_but_the_devices_own_log(tmp_path, capsys):
    steep = {"learning-rate": 1e30, "max-gradient-norm": 1e30}
    devices = [Device(tmp_path / str(number), NOISE, samples()) for number in range(2)]
    calm, wild = devices[0].ask(), devices[1].ask(config=steep)
    assert said(calm) == said(wild)
    assert all(np.isfinite(array).all() for array in uploaded(wild).values())
    log = capsys.readouterr().out
    assert "Round 1 failed; the server is sent noise alone, and is not told: " in log
    assert "diverged" in log or "not finite" in log


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_question_of_classes_and_shapes_has_one_answer(tmp_path, kind, capsys):
    """Whether a device has samples of a third class was an error, or none."""
    replies = []
    for number, counts in enumerate([(16, 9), (16, 9, 3)]):
        device = Device(tmp_path / str(number), NOISE, samples(counts))
        replies.append(said(device.ask(kind=kind, **{"data.classes": ["healthy", "mildew"]})))
    assert replies[0] == replies[1]
    assert "allow 0 to 1" in capsys.readouterr().out


def test_running_out_of_memory_looks_like_a_round(tmp_path, monkeypatch):
    device = Device(tmp_path, NOISE, samples())
    normal = said(device.ask())

    report = Session.report_start

    def full(session, start):
        if len(session.train_data[1]) > 20:
            raise MemoryError("for so many samples")
        report(session, start)

    monkeypatch.setattr(Session, "report_start", full)
    arrays, metrics, config = said(device.ask())
    assert (arrays, metrics) == normal[:2]
    assert config["client"] == normal[2]["client"] | {RELEASES: 2}


@pytest.mark.parametrize(
    ("procedure", "config"),
    [
        ("standard", {"batch-size": 1, "local-epochs": 1}),
        ("standard", {"batch-size": 0}),
        ("standard", {"local-epochs": 0}),
        ("standard", {"learning-rate": np.nan}),
        ("standard", {"validation-fraction": 0.99}),
        ("per-fedavg", {"adaptation-rate": 1e30, "adaptation-steps": 3}),
        ("per-fedavg", {"adaptation-rate": np.inf, "adaptation-steps": 1}),
        ("ditto", {"learning-rate": 1e20}),
    ],
)
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_whatever_the_server_asks_a_device_without_data_answers_alike(tmp_path, procedure, config, kind):
    replies = []
    for number, own in enumerate((samples(), None)):
        device = Device(tmp_path / str(number), NOISE, own)
        replies.append(said(device.ask(whole(device.model()[1], procedure=procedure), kind=kind, config=config)))
    assert replies[0] == replies[1]
    assert len(replies[0]) == 3  # no error


PRIVATE = ("privacy.clip_norm=0.05", "privacy.noise_multiplier=1.0")


METHODS = {
    "fedavg": (),
    "fedprox": (),
    "fedsgd": (),
    "feddane": (),
    "per-fedavg": (),
    "ditto": (),
    "fedper": (),
    "anchored": (),
    "cgpfl": (),
    "fedac": ("strategy.num_clusters=2",),
    "dc-pfl": ("strategy.fixed_gamma=0.5",),
    "standalone": (),
}


@pytest.mark.parametrize(
    ("name", "up", "serve"), [*product(METHODS, ["float32"], ["own"]), *product(METHODS, ["int8"], ["auto"])]
)
def test_a_device_whose_data_fail_answers_as_the_others_do(tmp_path, monkeypatch, name, up, serve):
    """For each method, in a round and the test after it, also compressed, and whatever the device serves."""
    changes = (f"strategy.name={name}", f"wire.up={up}", f"personal.serve={serve}", *PRIVATE, *METHODS[name])
    federation = Federation(tmp_path, *changes)
    for context in federation.contexts.values():
        context.node_config.update(NOISE)
    own, spoiled = ClientContext.data.func, "client-2"

    def fails(node):
        if node.client == spoiled and node.blank is None:
            raise BouquetError("The folder up is not one of the classes down, left.")
        return own(node)

    told = []

    def handled(handle):
        def answer(message):
            reply = handle(message)
            if message.metadata.message_type != protocol.IDENTIFY:
                told.append((Arrival.of(reply).client, said(reply)))
            return reply

        return answer

    federation.grid.handlers = {node: handled(h) for node, h in federation.grid.handlers.items()}
    federation.play(1)
    told.clear()
    failing = cached_property(fails)
    failing.__set_name__(ClientContext, "data")
    monkeypatch.setattr(ClientContext, "data", failing)
    federation.play(2)
    messages = list(federation.strategy.configure_evaluate(2, federation.arrays, ConfigRecord(), federation.grid))
    list(federation.grid.send_and_receive(messages))
    by_client = {}
    for client, answer in told:
        by_client.setdefault(client, []).append(forms(answer))
    assert by_client[spoiled]
    assert by_client[spoiled] in [answers for client, answers in by_client.items() if client != spoiled]


def forms(answer):
    """What a reply says, but for names, digests and lengths of what is compressed, which follow from noise."""
    assert len(answer) == 3, answer
    arrays, metrics, config = answer
    metrics = {k: v if k != "metrics" else {**v, protocol.GROUP: 0} for k, v in metrics.items()}
    plain = {k: v if isinstance(v, int) else type(v) for k, v in config["client"].items()}
    copies = [pair.partition("=")[0] for pair in str(config["client"].get("holds", "")).split(",")]
    return arrays, metrics, plain, copies


@pytest.mark.parametrize("procedure", ["hypocluster", "gradient-loss"])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_device_that_demands_noise_measures_from_no_model_that_its_data_chose(tmp_path, procedure, kind):
    """Ten apart, and the noise is 1: the reply said which center it was made of, whatever was noised."""
    device = Device(tmp_path, NOISE, samples())
    _, initial = device.model()
    models = {f"{CENTER}{k}": Payload(initial + 10 * k) for k in range(2)}
    reply = device.ask(Instruction(models, procedure=procedure), kind=kind)
    assert "the model that the device chooses by them would show" in owners_refusal(reply)
    assert owners_refusal(reply) == owners_refusal(
        Device(tmp_path / "x", NOISE).ask(Instruction(models, procedure=procedure), kind=kind)
    )


def test_an_error_of_the_devices_data_brings_no_name_along(tmp_path, capsys):
    device = Device(tmp_path, (), **OFF)
    (device.data / "grandmother").mkdir()
    for data in (device.data, tmp_path / "nowhere"):
        device.config["data"] = str(data)
        assert device.ask().error.reason == "This device's own data do not fit this run. The device's log says more."
        assert str(data) in capsys.readouterr().out


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "/home/anna/secret.png"), KeyError("anna")])
def test_no_other_error_brings_a_name_along(tmp_path, monkeypatch, capsys, error):
    device = Device(tmp_path, (), samples(), **OFF)

    def fails(session, start):
        raise error

    monkeypatch.setattr(Session, "report_start", fails)
    assert device.ask().error.reason == f"{type(error).__name__} on the device. The device's log says more."
    log = capsys.readouterr()
    assert "anna" in log.out
    assert "Traceback" in log.err


DIGITS = {"data.classes": list("0123456789"), "data.input_shape": [1, 8, 8]}


@pytest.mark.parametrize("named", [{**DIGITS, "data.dataset": "own"}, {"data.dataset": "digits"}])
def test_a_server_names_no_other_folder(tmp_path, named):
    """The folder that its client was started with is what a device reads, whatever the run's settings name."""
    elsewhere = tmp_path / "elsewhere" / "pi"
    elsewhere.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for folder, count in ((elsewhere, 90), (tmp_path / "photos of the garden", 40)):
        folder.mkdir(exist_ok=True)
        np.savez(folder / "data.npz", x=rng.random((count, 1, 8, 8), dtype=np.float32), y=np.arange(count) % 10)
    device = Device(tmp_path, (), None, **OFF)
    plain = {"data.classes": [], "data.input_shape": [], "data.data_dir": str(elsewhere.parent), **named}
    told = device.ask(**plain).content.metric_records["metrics"]
    assert told["num-examples"] + told["test-examples"] == 40


def test_a_state_folder_that_cannot_be_written_is_not_named(tmp_path):
    device = Device(tmp_path, (), samples(), **OFF)
    (tmp_path / "state").write_bytes(b"")
    assert device.ask().error.reason == "The state folder cannot be made: File exists."


def test_an_exact_loss_counts_the_classes_and_is_withheld_where_scores_are(tmp_path):
    """Biases 0, −100 and −10,000: Σ_c n_c (−b_c) / n is a number whose digits are the counts. The docs say so."""
    counts = (14, 8, 2)
    own = samples(counts)
    own |= {"x_test": own["x"], "y_test": own["y"]}
    open_, private = Device(tmp_path / "open", (), own, **OFF), Device(tmp_path / "private", NOISE, own)
    layout, initial = open_.model()
    tensors = {name: np.zeros_like(array) for name, array in layout.unflatten(initial).items()}
    tensors["fc2.bias"][:] = [0, -100, -10_000]
    model = layout.flatten(tensors)
    total = round(open_.ask(whole(model)).content.metric_records["metrics"]["test-loss"] * sum(counts) / 100)
    assert (sum(counts) - total // 100 - total % 100, total % 100, total // 100) == counts
    reply = private.ask(whole(model))
    assert set(reply.content.metric_records["metrics"]) == {protocol.GROUP, protocol.STATE_LOST, protocol.NUM_EXAMPLES}


def test_an_owners_refusal_is_never_hidden(tmp_path):
    with pytest.raises(OwnerRefusal):
        Budget(tmp_path, 1.0).spend(1.0)


def test_a_round_that_failed_is_not_told_by_the_next_one_either(tmp_path):
    """A device that kept nothing said that it had lost its layers."""
    steep = {"learning-rate": 1e30, "max-gradient-norm": 1e30}
    devices = [Device(tmp_path / str(number), NOISE, samples()) for number in range(2)]
    _, initial = devices[0].model()
    some = Instruction({ARRAYS: Payload(initial, ("fc1",))}, upload=("fc1",))
    for device, config in zip(devices, ({}, steep), strict=True):
        device.ask(some, config=config)
    calm, wild = (device.ask(some, round_=2) for device in devices)
    assert said(calm) == said(wild)
    calm, wild = (device.ask(some, round_=2, kind="evaluate") for device in devices)
    assert said(calm) == said(wild)
