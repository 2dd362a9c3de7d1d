"""topk: exactly the largest are kept, the error is never more than the input; wrong bytes named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from syncline_proto import codec
from syncline_proto.codec import Float32
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

TOPK = pb.CODEC_TOPK
BLOCK, ONE_IN = 4096, 64
BF16_ERROR, BF16_LEAST = 2.0**-8, 2.0**-133
"""Of a number, at most; and the least number over 0, of which the error is half at most."""

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def vectors(draw: st.DrawFn) -> Float32:
    """Numbers of any size, few different ones (so many are equal), or mostly zeros."""
    count = draw(st.sampled_from([1, 63, 64, 65, 128, 4095, 4096, 4097, 9000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal(count)
    how = draw(st.sampled_from(["any", "few", "sparse", "drawn"]))
    if how == "few":
        values = np.round(values * draw(st.integers(0, 2)))
    elif how == "sparse":
        values[rng.random(count) < 0.995] = 0.0
    elif how == "drawn":
        return draw(hnp.arrays(np.float32, draw(st.integers(1, 200)), elements=FINITE))
    return (values * 10.0 ** draw(st.integers(-40, 37))).astype(np.float32)


def largest(block: Float32) -> list[int]:
    """By sorting: stable, so the first of equals comes first."""
    order = np.argsort(-np.abs(block), kind="stable")
    return sorted(order[: -(-block.size // ONE_IN)].tolist())


def kept_indices(data: bytes, count: int) -> list[int]:
    """Read as the page says: bit by bit, the lowest first."""
    kept = -(-count // ONE_IN)
    number = int.from_bytes(data[4 : 4 + (12 * kept + 7) // 8], "little")
    return [number >> 12 * i & 0xFFF for i in range(kept)]


@given(vectors())
@settings(max_examples=200, deadline=None)
def test_the_largest_are_kept_the_first_of_equals_and_no_other(values: Float32) -> None:
    of = codec.codec_of(TOPK)
    data, decoded = bytes(of.encode(values)), codec.published(values, TOPK)
    for at in range(0, values.size, BLOCK):
        block = values[at : at + BLOCK]
        expected = largest(block)
        assert kept_indices(data[of.size(at) :], block.size) == expected
        rest = np.delete(decoded[at : at + BLOCK], expected)
        assert not rest.any()
        kept = decoded[at : at + BLOCK][expected]
        assert (np.sign(kept) * np.sign(block[expected]) >= 0).all(), "nothing is turned round"
        assert len(set(np.abs(kept).tolist())) <= 2


@given(vectors())
@settings(max_examples=200, deadline=None)
def test_the_error_is_at_most_what_one_magnitude_for_all_that_is_kept_would_leave(
    values: Float32,
) -> None:
    """Their mean as bf16, and zeros elsewhere; so never more than the input."""
    wide = values.astype(np.float64)
    lost = wide - codec.published(values, TOPK)
    assert np.isfinite(lost).all()
    for at in range(0, values.size, BLOCK):
        block = wide[at : at + BLOCK]
        kept = np.abs(block[largest(values[at : at + BLOCK])])
        told = kept.sum() ** 2 / kept.size
        bound = (block**2).sum() - told * (1 - BF16_ERROR**2)
        subnormal = kept.size * BF16_LEAST**2
        assert (lost[at : at + BLOCK] ** 2).sum() <= bound + subnormal + 1e-9 * (block**2).sum()
    assert np.linalg.norm(lost) <= np.linalg.norm(wide)


@given(vectors())
@settings(max_examples=100, deadline=None)
def test_what_was_decoded_comes_back_as_it_is(values: Float32) -> None:
    once = codec.published(values, TOPK)
    assert np.array_equal(codec.published(once, TOPK), once)


def test_equal_magnitudes_are_sent_exactly_and_two_kinds_too() -> None:
    values = np.zeros(2 * BLOCK, np.float32)
    values[:64] = -0.5
    values[BLOCK : BLOCK + 128 : 2] = np.tile(np.array([2.0, -0.25], np.float32), 32)
    assert np.array_equal(codec.published(values, TOPK), values)


def test_magnitudes_near_the_largest_number_stay_finite() -> None:
    values = np.full(70, np.finfo(np.float32).max, np.float32)
    assert np.isfinite(codec.published(values, TOPK)).all()


def test_a_value_that_is_not_finite_spoils_its_block_alone() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        values = np.random.default_rng(0).standard_normal(3 * BLOCK).astype(np.float32)
        values[BLOCK + 7] = bad
        decoded = codec.published(values, TOPK)
        assert np.isfinite(np.delete(decoded.reshape(3, BLOCK), 1, axis=0)).all()
        assert np.isnan(decoded[BLOCK : 2 * BLOCK]).sum() == ONE_IN
    everything = codec.published(np.full(BLOCK, np.nan, np.float32), TOPK)
    assert np.isnan(everything).sum() == ONE_IN


def block(indices: list[int], codes: list[int], small: int = 0x3F80, large: int = 0x4000) -> bytes:
    number = sum(index << 12 * i for i, index in enumerate(indices))
    packed = sum(code << 2 * i for i, code in enumerate(codes))
    sizes = (12 * len(indices) + 7) // 8, (2 * len(indices) + 7) // 8
    magnitudes = small.to_bytes(2, "little") + large.to_bytes(2, "little")
    return magnitudes + number.to_bytes(sizes[0], "little") + packed.to_bytes(sizes[1], "little")


def test_a_block_written_by_hand_is_read() -> None:
    """150 elements, so 3 are kept: indices and codes end within a byte."""
    decoded = codec.decode(block([0, 70, 149], [0, 3, 1]), TOPK, 150)
    assert {int(at): decoded[at] for at in np.flatnonzero(decoded)} == {0: 1.0, 70: -2.0, 149: 2.0}
    assert bytes(codec.encode(decoded, TOPK)) == block([0, 70, 149], [0, 3, 1])


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (block([0, 70, 70], [0, 0, 0]), "ascending"),
        (block([9, 70, 69], [0, 0, 0]), "ascending"),
        (block([0, 70, 150], [0, 0, 0]), "not below 150"),
        (block([0, 70, 4095], [0, 0, 0]), "not below 150"),
        (block([0, 70, 149 | 1 << 12], [0, 0, 0]), "bits after"),
        (block([0, 70, 149], [0, 0, 1 << 2]), "bits after"),
        (block([0, 70, 149], [0, 0, 0], small=0xBF80), "scale"),
        (block([0, 70, 149], [0, 0, 0], large=0x7F80), "scale"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused(data: bytes, word: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^chunk\.data: .*{word}"):
        codec.decode(data, TOPK, 150)
