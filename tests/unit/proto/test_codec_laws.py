"""What every codec keeps: sizes, cuts at the grain, bounds of memory, what is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto import codec
from syncline_proto.codec import CODECS, Codec, Float32
from syncline_proto.errors import InvalidRequest

LOSSLESS_COUNT = ("fp32", "bf16", "int8")
"""Whose sizes say how many elements they are of."""
GUARD = 64

every = pytest.mark.parametrize("of", CODECS, ids=lambda of: of.name)
seeds = st.integers(0, 2**32 - 1)


def normal(count: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@every
def test_a_size_says_how_many_elements_there_may_be(of: Codec) -> None:
    counts = range(2 * of.grain + 70)
    sizes = [of.size(n) for n in counts]
    assert sizes[0] == 0 and sizes == sorted(sizes)
    most = {size: n for n, size in zip(counts, sizes, strict=True)}
    for size in range(sizes[-1]):
        assert of.elements(size) == most.get(size)
    if of.name in LOSSLESS_COUNT:
        assert len(most) == len(sizes)
    assert of.elements(of.size(77 * of.grain)) == 77 * of.grain


@every
@given(a=st.integers(0, 20_000), b=st.integers(0, 20_000))
@settings(max_examples=300)
def test_a_cut_costs_no_more_than_its_seam(of: Codec, a: int, b: int) -> None:
    assert of.size(a + b) <= of.size(a) + of.size(b) <= of.size(a + b) + of.seam


@every
def test_the_seam_is_not_more_than_a_cut_may_cost(of: Codec) -> None:
    costs = {of.size(a) + of.size(b) - of.size(a + b) for a in range(130) for b in range(130)}
    assert max(costs) == of.seam


@every
@given(seed=seeds, grains=st.lists(st.integers(1, 40), max_size=4), rest=st.integers(0, 5000))
@settings(max_examples=30, deadline=None)
def test_pieces_cut_at_the_grain_are_the_bytes_of_the_whole(
    of: Codec, seed: int, grains: list[int], rest: int
) -> None:
    ends = np.cumsum([grain * of.grain for grain in grains], dtype=int)
    values = normal(int(sum(grains)) * of.grain + rest, seed)
    parts = [bytes(of.encode(part)) for part in np.split(values, ends)]
    assert b"".join(parts) == bytes(of.encode(values))
    decoded = [codec.decode(part, of.number) for part in parts[:-1]]
    decoded.append(codec.decode(parts[-1], of.number, rest))
    assert np.array_equal(np.concatenate(decoded), codec.published(values, of.number))


@every
def test_tails_of_every_length_come_back_as_near_as_they_should(of: Codec) -> None:
    longest, step = (normal(4096 + 130), 7) if of.name == "topk" else (normal(2 * 256 + 1), 1)
    for count in range(0, longest.size + 1, step):
        values = longest[:count]
        data = of.encode(values)
        assert len(data) == of.size(count)
        lost = np.linalg.norm(values - codec.decode(data, of.number, count))
        share = {"fp32": 0.0, "bf16": 0.005, "int8": 0.02, "int4": 0.2, "topk": 1.0}[of.name]
        assert lost <= share * np.linalg.norm(values)


@every
@given(
    st.dictionaries(
        st.integers(0, 9_999), st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1
    ),
    st.sampled_from([10_000, 9_999]),
    seeds,
)
@settings(max_examples=30, deadline=None)
def test_what_is_not_finite_stays_so_and_in_its_block(
    of: Codec, poison: dict[int, float], count: int, seed: int
) -> None:
    clean = normal(count, seed)
    values = clean.copy()
    places = [at for at in poison if at < count]
    values[places] = [poison[at] for at in places]
    before, after = codec.published(clean, of.number), codec.published(values, of.number)
    block = {"fp32": 1, "bf16": 1, "int8": 256, "int4": 32, "topk": 4096}[of.name]
    hit = {at // block for at in places}
    for at in range(0, count, block):
        here = slice(at, at + block)
        if at // block in hit:
            assert not np.isfinite(after[here]).all()
        else:
            assert np.array_equal(after[here], before[here])


@every
@given(st.data(), st.integers(0, 5_000))
@settings(max_examples=100, deadline=None)
def test_strange_bytes_are_refused_or_read_and_nothing_else_is_written(
    of: Codec, data: st.DataObject, count: int
) -> None:
    """Half of them are good bytes with some changed: those come far."""
    size = of.size(count)
    rng = np.random.default_rng(data.draw(seeds))
    raw = rng.integers(0, 256, size, np.uint8)
    if data.draw(st.booleans()):
        raw = np.frombuffer(of.encode(normal(count)), np.uint8).copy()
        for at in data.draw(st.lists(st.integers(0, size - 1), max_size=3)) if size else ():
            raw[at] = data.draw(st.integers(0, 255))
    wide = np.full(count + 2 * GUARD, 42.0, np.float32)
    try:
        of.decode_into(raw.tobytes(), wide[GUARD : GUARD + count])
    except InvalidRequest as refused:
        assert refused.message.startswith("chunk.data: ")
    assert (wide[:GUARD] == 42.0).all() and (wide[GUARD + count :] == 42.0).all()


@every
@pytest.mark.parametrize("count", [0, 1, 31, 4096, 4097])
def test_a_payload_of_another_size_is_refused(of: Codec, count: int) -> None:
    data = bytes(of.encode(normal(count)))
    for other in (data + b"\0", data[:-1]) if data else (b"\0",):
        with pytest.raises(InvalidRequest, match=r"^chunk\.data: .* do not hold"):
            of.decode_into(other, np.empty(count, np.float32))


@every
def test_zeros_come_back_as_zeros(of: Codec) -> None:
    for count in (1, 2, 255, 256, 257, 4096, 4097, 9000):
        for zero in (0.0, -0.0):
            assert not codec.published(np.full(count, zero, np.float32), of.number).any()


@every
@given(seeds, st.floats(-37.0, 37.0), st.integers(1, 9000))
@settings(max_examples=50, deadline=None)
def test_what_was_decoded_comes_back_as_it_is(
    of: Codec, seed: int, exponent: float, count: int
) -> None:
    values = normal(count, seed) * np.float32(10.0**exponent)
    once = codec.published(values, of.number)
    assert np.array_equal(codec.published(once, of.number), once)


@every
def test_it_is_found_by_number_and_by_name(of: Codec) -> None:
    assert codec.codec_of(of.number) is of
    assert codec.CODEC_BY_NAME[of.name] == of.number
    assert of.with_feedback == (of.size(1 << 20) < 1 << 20), "below 8 bits an element"


@pytest.mark.parametrize("of", [of for of in CODECS if of.with_feedback], ids=lambda of: of.name)
@given(seed=seeds, rounds=st.integers(1, 12), count=st.integers(1, 9000))
@settings(max_examples=30, deadline=None)
def test_with_feedback_nothing_is_lost(of: Codec, seed: int, rounds: int, count: int) -> None:
    """Sum of what was sent + residual = sum of what was to be sent, within fp32's rounding."""
    residual = np.zeros(count, np.float32)
    given_sum, sent_sum = np.zeros(count), np.zeros(count)
    largest = 0.0
    for number in range(rounds):
        delta = normal(count, (seed + number) % 2**32)
        wanted = residual + delta
        sent = codec.published(wanted, of.number)
        residual = wanted - sent
        given_sum += delta
        sent_sum += sent
        largest = max(largest, float(np.abs(wanted).max()), float(np.abs(sent).max()))
    assert np.abs(sent_sum + residual - given_sum).max() <= rounds * largest * 2.0**-23


