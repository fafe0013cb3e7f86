"""Bytes that claim more than there is: refused, clearly, in memory that the layout bounds and not what is sent."""

import io
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.common import protocol
from bouquet.common.compression.codecs import CODECS, CodecError, decode, encode
from bouquet.common.compression.delta import (
    MOST_MODELS,
    Copy,
    PackedModel,
    PackingError,
    from_bytes,
    pack_model,
    to_bytes,
    unpack_model,
)
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import compressed, tensors
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base import reply_checks

InlineGrid({})  # gives Flower's Message its sender

SIZE = 20_000
LAYOUT = ParameterLayout.of(
    {
        "first.weight": np.zeros(SIZE, dtype=np.float32),
        "norm.count": np.zeros((), dtype=np.int64),
        "last.weight": np.zeros((4, 10), dtype=np.float32),
    }
)
BASE = Copy(np.random.default_rng(1).standard_normal(LAYOUT.dim).astype(np.float32).round(2), LAYOUT.layers)
# Times the layout's own bytes, all of what a codec makes of a tensor together; NumPy tells tracemalloc of its memory.
MOST_TIMES, SPARE = 20, 200_000

# Of what two thousand positions may claim: counts, lengths and widths at the edges of their fields.
EDGES = st.sampled_from([0, 1, 2, 7, SIZE - 1, SIZE, SIZE + 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1])


def memory_of(read):
    """Bytes that were allocated at most while ``read`` ran, and the clear error that it raised; any other is one."""
    error = None
    tracemalloc.start()
    try:
        read()
    except BouquetError as refused:
        error = refused
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return most, error


def within(read, sent=0):
    """As `memory_of`, and it is within what the layout, and a copy or two of what was sent, bound."""
    most, error = memory_of(read)
    assert most <= MOST_TIMES * 4 * LAYOUT.dim + 3 * sent + SPARE, f"{most} bytes for {4 * LAYOUT.dim}"
    return error


def deflated(content):
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"\x01" + deflate.compress(content) + deflate.flush()


def answer(block=None, arrays=None, metrics=None, config=None):
    client = {protocol.CLIENT_ID: "a", **({} if block is None else {"packed": block}), **(config or {})}
    records = {protocol.METRICS: MetricRecord(metrics or {"num-examples": 4}), protocol.CLIENT: ConfigRecord(client)}
    if arrays is not None:
        records[protocol.ARRAYS] = arrays
    question = Message(RecordDict(), dst_node_id=7, message_type="train")
    return Message(RecordDict(records), reply_to=question)


def block_of(first, **others):
    """A model whose first layer is these bytes, and whose others are zero."""
    zero = b"\x00\x00"
    layers = {"first": first, "norm": b"\x00\x01" + bytes(12), "last": zero, **others}
    return to_bytes({"arrays": PackedModel("", layers)}, LAYOUT)


def read(message):
    return reply_checks.read_reply(message, LAYOUT, find=lambda digest: BASE if digest == BASE.digest else None)


def plain(**changed):
    arrays = {name: tensors.encode(a) for name, a in LAYOUT.unflatten(np.zeros(LAYOUT.dim, np.float32)).items()}
    return tensors.record_of({**arrays, **changed})


def raw(name, data):
    return tensors.record_of({name: Array("float32", (1,), "numpy.ndarray", data)})


def header(shape, descr="<f4"):
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": descr, "fortran_order": False, "shape": shape})
    return written.getvalue()


# --- what was accepted, or took a thousand times its bytes -----------------------------------------------------------


LONG = struct.pack("<BIIB", 6, 1, 10**7, 0) + bytes(10**7 + 2)
HEAD = b"[" + b"[]," * 10**6 + b"[]]"

