"""Malformed replies against every method: refused with the client's name, or harmless; never an end of the server.

How many for each method is ``BOUQUET_MALFORMED`` (`make malformed` takes 2,000); each is made from its own seed.
"""

import copy
import json
import os
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from bouquet.client.app import make_client_app
from bouquet.common import protocol
from bouquet.common.methods import METHODS
from bouquet.common.model.build import initial_model
from bouquet.common.settings import parse_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, app_handlers
from bouquet.server.run.build import build_strategy
from bouquet.server.run.round_config import train_config
from bouquet.strategies.base.exchange import exchange

COUNT = int(os.environ.get("BOUQUET_MALFORMED", "40"))
CLIENTS = 5
BAD_NUMBERS = [0, -1, -1e9, 0.5, 1e308, -1e308, 3e38, 2**40, 1e-300, float("nan"), float("inf")]


def settings(name):
    values = {
        "strategy.name": name,
        "data.clients": CLIENTS,
        "data.samples_per_client": 24,
        "model.hidden": [8],
        "train.local_epochs": 1,
        "data.public_fraction": 0.2 if name == "fedtsdp" else 0.0,
    }
    return parse_settings({}, values)


@pytest.fixture(scope="module", params=METHODS)
def second_round(request, tmp_path_factory):
    """A strategy that has sent its second round's messages, and the replies of real clients to them."""
    own = settings(request.param)
    app = make_client_app(own, tmp_path_factory.mktemp("devices"))
    contexts = {
        node: Context(1, node, {"partition-id": node - 2, "num-partitions": CLIENTS}, RecordDict(), {})
        for node in range(2, 2 + CLIENTS)
    }
    grid = InlineGrid(app_handlers(app, contexts))
    strategy = build_strategy(own)
    arrays = ArrayRecord(torch_state_dict=initial_model(own).state_dict())
    for round_ in (1, 2):
        messages = list(strategy.configure_train(round_, arrays, train_config(own, round_), grid))
        replies, _ = exchange(grid, messages, strategy.round_patience)
        if round_ == 1:
            strategy.aggregate_train(1, replies)
    return strategy, replies


def test_malformed_replies_are_refused_or_harmless(second_round):
    strategy, replies = second_round
    without = outcome(strategy, replies[1:])
    refused = 0
    for seed in range(COUNT):
        bad = spoiled(replies[0], np.random.default_rng(seed), replies[1])
        after = outcome(strategy, [bad, *replies[1:]])
        json.dumps(after.record(after.state), allow_nan=False)
        centers = after.centers(after.state)
        assert np.isfinite(centers).all(), seed
        assert np.abs(centers).max(initial=0) < 1e9, seed
        if after.train_round.failures and len(after.train_round.replies) == CLIENTS - 1:
            refused += 1
            # The same, to the bit, as if that client had said nothing.
            np.testing.assert_array_equal(centers, without.centers(without.state), err_msg=str(seed))
            assert after.assignment(after.state) == without.assignment(without.state), seed
            assert all(isinstance(reason, str) and reason for reason in after.train_round.failures.values())
    assert refused > COUNT / 4  # most of what `spoiled` does cannot be taken for a reply


def outcome(strategy, replies):
    """A strategy after an aggregation, on a copy; the public data and the like are shared, the state is not written."""
    after = copy.copy(strategy)
    after.__dict__.update(failures={}, replies=None, _nodes=copy.deepcopy(strategy._nodes))
    after.state = copy.deepcopy(strategy.state)
    after.aggregate_train(2, replies)
    return after


def spoiled(reply, rng, another):
    """A copy of a reply in which something is wrong."""
    kinds = [tensors, values, raw_bytes, metrics, config, records]
    content = copy.deepcopy(reply.content)
    chosen = kinds[rng.integers(len(kinds))]
    result = chosen(content, rng, another)
    body = content if result is None else result
    message = Message(body, dst_node_id=1, message_type="train") if isinstance(body, RecordDict) else body
    message.metadata.__dict__.update(reply.metadata.__dict__)
    return message


def _pick(rng, values):
    return list(values)[rng.integers(len(list(values)))]


def _arrays(content):
    found = list(content.array_records.values())
    return found[0] if found else content.setdefault(protocol.ARRAYS, ArrayRecord())


