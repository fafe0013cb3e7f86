"""Compression between a strategy and scripted devices that keep their copies as real ones do, in a folder each."""

import shutil

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.client.uploads.compression import CopyMemory
from bouquet.common import protocol
from bouquet.common.compression.codecs import CODECS
from bouquet.common.compression.delta import PackedModel, to_bytes
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, Instruction, Payload, compressed
from bouquet.common.protocol.error_replies import refusal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.traffic import payload_bytes, unpacked_bytes
from bouquet.strategies.base.exchange import exchange
from bouquet.strategies.base.filters.compression import Compression
from bouquet.strategies.base.method import one_model
from bouquet.strategies.baselines.fedavg import FedAvg

LAYOUT = ParameterLayout.of(
    {
        "first.weight": np.zeros((40, 10), dtype=np.float32),
        "norm.count": np.zeros(1, dtype=np.int16),
        "last.weight": np.zeros((10, 10), dtype=np.float32),
    }
)


class Device:
    """Trains by ``train(start, round)``; its memory is a folder, so that every message is as after a restart."""

    def __init__(self, name, folder, train):
        self.name, self.folder, self.train = name, folder / name, train
        self.received, self.bytes_down, self.answers = [], [], True
        self.spoil = lambda values: values

    @property
    def memory(self):
        return CopyMemory(DeviceState(FolderStore(self.folder, durable=False)), LAYOUT)

    def __call__(self, message):
        if message.metadata.message_type == protocol.IDENTIFY:
            return protocol.reply(message, self.name, {})
        memory = self.memory
        self.bytes_down.append(payload_bytes(message.content, LAYOUT)[0])
        try:
            received = protocol.read_instruction(message, LAYOUT, memory.find)
        except BouquetError as error:
            return refusal(message, error)
        self.received.append(received)
        metrics = {protocol.NUM_EXAMPLES: 10, protocol.ACCURACY: 0.5}
        if message.metadata.message_type == "evaluate":
            return protocol.reply(message, self.name, metrics)
        trained = np.asarray(self.train(received.models[ARRAYS].vector, received.round), dtype=np.float32)
        model_, copies = memory.answer(received.run, received, trained, True, seed=received.round)
        if not self.answers:
            return None
        values = self.spoil(compressed.reply_config(LAYOUT, model_, copies))
        return protocol.reply(message, self.name, metrics, None, values)


def towards(goal):
    return lambda start, round_: start + 0.5 * (goal - start)


def goals(number):
    return [np.random.default_rng(i).standard_normal(LAYOUT.dim).astype(np.float32) for i in range(number)]


INITIAL = protocol.to_record(LAYOUT, np.zeros(LAYOUT.dim, dtype=np.float32))


def federation(folder, up="float32", down="float32", number=3, **options):
    devices = [Device(f"c{i}", folder, towards(goal)) for i, goal in enumerate(goals(number))]
    strategy = FedAvg(identify=True, **options)
    strategy.filters = [Compression(up, down, seed=1)]
    strategy.round_patience = strategy.round_patience.__class__(timeout=0.2)
    return InlineGrid(dict(enumerate(devices, 1))), strategy, devices


def play(strategy, grid, rounds):
    traffic = []
    for round_ in rounds:
        messages = list(strategy.configure_train(round_, INITIAL, ConfigRecord(), grid))
        replies, silent = exchange(grid, messages, strategy.round_patience)
        strategy.give_up(silent)
        strategy.aggregate_train(round_, replies)
        traffic.append(messages)
    return traffic


def model(strategy):
    return strategy.centers(strategy.state)[0]


@pytest.mark.parametrize("method", CODECS)
def test_every_codec_ends_where_no_compression_does(tmp_path, method):
    """The mean of the goals is the fixed point; differences carry what was lost, so all of them come near it.

    In what devices are sent, over ten rounds.
    """
    grid, strategy, devices = federation(tmp_path, up=method, down=method)
    play(strategy, grid, range(1, 31))
    mean = np.mean(goals(3), axis=0)
    floats = np.r_[:400, 401:501]
    tolerance = {"float32": 1e-5, "float16": 1e-3, "int8": 0.05, "int4": 0.35}[method]
    held = np.mean([received.models[ARRAYS].vector for received in devices[0].received[-10:]], axis=0)
    distance = np.linalg.norm(held[floats] - mean[floats]) / np.linalg.norm(mean[floats])
    assert distance < tolerance
    assert strategy.train_round.failures == {}
    # the server knows what each device made of its last message
    for device in devices:
        digest = strategy.filter_of(Compression).held[device.name][ARRAYS]
        held = strategy.filter_of(Compression).find(digest).vector
        assert held.tolist() == device.received[-1].models[ARRAYS].vector.tolist()