BOMBS = {
    "unary of zeros, plain": (lambda: answer(block_of(b"\x00" + LONG)), "The message takes 10"),
    "deflated zeros": (lambda: answer(block_of(deflated(bytes(10**8)))), "Layer 'first' is"),
    "stored after the end": (lambda: answer(block_of(deflated(b"\x00") + b"x")), "Layer 'first' is cut off"),
    "after the block": (lambda: answer(block_of(b"\x00\x00") + b"x"), "1 bytes follow the last"),
    "deep JSON": (lambda: answer(struct.pack("<I", 10**4) + b"[" * 10**4), "what they are takes 10000 bytes"),
    "long JSON": (lambda: answer(struct.pack("<I", len(HEAD)) + HEAD), "The message takes"),
    "another record": (lambda: answer_with(more=ArrayRecord({"x": Array(np.zeros(10**6))})), "The message takes"),
    "long list in the config": (lambda: answer(arrays=plain(), config={"x": [1] * 10**6}), "The message takes"),
    "long list of texts": (lambda: answer(arrays=plain(), config={"x": ["x" * 90] * 10**5}), "The message takes"),
    "long list in the metrics": (
        lambda: answer(arrays=plain(), metrics={"num-examples": 4, "x": [1.0] * 10**6}),
        "The message takes",
    ),
    "many metrics": (
        lambda: answer(arrays=plain(), metrics={"num-examples": 4, **{f"m{i}": 1 for i in range(50_000)}}),
        "The message takes",
    ),
    "a data type's long name": (lambda: answer(arrays=typed("x" * 10**7)), "The message takes"),
    "a header that claims much": (
        lambda: answer(arrays=raw("first.weight", header((5 * 10**7,)) + bytes(4))),
        r"'first\.weight' cannot be decoded: 4 bytes follow the header of float32 \(50000000,\)",
    ),
    "numbers of no bytes": (
        lambda: answer(arrays=raw("first.weight", header((10**12,), "|V0"))),
        "no array of numbers",
    ),
    "an archive": (lambda: answer(arrays=raw("first.weight", archive())), "no array where one should begin"),
}


def typed(name):
    return tensors.record_of({"first.weight": Array(name, (1,), "numpy.ndarray", header((SIZE,)) + bytes(4 * SIZE))})


def answer_with(**records):
    message = answer(arrays=plain())
    for name, record in records.items():
        message.content[name] = record
    return message


def archive():
    written = io.BytesIO()
    np.savez_compressed(written, **{"first.weight": np.zeros(10**6, dtype=np.float32)})
    return written.getvalue()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_goes_off(name):
    make, reason = BOMBS[name]
    message = make()
    error = within(lambda: read(message))
    assert error is not None
    with pytest.raises(type(error), match=reason):
        raise error


def test_a_list_in_the_scores_of_a_test_is_refused():
    with pytest.raises(BouquetError, match="The message takes"):
        reply_checks.read_metrics(answer(metrics={"num-examples": 4, "curve": [1.0] * 10**6}))


def test_a_device_holds_no_more_copies_at_the_server_than_there_are_records():
    from bouquet.strategies.base.filters.compression import Compression
    from bouquet.strategies.base.method import one_model

    compression = Compression("int8", "int8", seed=0)
    said = {}
    for round_ in range(1, 6):
        compression.begin(round_)
        vector = np.full(LAYOUT.dim, round_, dtype=np.float32)
        packing, sent = compression.pack(LAYOUT, "a", one_model(vector), is_train=True)
        _, copy = pack_model(LAYOUT, vector + 1, LAYOUT.layers, None, "int8", np.random.default_rng(0))
        digests = [Copy(sent.models["arrays"].vector, LAYOUT.layers).digest, copy.digest, *packing.known]
        said = {**said, **{f"{round_}-{i}": digest for i, digest in enumerate(digests)}}
        holds = {"arrays": digests[0], "uploaded": copy.digest, **said}
        reply = protocol.ClientReply("a", 1, vector, LAYOUT.layers, 4, {}, {}, holds, copy)
        compression.incoming(reply)
    assert set(compression.held["a"]) == {"arrays", "uploaded"}
    compression.begin(6)
    assert len(compression.dump()[0]) <= 2


# --- from the server -------------------------------------------------------------------------------------------------


def instruction(records=None, config=None):
    content = RecordDict({**(records or {}), protocol.CONFIG: ConfigRecord(config or {})})
    return Message(content, dst_node_id=7, message_type="train")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (lambda: instruction({f"m{i}": ArrayRecord() for i in range(MOST_MODELS + 1)}), "sends 1025 models"),
        (lambda: instruction({"arrays": plain()}, {"x": [1] * 10**6}), "The message takes"),
        (lambda: instruction(config={"upload": 3}), "cannot be read: AttributeError"),
        (lambda: instruction(config={"proximal-anchors": ["a", "b"], "proximal-weights": [0.5]}), "ValueError"),
        (lambda: instruction(config={"server-round": "x"}), "cannot be read: ValueError"),
        (
            lambda: instruction(config={"packed": many_models(), "codec": "int8"}),
            "more than 1024",
        ),
    ],
)
def test_a_device_refuses_what_a_server_claims(message, reason):
    built = message()
    error = within(lambda: protocol.read_instruction(built, LAYOUT, lambda run, digest: None))
    with pytest.raises(BouquetError, match=reason):
        raise error


