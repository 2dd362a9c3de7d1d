"""What comes of a chunk that is pulled."""

from __future__ import annotations

import numpy as np
import pytest

from syncline import change
from syncline.change import Change
from syncline.pulled import Incoming
from syncline.scratch import Scratch
from syncline_proto.codec import Follower, advance, crc32c
from syncline_proto.codec.int8_loops import BLOCK_BYTES
from syncline_proto.errors import ChunkDamaged, InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

VALUES = np.arange(4, dtype=np.float32)


def chunk(data: bytes, crc_off: int = 0) -> pb.Chunk:
    return pb.Chunk(data=data, crc32c=crc32c(data) ^ crc_off)


def test_what_was_damaged_on_the_way_is_to_be_asked_for_again() -> None:
    """Another copy of it may be whole; what is not what was asked for stays so."""
    incoming = Incoming(pb.PullHeader(codec=pb.CODEC_FP32), 4, Scratch())
    with pytest.raises(ChunkDamaged):
        incoming.take(chunk(VALUES.tobytes(), crc_off=1))
    with pytest.raises(InvalidRequest, match="whole elements"):
        incoming.take(chunk(b"odd"))
    with pytest.raises(InvalidRequest, match="0 of 4"):
        incoming.values()
    incoming.take(chunk(VALUES.tobytes()))
    values = incoming.values()
    assert isinstance(values, np.ndarray) and np.array_equal(values, VALUES)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_difference_is_looked_at_as_it_comes_whether_it_is_added_at_once_or_not(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "LONG", 1)
    held, spans = np.zeros(600, np.uint16), np.array([[0, 600]], np.int64)
    after = held.copy()
    told = advance(after, np.linspace(-1, 1, 600, dtype=np.float32))
    assert told is not None
    header = pb.PullHeader(codec=pb.CODEC_INT8, difference_from="a/1/3")

    def incoming() -> Incoming:
        kept = Change(held, spans) if keeps else None
        return Incoming(header, 600, Scratch(), Follower(held, spans), kept)

    bad = bytearray(told)
    bad[4] = 0x80
    for data, says in ((bytes(bad), "-128"), (bytes(told) + b"\0" * 5, "more"), (b"", "1 to")):
        with pytest.raises(InvalidRequest, match=says):
            incoming().take(chunk(data))
    short = incoming()
    short.take(chunk(bytes(told[:260])))
    with pytest.raises(InvalidRequest, match="256 of 600"):
        short.values()
    whole = incoming()
    whole.take(chunk(bytes(told[:260])))
    whole.take(chunk(bytes(told[260:])))
    values = whole.values()
    assert isinstance(values, Change) == keeps
    made = values.made(np.empty_like(held)) if isinstance(values, Change) else values
    assert np.array_equal(made, after) and not held.any()


def test_a_difference_in_many_short_chunks_is_added_as_it_comes() -> None:
    """Each that is kept costs hundreds of bytes, and would keep the training thread waiting."""
    count = 2 * change.LONG + 100
    held, spans = np.zeros(count, np.uint16), np.array([[0, count]], np.int64)
    after = held.copy()
    told = advance(after, np.linspace(-1, 1, count, dtype=np.float32))
    assert told is not None
    kept = Change(held, spans)
    header = pb.PullHeader(codec=pb.CODEC_INT8, difference_from="a/1/3")
    incoming = Incoming(header, count, Scratch(), Follower(held, spans), kept)
    for at in range(0, len(told), BLOCK_BYTES):
        incoming.take(chunk(bytes(told[at : at + BLOCK_BYTES])))
    values = incoming.values()
    assert isinstance(values, np.ndarray) and np.array_equal(values, after)
    assert not kept.chunks and not held.any()


def test_a_whole_value_in_place_of_a_difference_is_none() -> None:
    """A service that starts anew may send it, whatever is held."""
    held, spans = np.zeros(4, np.uint16), np.array([[0, 4]], np.int64)
    header = pb.PullHeader(codec=pb.CODEC_FP32)
    incoming = Incoming(header, 4, Scratch(), Follower(held, spans), Change(held, spans))
    incoming.take(chunk(VALUES.tobytes()))
    values = incoming.values()
    assert isinstance(values, np.ndarray) and np.array_equal(values, VALUES)
