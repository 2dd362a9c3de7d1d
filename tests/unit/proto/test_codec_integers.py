"""int8 and int4: never off by more than half a scale, at any size of numbers; wrong bytes named."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from syncline_proto import codec
from syncline_proto.codec import Float32
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

BLOCK = {"int8": 256, "int4": 32}
LEVELS = {"int8": 127, "int4": 7}
TINY = 2.0**-126
HALF = 0.5 + 2.0**-15
"""Of a scale; the rest is fp32's rounding of the quotient."""

VALUES = hnp.arrays(
    np.float32,
    st.integers(1, 600),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    fill=st.floats(-1, 1, width=32),
)
both = pytest.mark.parametrize("name", ["int8", "int4"])


def through(values: Float32, name: str) -> Float32:
    return codec.published(values, codec.CODEC_BY_NAME[name])


def scales_of(values: Float32, name: str) -> Float32:
    """The scale of each element's block, as it was written."""
    of, found = codec.codec_of(codec.CODEC_BY_NAME[name]), np.empty(values.size, np.float32)
    data = bytes(of.encode(values))
    for at in range(0, values.size, BLOCK[name]):
        begin = of.size(at)
        raw = data[begin : begin + 4] if name == "int8" else b"\0\0" + data[begin : begin + 2]
        found[at : at + BLOCK[name]] = struct.unpack("<f", raw)[0]
    return found


@both
@given(values=VALUES)
@settings(max_examples=200, deadline=None)
def test_no_value_is_off_by_more_than_half_a_scale(name: str, values: Float32) -> None:
    scales = scales_of(values, name).astype(np.float64)
    decoded = through(values, name).astype(np.float64)
    assert np.isfinite(decoded).all()
    assert (np.abs(values - decoded) <= HALF * scales).all()
    peaks = np.array(
        [np.abs(values[at : at + BLOCK[name]]).max() for at in range(0, values.size, BLOCK[name])]
    )
    limit = np.where(peaks == 0, 0.0, np.maximum(peaks.astype(np.float64) / LEVELS[name], TINY))
    per_block = np.maximum.reduceat(scales, np.arange(0, values.size, BLOCK[name]))
    assert (per_block <= limit * (1 + 2.0**-23)).all()


@both
@given(values=VALUES)
@settings(max_examples=200, deadline=None)
def test_what_was_decoded_comes_back_to_the_bit(name: str, values: Float32) -> None:
    """Scale times integer is exact, so the same scale and integers are found again."""
    once = through(values, name)
    assert np.array_equal(through(once, name).view(np.uint32), once.view(np.uint32))


@both
@pytest.mark.parametrize("peak", [1e-45, 1e-40, 1e-38, 1.2e-38, 1.5e-36, 1.0, 3.4e38, 3.4028235e38])
def test_the_smallest_and_the_largest_numbers_pass(name: str, peak: float) -> None:
    values = np.linspace(-1, 1, 300, dtype=np.float32) * np.float32(peak)
    decoded = through(values, name)
    assert np.isfinite(decoded).all()
    assert np.abs(values.astype(np.float64) - decoded).max() <= max(
        HALF * peak / LEVELS[name], TINY / 2
    )
    assert (np.sign(decoded) * np.sign(values) >= 0).all()


@both
def test_a_value_that_is_not_finite_spoils_its_block_alone(name: str) -> None:
    values = np.ones(3 * BLOCK[name] + 5, np.float32)
    values[BLOCK[name]] = np.inf
    values[-1] = np.nan
    nan = np.isnan(through(values, name)).reshape(-1)
    at = np.arange(values.size) // BLOCK[name]
    assert np.array_equal(nan, (at == 1) | (at == 3))


