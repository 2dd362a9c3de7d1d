"""fp32 comes back to the bit, bf16 as torch rounds it; who is not known is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
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


def test_an_unknown_codec_and_a_wrong_size_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="codec"):
        codec.codec_of(99)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidRequest, match="do not hold"):
        codec.decode_into(bytes(8), pb.CODEC_FP32, np.empty(3, np.float32))