def many_models():
    head = [[f"m{i}", "", [], [], 0] for i in range(MOST_MODELS + 1)]
    text = json.dumps(head, separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text


# --- any bytes -------------------------------------------------------------------------------------------------------


@st.composite
def spoiled(draw, content):
    """Valid bytes in which something is overwritten, cut out, put in or said again."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        near = draw(st.integers(0, min(len(found), 80)) | st.integers(0, len(found)))
        new = draw(st.binary(min_size=1, max_size=8) | EDGES.map(lambda n: struct.pack("<I", n)) | st.just(bytes(SIZE)))
        taken = draw(st.sampled_from([0, 1, len(new)]))
        found[near : near + taken] = new
    return bytes(found[: draw(st.integers(0, len(found)))] if draw(st.booleans()) else found)


def coded(method, seed=0):
    values = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
    return encode(method, values, np.random.default_rng(0))


@settings(deadline=None, max_examples=40)
@pytest.mark.parametrize("method", CODECS)
@given(data=st.data())
def test_spoiled_values_are_refused_or_read_within_a_fixed_memory(method, data):
    content = data.draw(spoiled(coded(method)))
    error = within(lambda: decode(content, SIZE))
    assert error is None or isinstance(error, CodecError)


@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("method", CODECS)
@given(data=st.data())
def test_spoiled_blocks_are_refused_or_read_within_a_fixed_memory(method, data):
    """Below deflate, above it, and in what the block says of itself."""
    values = BASE.vector + np.float32(0.01)
    model, _ = pack_model(LAYOUT, values, LAYOUT.layers, BASE, method, np.random.default_rng(0))
    where = data.draw(st.sampled_from(["inside", "layer", "block", "anything"]))
    if where == "inside":
        inside = data.draw(spoiled(coded(method)))
        model = PackedModel(model.base, {**model.layers, "first": deflated(inside)})
    if where == "layer":
        model = PackedModel(model.base, {**model.layers, "first": data.draw(spoiled(model.layers["first"]))})
    block = to_bytes({"arrays": model}, LAYOUT)
    if where == "block":
        block = data.draw(spoiled(block))
    if where == "anything":
        block = data.draw(st.binary(max_size=300))
    message = answer(block)
    within(lambda: read(message), len(block))


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_spoiled_arrays_are_refused_or_read_within_a_fixed_memory(data):
    name = data.draw(st.sampled_from(["first.weight", "norm.count"]))
    content = data.draw(spoiled(plain()[name].data))
    record = plain(**{data.draw(st.sampled_from([name, "more"])): Array("uint8", (1,), "numpy.ndarray", content)})
    message = answer(arrays=record)
    within(lambda: read(message), len(content))
    within(lambda: protocol.read_instruction(instruction({"arrays": record}), LAYOUT), len(content))


# --- what is honest --------------------------------------------------------------------------------------------------


def test_a_table_of_large_integers_can_be_packed():
    """It takes three columns for each of its numbers, and more bytes than the numbers have."""
    layout = ParameterLayout.of({"w.table": np.zeros(2000, dtype=np.int64)})
    vector = layout.flatten({"w.table": np.arange(2000) * 10**12})
    model, _ = pack_model(layout, vector, layout.layers, None, "float16", np.random.default_rng(0))
    block = to_bytes({"arrays": model}, layout)
    found, _ = unpack_model(layout, from_bytes(block, layout, 1)["arrays"], lambda digest: None)
    assert found.tolist() == vector.tolist()
    assert len(compressed.packed_blocks(answer(block).content)[0]) < layout.most_bytes


def test_a_reply_of_twice_the_models_numbers_is_within_the_bound():
    arrays = {name: a.astype(np.float64) for name, a in LAYOUT.unflatten(np.ones(LAYOUT.dim, np.float32)).items()}
    record = tensors.record_of({name: tensors.encode(array) for name, array in arrays.items()})
    classes = {name: [10**6] * 10_000 for name in ("class-samples", "class-tested", "class-found")}
    assert read(answer(arrays=record, config=classes)).vector.tolist() == np.ones(LAYOUT.dim).tolist()


def test_any_error_of_a_reader_is_one_that_names_the_tensor(monkeypatch):
    def broken(content, size):
        raise MemoryError

    monkeypatch.setattr("bouquet.common.compression.delta.decode", broken)
    with pytest.raises(PackingError, match=r"Tensor 'first\.weight' cannot be decoded: MemoryError"):
        read(answer(block_of(b"\x00\x00")))
