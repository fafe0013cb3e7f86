"""Contents between two ends in one process: cut anywhere, in any pieces; what each end keeps of the other's words."""

import asyncio
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.common.wire.fleet_pb2 import Chunk, Content, Credit, DeviceFrame
from bouquet.common.wire.transfer import (
    CHUNK_BYTES,
    INLINE_BYTES,
    MOST_WAITING,
    WINDOW_BYTES,
    Incoming,
    Outbox,
    Outgoing,
    WireError,
    content_in,
    content_of,
    is_whole,
)

DATA = os.urandom(20 * CHUNK_BYTES + 5)
ABOUT = Content(size=len(DATA), sha256=hashlib.sha256(DATA).digest())
WINDOW = WINDOW_BYTES // CHUNK_BYTES


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    file = tmp_path_factory.mktemp("source") / "content"
    file.write_bytes(DATA)
    return file


@given(cuts=st.lists(st.integers(1, 30), max_size=6), lost=st.integers(0, WINDOW))
def test_a_cut_costs_no_more_than_what_was_on_its_way(source, cuts, lost):
    """``cuts`` are numbers of chunks after which a connection ends; of the last ``lost`` nothing arrived."""
    file = source.with_name("incoming")
    travelled = 0
    for number in [*cuts, 10**9]:
        incoming, outgoing = Incoming("a", ABOUT, file), Outgoing("a", source, len(DATA))
        outgoing.extend(incoming.begin())
        sent = []
        while len(sent) < number and (chunk := outgoing.next()) is not None:
            sent.append(chunk)
            travelled += len(chunk.data)
            if len(sent) > lost or number == 10**9:  # what the receiver is behind
                arrived = sent[len(sent) - 1 - (lost if number < 10**9 else 0)]
                if (credit := incoming.add(arrived)) is not None:
                    assert credit.end - incoming.at <= WINDOW_BYTES
                    outgoing.extend(credit)
        if incoming.is_complete:
            break
        incoming.close()
    assert incoming.finish().read_bytes() == DATA
    assert travelled <= len(DATA) + len(cuts) * lost * CHUNK_BYTES
    assert not incoming.part.exists()
    file.unlink()


def test_a_part_of_another_content_is_of_no_use(tmp_path):
    first = Incoming("a", ABOUT, tmp_path / "a")
    first.begin()
    first.add(Chunk(id="a", data=b"x" * 100))
    first.close()
    other = Incoming("a", Content(size=len(DATA), sha256=b"o" * 32), tmp_path / "a")
    assert other.at == 0
    other.drop()
    shorter = Incoming("a", Content(size=50, sha256=ABOUT.sha256), tmp_path / "a")
    assert shorter.at == 0  # it is longer than it may be
    shorter.drop()
    shorter.drop()
    assert not [*tmp_path.iterdir()]


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(tmp_path):
    (tmp_path / "a").write_bytes(DATA[:10])
    outgoing = Outgoing("a", tmp_path / "a", 20)
    outgoing.extend(Credit(id="a", offset=0, end=20))
    with pytest.raises(WireError, match="shrunk"):
        outgoing.next()


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, INLINE_BYTES + 1])
def test_a_content_is_the_same_of_memory_and_of_a_file(tmp_path, size):
    (tmp_path / "a").write_bytes(DATA[:size])
    assert content_of(DATA[:size]) == content_in(tmp_path / "a")
    assert is_whole(content_of(DATA[:size])) == (size <= INLINE_BYTES)


def test_frames_come_in_their_order_and_before_chunks_which_take_turns(source):
    async def play():
        outbox = Outbox(DeviceFrame)
        for identifier in ("a", "b", "withdrawn"):
            outbox.offer(Outgoing(identifier, source, len(DATA)))
            outbox.credit(Credit(id=identifier, offset=0, end=2 * CHUNK_BYTES))
        outbox.credit(Credit(id="nobody offers that", offset=0, end=1))
        outbox.put(reply={"id": "first"})
        outbox.put_later(lambda: DeviceFrame(reply={"id": "second"}))
        outbox.withdraw("withdrawn")
        outbox.close()
        found = []
        while (data := await outbox.next()) is not None:
            frame = DeviceFrame.FromString(data)
            found.append((frame.WhichOneof("frame"), getattr(frame, frame.WhichOneof("frame")).id))
        return found

    chunks = [("chunk", "a"), ("chunk", "b")] * 2
    assert asyncio.run(play()) == [("reply", "first"), ("reply", "second"), *chunks]


def test_an_end_that_says_and_never_reads_makes_the_other_keep_no_more_than_a_number(source):
    async def play():
        outbox = Outbox(DeviceFrame)
        for _ in range(3 * MOST_WAITING):  # a bundle is offered anew with each Credit that has an offset
            outbox.offer(Outgoing("a", source, len(DATA)))
            outbox.credit(Credit(id="a", offset=0, end=1))
        assert len(outbox._turns) == len(outbox._contents) == 1
        for _ in range(MOST_WAITING):
            outbox.put(pong={})
        with pytest.raises(WireError, match="more answers than it reads"):
            outbox.put(pong={})

    asyncio.run(play())