def test_int8_is_written_as_the_page_says() -> None:
    """The plain way, element by element."""
    values = np.random.default_rng(0).standard_normal(700).astype(np.float32)
    data = bytes(codec.encode(values, pb.CODEC_INT8))
    for block in range(3):
        here = values[256 * block : 256 * (block + 1)]
        (scale,) = struct.unpack_from("<f", data, 260 * block)
        whole = struct.unpack_from(f"<{here.size}b", data, 260 * block + 4)
        expected = np.float32(scale) * np.array(whole, np.float32)
        assert np.array_equal(through(here, "int8"), expected)
        assert max(map(abs, whole)) == 127


def test_int4_is_written_as_the_page_says() -> None:
    values = np.random.default_rng(0).standard_normal(75).astype(np.float32)
    data = bytes(codec.encode(values, pb.CODEC_INT4))
    for block in range(3):
        here = values[32 * block : 32 * (block + 1)]
        (scale,) = struct.unpack("<f", b"\0\0" + data[18 * block : 18 * block + 2])
        packed = data[18 * block + 2 :][: (here.size + 1) // 2]
        nibbles = [n for byte in packed for n in (byte & 15, byte >> 4)]
        whole = [n - 16 if n > 7 else n for n in nibbles[: here.size]]
        expected = np.float32(scale) * np.array(whole, np.float32)
        assert np.array_equal(through(here, "int4"), expected)
        assert max(map(abs, whole)) == 7
        assert not any(nibbles[here.size :])


@both
def test_an_integer_is_the_value_times_the_inverse_of_the_scale_as_the_page_says(
    name: str,
) -> None:
    """And not the quotient, which where it is half-way may round to the other side."""
    differ, levels = 0, LEVELS[name]
    halves = np.arange(0.5 - levels, levels).astype(np.float32)
    for peak in np.random.default_rng(0).uniform(0.5, 2.0, 200).astype(np.float32):
        scale = scales_of(np.full(BLOCK[name], peak), name)[0]
        values = np.append(halves * scale, np.float32(levels) * scale)
        assert (scales_of(values, name) == scale).all()
        whole = np.rint(values * (np.float32(1.0) / scale))
        assert np.array_equal(through(values, name), whole * scale)
        differ += int((whole != np.rint(values / scale)).sum())
    assert differ > 0


def fp32(value: float) -> bytes:
    return struct.pack("<f", value)


@pytest.mark.parametrize(
    ("data", "kind", "count", "word"),
    [
        (fp32(-1.0) + b"\1", pb.CODEC_INT8, 1, "scale"),
        (fp32(-0.0) + b"\1", pb.CODEC_INT8, 1, "scale"),
        (fp32(np.inf) + b"\1", pb.CODEC_INT8, 1, "scale"),
        (fp32(1.0) + b"\1\x80", pb.CODEC_INT8, 2, "-128"),
        (fp32(-1.0)[2:] + b"\1", pb.CODEC_INT4, 1, "scale"),
        (fp32(np.inf)[2:] + b"\1", pb.CODEC_INT4, 1, "scale"),
        (fp32(1.0)[2:] + b"\x11\x18", pb.CODEC_INT4, 4, "-8"),
        (fp32(1.0)[2:] + b"\x11\x81", pb.CODEC_INT4, 4, "-8"),
        (fp32(1.0)[2:] + b"\x11\x11", pb.CODEC_INT4, 3, "nibble after"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused(
    data: bytes, kind: pb.Codec.ValueType, count: int, word: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^chunk\.data: .*{word}"):
        codec.decode(data, kind, count)


@pytest.mark.parametrize("kind", [pb.CODEC_INT8, pb.CODEC_INT4])
def test_a_scale_that_is_nan_or_would_overflow_decodes_to_what_is_not_finite(
    kind: pb.Codec.ValueType,
) -> None:
    """Signalling or negative NaNs too: the judge sees them, and no warning is raised."""
    for upper in (b"\xc0\x7f", b"\x81\x7f", b"\xc0\xff", b"\x7f\x7f"):
        data = (b"\0\0" if kind == pb.CODEC_INT8 else b"") + upper + b"\7"
        assert not np.isfinite(codec.decode(data, kind, 1)).any()
