"""What a device says of itself reaches the record as a line of text, however it is meant."""

import json

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from bouquet.client import app as client_app
from bouquet.client import device_log
from bouquet.common import protocol
from bouquet.common.protocol.error_replies import OwnerRefusal, refusal
from bouquet.common.texts import LONGEST, plain
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.server.fleet.names import Names
from bouquet.server.run_folder import NAMES
from bouquet.strategies import FedAvg
from bouquet.strategies.base import reply_checks

FORGED = "\x1b[2J\r\nround 3 without garden-pi: \u202eabsent\u2028\x00\x9b31m"
LONG = FORGED + "x" * 100_000  # several of them are less than a reply may take beside its model


def is_plain(text):
    return len(text) <= LONGEST and text.isprintable()


@given(st.text(max_size=500))
def test_any_text_is_one_short_line_and_stays_what_it_is(text):
    found = plain(text)
    assert len(found) <= LONGEST
    controls = (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    assert not set(found) & set(map(chr, controls))
    assert plain(found) == found
    found.encode()


def test_what_is_text_already_is_left_alone():
    for text in ("garden-pi", "Ütliberg 3", "花園", "The disk is full.", "x" * LONGEST):
        assert plain(text) == text
    assert plain("x" * 301) == "x" * 299 + "…"
    assert plain("a\nb\tc") == "a b c"


def words_of(strategy, folder):
    """All that a server keeps of what its devices said, as JSON."""
    kept = [
        strategy.train_round.failures,
        list(strategy.node_names.values()),
        strategy.exclusion.in_a_row,
        strategy.evaluate_round.scores,
    ]
    received = strategy.train_round.replies.received if strategy.train_round.replies else ()
    kept += [[reply.metrics, reply.config, reply.client] for reply in received]
    return [*texts(json.loads(json.dumps(kept))), *texts(json.loads((folder / NAMES).read_text()))]


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def hostile(kind, honest):
    def answer(message):
        if message.metadata.message_type == protocol.IDENTIFY:
            said = {protocol.RELEASE: LONG, protocol.DEVICE_ID: LONG, LONG: [LONG, LONG]}
            said |= {protocol.REFUSES: LONG} if kind == "owner" else {}
            return protocol.reply(message, LONG, {}, None, said)
        if kind == "error":
            return Message(Error(0, LONG), reply_to=message)
        if kind == "unfit":
            return refusal(message, OwnerRefusal(LONG))
        reply = honest(message)
        content = RecordDict(dict(reply.content))
        content[protocol.CLIENT] = ConfigRecord({protocol.CLIENT_ID: LONG, LONG: LONG, "list": [LONG] * 3})
        if kind == "metric":
            content[protocol.METRICS] = MetricRecord({**content[protocol.METRICS], LONG: 1.0})
        if kind == "bad metric":
            content[protocol.METRICS] = MetricRecord({**content[protocol.METRICS], LONG: float("nan")})
        if kind == "tensor":
            arrays = content[protocol.ARRAYS]
            arrays[LONG] = arrays.pop("last.weight")
        return Message(content, reply_to=message)

    return answer


@pytest.mark.parametrize("kind", ["error", "unfit", "owner", "config", "metric", "bad metric", "tensor"])
def test_whatever_it_says_is_a_line_in_what_the_server_keeps(scripted, play, tmp_path, kind):
    honest = scripted("x", lambda start, _: start + 1)
    clients = {1: scripted("a", lambda start, _: start + 1), 9: hostile(kind, honest)}
    strategy = FedAvg(identify=True, round_timeout=5.0)
    strategy.names = Names(tmp_path)
    play(strategy, InlineGrid(clients), range(1, 3))
    found = words_of(strategy, tmp_path)
    assert any("garden-pi" in text for text in found)
    assert [text[:80] for text in found if not is_plain(text)] == []
    assert len(strategy.train_round.replies) == (2 if kind in ("config", "metric") else 1)


def test_nor_does_the_number_of_things_grow(scripted, layout):
    honest = scripted("x", lambda start, _: start + 1)
    message = Message(
        protocol.Encoder(layout).content(protocol.Instruction(), 1, "", {}), dst_node_id=9, message_type="train"
    )
    reply = honest(message)
    reply.content[protocol.CLIENT] = ConfigRecord({str(k): "v" for k in range(10_000)})
    assert len(reply_checks.read_reply(reply, layout).config) <= 100
    assert len(protocol.about(reply)) <= 100
    reply.content["more"] = MetricRecord({str(k): 1.0 for k in range(4_000)})
    with pytest.raises(protocol.ProtocolError, match="4000 metrics"):
        reply_checks.read_reply(reply, layout)


def test_what_a_server_says_is_a_line_of_the_devices_log(capsys):
    device_log.say(f"The server says: {LONG}")
    printed = capsys.readouterr().out
    assert printed.endswith("\n")
    assert printed[:-1].isprintable()
    assert len(printed) <= device_log.LONGEST_LINE + 1
    assert client_app.LONGEST_NOTICE >= LONGEST
