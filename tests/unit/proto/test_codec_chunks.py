"""A payload's way: cut at the grain, each chunk within its bounds and checked as it comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto import codec
from syncline_proto.codec import CODECS, Codec
from syncline_proto.codec.base import PIECE
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


SIZES = [1, 255, 256, 4096, PIECE - 1, PIECE, 2 * PIECE + 5000]


@pytest.mark.parametrize("of", CODECS, ids=lambda of: of.name)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_done_with_encoded_values_is_done_with_the_decoded_ones(
    of: Codec, size: int
) -> None:
    """In pieces, into a sum, into its place, and as a norm: to the bit, but for the norm."""
    rng = np.random.default_rng(size)
    data = of.encode(rng.standard_normal(size).astype(np.float32))
    values = np.empty(size, np.float32)
    of.decode_into(data, values)
    assert np.array_equal(np.concatenate([p.copy() for p in of.pieces(data, size)]), values)
    sum_, factor = rng.standard_normal(size).astype(np.float32), np.float32(0.3)
    expected = sum_ + factor * values
    of.add(data, sum_, factor)
    assert np.array_equal(sum_, expected)
    of.scale(data, sum_, factor)
    assert np.array_equal(sum_, factor * values)
    into, expected = np.empty(len(data), np.uint8), float((values.astype(np.float64) ** 2).sum())
    odd = memoryview(b"\1" + bytes(data))[1:]  # as it may lie in a message
    assert of.copy(odd, into, size) == pytest.approx(expected)
    assert bytes(into) == bytes(data)


@pytest.mark.parametrize("of", CODECS, ids=lambda of: of.name)
def test_what_is_not_finite_shows_in_the_norm(of: Codec) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        values = np.ones(1000, np.float32)
        values[700] = bad
        data = of.encode(values)
        assert not np.isfinite(of.copy(data, np.empty(len(data), np.uint8), values.size))


@pytest.mark.parametrize("of", CODECS, ids=lambda of: of.name)
def test_bytes_of_another_length_are_refused_whatever_is_done_with_them(of: Codec) -> None:
    data, out = of.encode(np.ones(1000, np.float32)), np.zeros(999, np.float32)
    for done in (
        lambda: of.decode_into(data[:-5], out),
        lambda: of.add(data[:-5], out, np.float32(1)),
        lambda: of.scale(data[:-5], out, np.float32(1)),
        lambda: of.copy(data, np.empty(len(data), np.uint8), 2000),
        lambda: list(of.pieces(data, 2000)),
    ):
        with pytest.raises(InvalidRequest, match="bytes do not hold"):
            done()
    assert not out.any()


@pytest.mark.parametrize(("at", "byte"), [(3, 0xBF), (1043, 0xFF), (30, 0x80), (1100, 0x80)])
def test_int8_that_no_encoder_writes_is_refused_whatever_is_done(at: int, byte: int) -> None:
    of, out = codec.codec_of(pb.CODEC_INT8), np.zeros(2000, np.float32)
    data = bytearray(of.encode(np.ones(2000, np.float32)))
    data[at] = byte  # of a scale, or of an integer
    for done in (
        lambda: of.decode_into(bytes(data), out),
        lambda: of.add(bytes(data), out, np.float32(1)),
        lambda: of.scale(bytes(data), out, np.float32(1)),
        lambda: of.copy(bytes(data), np.empty(len(data), np.uint8), 2000),
    ):
        with pytest.raises(InvalidRequest, match="a scale is negative|is -128"):
            done()


def test_the_checksum_is_castagnoli_in_one_piece_or_many() -> None:
    assert codec.crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's CRC
    data = bytes(range(256)) * 9000
    assert codec.crc32c(memoryview(data)) == codec.crc32c(data)
    assert codec.crc32c(data[1000:], codec.crc32c(data[:1000])) == codec.crc32c(data)


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
        (chunk(codec.CHUNK_BYTES_MAX + 4096), 1 << 20),  # too large
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
    """A chunk that was read is a part of its message, and is checked without a copy."""
    elements = len(data) // 4
    message = write_chunk(Chunk(data, codec.crc32c(data)))
    read = read_chunk(message)
    assert read is not None
    assert codec.check_chunk(read, pb.CODEC_FP32, elements) == elements
    end = len(message) - 4  # of what stands before the checksum: a tag, and before it the data
    places = st.integers(end - 1 - len(data), len(message) - 1)
    at = draw.draw(places.filter(lambda at: at != end - 1))
    bit = 1 << draw.draw(st.integers(0, 7))
    damaged = read_chunk(message[:at] + bytes([message[at] ^ bit]) + message[at + 1 :])
    assert damaged is not None
    with pytest.raises(InvalidRequest, match=r"chunk\.crc32c"):
        codec.check_chunk(damaged, pb.CODEC_FP32, elements)