def tensors(content, rng, another):
    """Names, shapes and dtypes."""
    arrays = _arrays(content)
    what = rng.integers(7)
    name = _pick(rng, arrays) if len(arrays) else "fc1.weight"
    value = arrays[name].numpy() if name in arrays else np.zeros((2, 2), dtype=np.float32)
    if what == 0 and name in arrays:
        del arrays[name]
    elif what == 1:
        arrays[_pick(rng, ["more", "", "../../etc/passwd", "<script>", name + ".x"])] = Array(value)
    elif what == 2:
        arrays[name] = Array(value.reshape(-1)[: max(0, value.size - 1)])
    elif what == 3:
        arrays[name] = Array(np.zeros((*value.shape, 2), dtype=value.dtype))
    elif what == 4:
        arrays[name] = Array(value.astype(_pick(rng, ["complex64", "U8", "S4", "datetime64[s]"])))
    elif what == 5:
        arrays[name] = Array(np.zeros(0, dtype=np.float32))
    else:
        arrays[name] = Array(np.zeros(10**6, dtype=np.float64))


def values(content, rng, another):
    """NaN, infinity and numbers that are too large."""
    arrays = _arrays(content)
    if not len(arrays):
        return metrics(content, rng, another)
    name = _pick(rng, arrays)
    value = arrays[name].numpy().copy()
    value.flat[rng.integers(value.size)] = _pick(rng, [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e12])
    arrays[name] = Array(value)
    return None


def raw_bytes(content, rng, another):
    """Bytes of a serialised array: flipped, cut off, pickled, or none."""
    arrays = _arrays(content)
    if not len(arrays):
        return records(content, rng, another)
    name = _pick(rng, arrays)
    data = bytearray(arrays[name].data)
    what = rng.integers(4)
    if what == 0:
        for _ in range(8):
            data[rng.integers(min(len(data), 128))] ^= 1 << rng.integers(8)
    elif what == 1:
        data = data[: rng.integers(len(data))]
    elif what == 2:
        data = bytearray(pickle.dumps(np.zeros(3)))
    else:
        data = bytearray(rng.bytes(rng.integers(200)))
    given = arrays[name]
    arrays[name] = Array(dtype=given.dtype, shape=given.shape, stype=given.stype, data=bytes(data))
    return None


def metrics(content, rng, another):
    """Numbers of samples, shares, clusters and losses that cannot be."""
    record = content.metric_records[protocol.METRICS]
    what = rng.integers(3)
    if what == 0:
        record[protocol.NUM_EXAMPLES] = _pick(rng, BAD_NUMBERS)
    elif what == 1:
        record[_pick(rng, record)] = _pick(rng, BAD_NUMBERS)
    else:
        del content[protocol.METRICS]


def config(content, rng, another):
    """What a device says beside its numbers: who it is, and the method's own keys."""
    record = content.config_records.setdefault(protocol.CLIENT, ConfigRecord())
    what = rng.integers(3)
    strange = [b"\x00\xff", "x" * 5000, -1, 1e308, [1.5, 2.5], ["a"], True, float("nan"), "../../x", "<b>x</b>"]
    if what == 0:
        record[protocol.CLIENT_ID] = _pick(rng, strange)
    elif what == 1 and len(record):
        record[_pick(rng, record)] = _pick(rng, strange)
    else:
        record[_pick(rng, ["reduced-model", "whole-round", "cluster", "map-version"])] = _pick(rng, strange)


def records(content, rng, another):
    """Whole records: missing, doubled, another client's, or an error in their place."""
    what = rng.integers(5)
    if what == 0:
        return RecordDict()
    if what == 1:
        return copy.deepcopy(another.content)  # another client's reply, its name included
    if what == 2:
        content["arrays-2"] = ArrayRecord({"x": Array(np.zeros(3, dtype=np.float32))})
        content["metrics-2"] = MetricRecord({protocol.NUM_EXAMPLES: 5, "accuracy": 7.0})
        return content
    if what == 3:
        return Message(Error(code=2, reason=_pick(rng, ["", "\x1b[31m", "x" * 10**5])), reply_to=another)
    content.pop(protocol.CLIENT, None)
    return content
