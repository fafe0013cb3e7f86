import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, Encoder, Instruction, Payload, Proximal
from bouquet.common.protocol.error_replies import refusal
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.record.traffic import payload_bytes
from bouquet.strategies.base import reply_checks

InlineGrid({})  # gives Flower's Message its sender


def sent(layout, instruction, round_=3, run="r", config=None):
    content = Encoder(layout).content(instruction, round_, run, config or {})
    return Message(content, dst_node_id=7, message_type="train")


def answer(layout, arrays=None, metrics=None, client="a"):
    message = sent(layout, Instruction())
    record = ArrayRecord({n: Array(np.asarray(a)) for n, a in arrays.items()}) if arrays is not None else None
    return protocol.reply(message, client, metrics if metrics is not None else {"num-examples": 4}, record)


def test_an_instruction_arrives_as_it_was_sent(layout):
    vector = np.arange(layout.dim, dtype=np.float32)
    instruction = Instruction(
        models={ARRAYS: Payload(vector), "embedding": Payload(vector, ("first",))},
        start="personal",
        upload=("last",),
        proximal=(Proximal(ARRAYS, 0.5), Proximal("embedding", 0.25)),
        procedure="trial",
        config={"own": 1.5},
    )
    received = protocol.read_instruction(sent(layout, instruction, config={"learning-rate": 0.1}), layout)
    assert (received.round, received.run, received.start, received.upload) == (3, "r", "personal", ("last",))
    assert received.proximal == instruction.proximal
    assert received.procedure == "trial"
    assert received.config == {"learning-rate": 0.1, "own": 1.5}
    assert received.models["embedding"].layers == ("first",)
    assert received.models["embedding"].vector.tolist() == [0, 1, 2, 3, 4, 5, 0, 0]


def test_a_layer_that_is_not_sent_is_not_in_the_message(layout):
    vector = np.ones(layout.dim, dtype=np.float32)
    content = Encoder(layout).content(Instruction({ARRAYS: Payload(vector, ("last",))}), 1, "", {})
    assert list(content.array_records[ARRAYS]) == ["last.weight"]
    total, by_layer = payload_bytes(content, layout)
    assert set(by_layer) == {"last"}
    assert by_layer["last"] == len(content.array_records[ARRAYS]["last.weight"].data)
    assert total > by_layer["last"]  # the config travels, too


def test_everything_is_asked_for_by_default_and_nothing_by_an_empty_upload(layout):
    assert protocol.read_instruction(sent(layout, Instruction()), layout).upload == ("first", "last")
    assert protocol.read_instruction(sent(layout, Instruction(upload=())), layout).upload == ()


def test_flowers_fedprox_is_understood(layout, initial):
    content = RecordDict({"arrays": initial, "config": ConfigRecord({"server-round": 1, "proximal-mu": 0.3})})
    received = protocol.read_instruction(Message(content, dst_node_id=1, message_type="train"), layout)
    assert received.proximal == (Proximal(ARRAYS, 0.3),)


@pytest.mark.parametrize(
    ("instruction", "config", "message"),
    [
        (Instruction(), {"bouquet-protocol": 9}, "version 9 of Bouquet's protocol, this device version 1"),
        (Instruction(start="there"), {}, "start from 'there'"),
        (Instruction(proximal=(Proximal("center", 1.0),)), {}, "anchor 'center' is not in the message"),
        (Instruction(upload=("fc",)), {}, "Unknown layer 'fc'"),
    ],
)
def test_a_device_refuses_what_it_does_not_know(layout, instruction, config, message):
    built = sent(layout, instruction)
    for key, value in config.items():
        built.content.config_records["config"][key] = value
    with pytest.raises(BouquetError, match=message):
        protocol.read_instruction(built, layout)


def test_a_device_refuses_another_model(layout):
    record = ArrayRecord({"fc.weight": Array(np.zeros(3, dtype=np.float32))})
    message = Message(RecordDict({"arrays": record}), dst_node_id=1, message_type="train")
    with pytest.raises(BouquetError, match=r"Record 'arrays': tensor 'fc\.weight' is not in this device's model"):
        protocol.read_instruction(message, layout)


def test_a_reply_is_read(layout):
    arrays = layout.unflatten(np.arange(layout.dim, dtype=np.float32))
    reply = reply_checks.read_reply(answer(layout, arrays, {"num-examples": 4, "loss": 0.5, "curve": [1.0]}), layout)
    assert (reply.client, reply.num_examples, reply.metrics) == ("a", 4, {"num-examples": 4, "loss": 0.5})
    assert reply.vector.tolist() == list(range(layout.dim))


def test_a_stock_client_may_name_its_record_as_it_likes(layout):
    record = protocol.to_record(layout, np.ones(layout.dim, dtype=np.float32))
    content = RecordDict({"model": record, "m": MetricRecord({"num-examples": 2})})
    reply = reply_checks.read_reply(Message(content, reply_to=sent(layout, Instruction())), layout)
    assert reply.client == "node-7"
    assert reply.vector.sum() == layout.dim