@every
@given(
    count=st.integers(0, 3000),
    filled=st.integers(0, 1100),
    seed=seeds,
    strange=st.sampled_from([0.0, np.nan, np.inf]),
)
def test_less_is_what_the_codec_writes_of_the_difference(
    of: Codec, count: int, filled: int, seed: int, strange: float
) -> None:
    values, anchor = normal(count, seed), normal(count, seed + 1).view(np.uint32) >> np.uint32(16)
    if count:
        values[count // 2] += np.float32(strange)
    before = normal(filled + of.block + GUARD, seed + 2)
    told = np.concatenate([before[:filled], (anchor << np.uint32(16)).view(np.float32) - values])
    whole = told.size - told.size % of.block
    size, untouched = of.size(whole), before[filled + of.block :].copy()
    out = np.full(size + GUARD, 7, np.uint8)
    over = of.encode_less(before, filled, anchor.astype(np.uint16), values, out[:size])
    assert (over is not None) == (of.name in ("bf16", "int8"))
    assert np.all(out[size if over is not None else 0 :] == 7)
    if over is not None:
        assert out[:size].tobytes() == bytes(of.encode(told[:whole]))
        assert before[:over].tobytes() == told[whole:].tobytes()
        assert before[filled + of.block :].tobytes() == untouched.tobytes()


@every
@pytest.mark.parametrize("count", [1, 255, 256, 257, 5000, 40_001])
@pytest.mark.parametrize("rescale", [1.0, 0.37])
def test_two_are_scaled_at_once_as_one_after_the_other(
    of: Codec, count: int, rescale: float
) -> None:
    one, other = bytes(of.encode(normal(count, 1))), bytes(of.encode(normal(count, 2)))
    factors = np.array([0.3, rescale, 0.7], np.float32)
    factor, product, other_factor = factors
    both, by_turns = np.full((2, count), np.nan, np.float32)
    of.scale_both(one, other, both, factors)
    of.scale(one, by_turns, factor)
    by_turns *= product
    of.add(other, by_turns, other_factor)
    assert np.array_equal(both.view(np.uint32), by_turns.view(np.uint32))


@pytest.mark.parametrize("place", [0, 1])
def test_two_int8_of_which_either_is_none_are_refused(place: int) -> None:
    of = codec.codec_of(codec.CODEC_BY_NAME["int8"])
    good = bytes(of.encode(normal(300)))
    for at, byte in ((4, 0x80), (3, 0x80), (-1, 0x80)):
        bad = bytearray(good)
        bad[at] = byte
        one, other = (bytes(bad), good) if place == 0 else (good, bytes(bad))
        with pytest.raises(InvalidRequest):
            of.scale_both(one, other, np.empty(300, np.float32), np.ones(3, np.float32))
