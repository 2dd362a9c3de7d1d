"""A payload's way: cut at the grain, each chunk within its bounds and checked as it comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto import codec
from syncline_proto.codec import CODECS, Codec
from syncline_proto.errors import InvalidRequest
from syncline_proto.parts import Chunk, read_chunk, write_chunk
from syncline_proto.v1 import sync_pb2 as pb


@given(st.integers(0, 2_500_000), st.sampled_from(CODECS))
@settings(max_examples=20, deadline=None)
def test_chunks_are_in_order_full_and_pass_their_own_check(size: int, of: Codec) -> None:
    kind = of.number
    payload = of.encode(np.arange(size, dtype=np.float32))
    left, parts = size, []
    for chunk in codec.chunks(payload, kind):
        assert len(chunk.data) <= codec.CHUNK_BYTES_MAX
        count = codec.check_chunk(chunk, kind, left)
        assert count % of.grain == 0 or count == left
        left -= count
        parts.append(chunk.data)
    assert left == 0
    assert b"".join(parts) == bytes(payload)
    full = of.size(codec.chunk_elements(kind))
    assert {len(part) for part in parts[:-1]} <= {full}


@pytest.mark.parametrize("of", CODECS, ids=lambda of: of.name)
@pytest.mark.parametrize("room", [4096, 5000, 20_000, 100_000])
def test_a_chunk_decodes_in_pieces_to_the_same(of: Codec, room: int) -> None:
    values = np.random.default_rng(0).standard_normal(30_001).astype(np.float32)
    data, scratch = bytes(of.encode(values)), np.empty(room, np.float32)
    parts = [piece.copy() for piece in codec.pieces(data, of.number, values.size, scratch)]
    assert np.array_equal(np.concatenate(parts), codec.published(values, of.number))


def test_the_checksum_is_castagnoli_in_one_piece_or_many() -> None:
    assert codec.crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's CRC
    data = bytes(range(256)) * 9000
    assert codec.crc32c_of(data) == codec.crc32c(data)
    assert codec.crc32c_of(data[1000:], codec.crc32c_of(data[:1000])) == codec.crc32c(data)


def chunk(size: int, crc_off: int = 0) -> pb.Chunk:
    data = bytes(size)
    return pb.Chunk(data=data, crc32c=codec.crc32c(data) ^ crc_off)


@pytest.mark.parametrize(
    ("bad", "left"),
    [
        (chunk(0), 4),  # empty
        (chunk(6), 4),  # not whole elements
        (chunk(20), 4),  # past the end
        (chunk(4 * 1000), 2000),  # off the grain, and not the last
        (chunk((1 << 20) + 4096), 1 << 20),  # over 1 MiB
        (chunk(16, crc_off=1), 4),  # damaged
    ],
    ids=["empty", "torn", "too-long", "off-grain", "too-large", "damaged"],
)
def test_a_chunk_that_breaks_a_rule_is_refused(bad: pb.Chunk, left: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^chunk\."):
        codec.check_chunk(bad, pb.CODEC_FP32, left)


@pytest.mark.parametrize("of", CODECS, ids=lambda of: of.name)
@given(size=st.integers(1, 12_000), left=st.integers(1, 12_000))
@settings(max_examples=200, deadline=None)
def test_whatever_its_size_a_chunk_is_refused_or_holds_what_is_said(
    of: Codec, size: int, left: int
) -> None:
    """Nobody may make a receiver take more elements than are to come, or lose count of them."""
    try:
        count = codec.check_chunk(chunk(size), of.number, left)
    except InvalidRequest:
        assert size != of.size(left)
        assert all(size != of.size(n) for n in range(of.grain, left, of.grain))
    else:
        assert of.size(count) == size
        assert count == left or (count < left and count % of.grain == 0)


@given(st.binary(min_size=4, max_size=300).map(lambda data: data[: len(data) // 4 * 4]), st.data())
def test_damage_is_seen_in_a_message_as_in_its_data(data: bytes, draw: st.DataObject) -> None:
    """A chunk that was read is checked as a part of its message, without a copy."""
    elements = len(data) // 4
    message = write_chunk(Chunk(data, codec.crc32c(data)))
    read = read_chunk(message)
    assert read is not None
    assert codec.check_chunk(read, pb.CODEC_FP32, elements) == elements
    places = st.integers(len(read.head), len(message) - 1)
    at = draw.draw(places.filter(lambda at: at != len(message) - len(read.tail)))  # not a tag
    bit = 1 << draw.draw(st.integers(0, 7))
    damaged = read_chunk(message[:at] + bytes([message[at] ^ bit]) + message[at + 1 :])
    assert damaged is not None
    with pytest.raises(InvalidRequest, match=r"chunk\.crc32c"):
        codec.check_chunk(damaged, pb.CODEC_FP32, elements)