BAD = {
    "missing": (lambda a: a.pop("first.bias"), r"Tensor 'first\.bias' is missing"),
    "extra": (lambda a: a.update(more=np.zeros(1)), "Tensor 'more' was not asked for"),
    "shape": (lambda a: a.update({"first.bias": np.zeros(3)}), r"has shape \(3,\), expected \(2,\)"),
    "nan": (lambda a: a.update({"first.bias": np.array([0, np.nan])}), "not finite"),
    "huge": (lambda a: a.update({"first.bias": np.array([0, -3e38])}), r"'first\.bias' holds -3e\+38; values are to"),
    "up": (lambda a: a.update({"first.bias": np.array([0, 3e38])}), r"'first\.bias' holds 3e\+38; values are to"),
    "large": (lambda a: a.update({"first.bias": np.array([0, 2e9])}), r"'first\.bias' holds 2e\+09; values are to"),
    "long": (
        lambda a: a.update({"first.bias": np.zeros(10**5)}),
        r"'first\.bias' takes 800128 bytes; in this",
    ),
    "infinite": (lambda a: a.update({"first.bias": np.array([0, np.inf])}), "not finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_refused_and_named(layout, case):
    spoil, message = BAD[case]
    arrays = layout.unflatten(np.zeros(layout.dim, dtype=np.float32))
    spoil(arrays)
    with pytest.raises(BouquetError, match=message):
        reply_checks.read_reply(answer(layout, arrays), layout)


def test_a_reply_that_cannot_be_decoded_is_refused(layout):
    record = protocol.to_record(layout, np.zeros(layout.dim, dtype=np.float32))
    record["first.bias"] = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"nonsense")
    reply = Message(RecordDict({"arrays": record}), reply_to=sent(layout, Instruction()))
    with pytest.raises(BouquetError, match=r"Tensor 'first\.bias' cannot be decoded"):
        reply_checks.read_reply(reply, layout)


@pytest.mark.parametrize("header", ["{'descr': '<f4', \n\"\"\"", "{'descr': (((", "\x07" * 9])
def test_a_header_on_which_its_reader_itself_fails_is_refused(layout, header):
    """NumPy reads a header as Python: what spoiled bytes raise there is any kind of error."""
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)
    record = protocol.to_record(layout, np.zeros(layout.dim, dtype=np.float32))
    record["first.bias"] = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=data)
    reply = Message(RecordDict({"arrays": record}), reply_to=sent(layout, Instruction()))
    with pytest.raises(BouquetError, match=r"Tensor 'first\.bias' cannot be decoded"):
        reply_checks.read_reply(reply, layout)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({}, "'num-examples' is missing"),
        ({"num-examples": 0}, "'num-examples' is 0"),
        ({"num-examples": -3}, "'num-examples' is -3"),
        ({"num-examples": 2.5}, "'num-examples' is 2.5"),
        ({"num-examples": 1e308}, r"'num-examples' is 1e\+308"),
        ({"num-examples": 1e12}, "must be a whole number from 1 to 1000000000"),
        ({"num-examples": 1, "accuracy": 1.5}, "'accuracy' is 1.5; it must be from 0 to 1"),
        ({"num-examples": 1, "loss": 1e300}, r"'loss' is 1e\+300"),
        ({"num-examples": 1, "loss": float("nan")}, "'loss' is nan"),
        ({"num-examples": 1, **{f"metric-{n}": 1.0 for n in range(100)}}, "has 101 metrics; it may have 100"),
    ],
)
def test_bad_metrics_are_refused(layout, metrics, message):
    arrays = layout.unflatten(np.zeros(layout.dim, dtype=np.float32))
    with pytest.raises(BouquetError, match=message):
        reply_checks.read_reply(answer(layout, arrays, metrics), layout)


def test_an_error_reply_gives_its_reason(layout):
    refused = refusal(sent(layout, Instruction()), "The folder is empty.")
    with pytest.raises(BouquetError, match=r"The device reported: The folder is empty\."):
        reply_checks.read_reply(refused, layout)
    with pytest.raises(BouquetError, match="The device reported"):
        reply_checks.read_metrics(refused)


def test_a_model_that_goes_to_many_is_serialised_once(layout):
    encoder = Encoder(layout)
    centers = np.ones((2, layout.dim), dtype=np.float32)
    records = [encoder.arrays(Payload(centers[k])) for k in (0, 1, 0)]
    assert records[0] is records[2]
    assert records[0] is not records[1]


COUNTING = {
    "norm.weight": np.ones(2, dtype=np.float32),
    "norm.num_batches_tracked": np.array(2**24 + 1),
    "table": np.array([[2**31 - 1, -(2**31)]], dtype=np.int32),
}


def test_tensors_without_axes_and_large_integers_arrive_as_they_were_sent():
    layout = ParameterLayout.of(COUNTING)
    row = layout.flatten(COUNTING)
    content = Encoder(layout).content(Instruction({ARRAYS: Payload(row)}), 1, "r", {})
    arrived = protocol.from_record(content.array_records[ARRAYS])
    received = protocol.read_instruction(Message(content, dst_node_id=7, message_type="train"), layout)
    assert np.array_equal(received.models[ARRAYS].vector, row)
    reply = protocol.reply(
        sent(layout, Instruction()),
        "a",
        {"num-examples": 4},
        protocol.to_record(layout, received.models[ARRAYS].vector),
    )
    back = layout.unflatten(reply_checks.read_reply(reply, layout).vector)
    for found in (arrived, back):
        for name, array in COUNTING.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert (found[name] == array).all()
