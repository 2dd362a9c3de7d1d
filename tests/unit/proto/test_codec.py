"""Numbers survive the wire: fp32 to the bit, bf16 as torch rounds it, chunks by their rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from syncline_proto import codec
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

BITS = hnp.arrays(np.uint32, st.integers(0, 300), elements=st.integers(0, 2**32 - 1))
EDGES = np.array(
    [
        *(0x00000000, 0x80000000, 0x00000001, 0x007FFFFF, 0x00800000),  # zeros, denormals, normal
        *(0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF),  # ties to even, just above, just below
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F800000, 0xFF800000),  # the largest, infinities
        *(0x7FC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF),  # NaNs, quiet or not
    ],
    np.uint32,
)


def as_torch_rounds(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()


@given(BITS)
def test_fp32_comes_back_to_the_bit(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    data = bytes(codec.encode(values, pb.CODEC_FP32))
    assert data == values.astype("<f4").tobytes()
    assert np.array_equal(codec.decode(data, pb.CODEC_FP32).view(np.uint32), bits)


@given(BITS)
def test_bf16_is_what_torch_rounds_to(bits: np.ndarray) -> None:
    """NaN stays NaN; everything else is equal to the bit, infinities and denormals too."""
    values = np.concatenate([bits, EDGES]).view(np.float32)
    ours = codec.published(values, pb.CODEC_BF16)
    theirs = as_torch_rounds(values)
    nan = np.isnan(values)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


def test_bf16_of_a_long_vector_is_the_same_in_every_piece() -> None:
    values = np.random.default_rng(0).standard_normal(200_001).astype(np.float32)
    assert np.array_equal(codec.published(values, pb.CODEC_BF16), as_torch_rounds(values))


@given(BITS)
def test_a_published_value_is_its_own_published_value(bits: np.ndarray) -> None:
    once = codec.published(bits.view(np.float32), pb.CODEC_BF16)
    twice = codec.published(once, pb.CODEC_BF16)
    assert np.array_equal(once.view(np.uint32), twice.view(np.uint32))


@given(st.integers(0, 700_000), st.sampled_from([pb.CODEC_FP32, pb.CODEC_BF16]))
@settings(max_examples=20, deadline=None)
def test_chunks_are_in_order_full_and_pass_their_own_check(
    size: int, kind: pb.Codec.ValueType
) -> None:
    values = np.arange(size, dtype=np.float32)
    payload = codec.encode(values, kind)
    left, parts = size, []
    for chunk in codec.chunks(payload, kind):
        assert len(chunk.data) <= codec.CHUNK_BYTES_MAX
        count = codec.check_chunk(chunk, kind, left)
        assert count % codec.CHUNK_GRAIN == 0 or count == left
        left -= count
        parts.append(chunk.data)
    assert left == 0
    assert b"".join(parts) == bytes(payload)


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


def test_an_unknown_codec_and_a_wrong_size_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="codec"):
        codec.width(99)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidRequest, match="do not hold"):
        codec.decode_into(bytes(8), pb.CODEC_FP32, np.empty(3, np.float32))