def test_devices_with_the_same_copies_are_sent_one_packing_and_share_a_copy(tmp_path):
    grid, strategy, _ = federation(tmp_path, down="int4", number=5)
    messages = play(strategy, grid, range(1, 4))[-1]
    assert len({bytes(compressed.packed_blocks(message.content)[0]) for message in messages}) == 1
    assert len({strategy.filter_of(Compression).held[f"c{i}"][ARRAYS] for i in range(5)}) == 1
    assert len(strategy.checkpoint()[0]) == 1 + 1  # the center, and one copy for all


def test_an_update_is_counted_from_what_the_device_made_of_its_message(tmp_path):
    grid, strategy, devices = federation(tmp_path, down="int4")
    play(strategy, grid, range(1, 4))
    started = np.stack([device.received[-1].models[ARRAYS].vector for device in devices])
    changed = 0.5 * (np.stack(goals(3)) - started) * (np.arange(LAYOUT.dim) != 400)
    assert np.allclose(strategy.train_round.replies.updates, changed, atol=1e-6)
    assert strategy.train_round.replies.sent.tolist() == started.tolist()


def test_a_counter_is_exact_whatever_the_codec(tmp_path):
    def train(start, round_):
        trained = start + 0.1
        trained[400] = round_ * 10
        return trained

    grid, strategy, devices = federation(tmp_path, up="int4", down="int4")
    for device in devices:
        device.train = train
    play(strategy, grid, range(1, 4))
    assert devices[0].received[-1].models[ARRAYS].vector[400] == 20
    assert strategy.train_round.replies.W[:, 400].tolist() == [30, 30, 30]


def test_a_device_that_lost_its_copies_is_sent_the_whole_model_in_the_next_round(tmp_path):
    grid, strategy, devices = federation(tmp_path, down="int8", up="int8")
    play(strategy, grid, range(1, 4))
    shutil.rmtree(devices[1].folder)
    play(strategy, grid, range(4, 5))
    assert "which this end does not hold" in strategy.train_round.failures["c1"]
    assert strategy.train_round.replies.clients == ("c0", "c2")
    play(strategy, grid, range(5, 7))
    assert strategy.train_round.failures == {}
    whole, difference = devices[1].bytes_down[4], devices[1].bytes_down[5]
    assert whole > devices[0].bytes_down[4] * 1.5
    assert difference < whole / 1.5


def test_a_reply_that_was_not_heard_costs_nothing(tmp_path):
    """The device took a message in, and the server does not know: the next is a difference to what was before."""
    grid, strategy, devices = federation(tmp_path, down="int8", up="int4")
    play(strategy, grid, range(1, 3))
    devices[1].answers = False
    play(strategy, grid, range(3, 5))
    assert "No reply" in strategy.train_round.failures["c1"]
    devices[1].answers = True
    play(strategy, grid, range(5, 6))
    assert strategy.train_round.failures == {}
    assert devices[1].bytes_down[-1] < 0.75 * 2 * LAYOUT.dim  # in 16 bits it would be two bytes a value


def test_sampled_devices_are_sent_differences_to_what_each_holds(tmp_path):
    grid, strategy, devices = federation(tmp_path, down="int8", up="int8", number=6, fraction_train=0.5)
    play(strategy, grid, range(1, 13))
    assert strategy.train_round.failures == {}
    whole = max(device.bytes_down[0] for device in devices)
    assert all(bytes_ < whole / 1.5 for device in devices for bytes_ in device.bytes_down[1:])
    assert len({len(device.received) for device in devices}) > 1


def test_evaluation_shows_the_codecs_model_and_changes_no_copies(tmp_path):
    grid, strategy, devices = federation(tmp_path, down="int4", up="int4")
    play(strategy, grid, range(1, 3))
    held = {client: dict(found) for client, found in strategy.filter_of(Compression).held.items()}
    for _ in range(2):
        messages = strategy.configure_evaluate(2, INITIAL, ConfigRecord(), grid)
        strategy.aggregate_evaluate(2, grid.send_and_receive(messages))
    assert strategy.train_round.failures == {}
    assert strategy.filter_of(Compression).held == held
    first, second = (received.models[ARRAYS].vector for received in devices[0].received[-2:])
    assert np.linalg.norm(first - model(strategy)) < 0.2 * np.linalg.norm(model(strategy))
    assert first.tolist() == second.tolist()
    play(strategy, grid, range(3, 4))
    assert strategy.train_round.failures == {}


@pytest.mark.parametrize("method", ["int4", "int8"])
def test_a_resumed_run_sends_the_same_bytes(tmp_path, method):
    def sent(messages):
        return [[compressed.packed_blocks(m.content) for m in round_] for round_ in messages]

    grid, strategy, _ = federation(tmp_path / "a", up=method, down=method, fraction_train=0.7, number=5)
    play(strategy, grid, range(1, 4))
    expected = sent(play(strategy, grid, range(4, 7)))
    final = model(strategy)
    # The same again, but the server goes down in round 4, after the devices have taken its messages in.
    grid, before, _ = federation(tmp_path / "b", up=method, down=method, fraction_train=0.7, number=5)
    play(before, grid, range(1, 4))
    arrays, rest = before.checkpoint()
    grid.push_messages(list(before.configure_train(4, INITIAL, ConfigRecord(), grid)))
    _, resumed, _ = federation(tmp_path / "b", up=method, down=method, fraction_train=0.7, number=5)
    resumed.restore(LAYOUT, arrays, rest)
    assert sent(play(resumed, grid, range(4, 7))) == expected
    assert model(resumed).tolist() == final.tolist()


def replaced(value):
    return lambda values: {**values, "packed": value}


def diverged(values):
    vector = np.zeros(LAYOUT.dim, dtype=np.float32)
    vector[7] = np.nan
    layers = dict.fromkeys(LAYOUT.layers, b"\x00")
    for spec in LAYOUT.tensors:
        layers[spec.layer] += b"\x01" + vector[spec.columns].astype("<f4").tobytes()
    return {**values, "packed": to_bytes({ARRAYS: PackedModel("", layers)}, LAYOUT)}


def only_last(values):
    return {**values, "packed": to_bytes({ARRAYS: PackedModel("", {"last": b"\x00\x00"})}, LAYOUT)}


def unknown_base(values):
    layers = dict.fromkeys(LAYOUT.layers, b"\x00\x80")
    return {**values, "packed": to_bytes({ARRAYS: PackedModel("0123456789abcdef", layers)}, LAYOUT)}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (diverged, r"Tensor 'first\.weight' holds values that are not finite"),
        (only_last, "The reply holds layers last; it was asked for first, norm, last"),
        (unknown_base, "a difference to 0123456789abcdef, which this end does not hold"),
        (replaced(b"nonsense"), "The packed models cannot be read"),
        (replaced(3), "The packed models are of type int, not bytes"),
        (replaced(to_bytes({}, LAYOUT)), "The reply holds the packed models none, not 'arrays' alone"),
        (lambda values: {k: v for k, v in values.items() if k != "packed"}, r"Tensor 'first\.weight' is missing"),
    ],
)
def test_a_packed_reply_that_makes_no_sense_is_refused_and_named(tmp_path, spoil, reason):
    grid, strategy, devices = federation(tmp_path, up="int8", down="int8")
    devices[1].spoil = spoil
    play(strategy, grid, range(1, 3))
    assert strategy.train_round.replies.clients == ("c0", "c2")
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(strategy.train_round.failures["c1"])
    devices[1].spoil = lambda values: values
    play(strategy, grid, range(3, 4))
    assert strategy.train_round.replies.clients == ("c0", "c1", "c2")


def test_an_exact_payload_is_exact_and_nobody_keeps_a_copy_of_it(tmp_path):
    compression = Compression("int4", "int8", seed=0)
    vector = goals(1)[0]
    vector[400] = 5
    instruction = Instruction({ARRAYS: Payload(vector), "direction": Payload(vector, exact=True)})
    packing, _ = compression.pack(LAYOUT, "a", instruction, is_train=True)
    content = protocol.Encoder(LAYOUT).content(instruction, 1, "r", {}, packing)
    InlineGrid({})
    received = protocol.read_instruction(Message(content, dst_node_id=1, message_type="train"), LAYOUT)
    assert received.models["direction"].vector.tolist() == vector.tolist()
    assert set(received.unpacked.copies) == {ARRAYS}


def test_the_record_knows_what_it_would_have_been(tmp_path):
    compression = Compression("int4", "int8", seed=0)
    instruction = one_model(goals(1)[0])
    InlineGrid({})
    encoder = protocol.Encoder(LAYOUT)
    content = encoder.content(instruction, 1, "r", {}, compression.pack(LAYOUT, "a", instruction, True)[0])
    total, by_layer = payload_bytes(content, LAYOUT)
    plain = payload_bytes(encoder.content(instruction, 1, "r", {}), LAYOUT)[0]
    assert set(by_layer) == set(LAYOUT.layers)
    assert sum(by_layer.values()) < total < 0.6 * plain
    # what says how it is packed counts in both
    assert unpacked_bytes(content, LAYOUT) == pytest.approx(plain, abs=140)
    assert unpacked_bytes(encoder.content(instruction, 1, "r", {}), LAYOUT) == plain
