"""Differences between published values: everyone who adds them holds the same bits."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline_proto.codec import (
    CHUNK_BYTES_MAX,
    DIFFERENCE_ELEMENTS,
    Float32,
    Follower,
    UInt16,
    advance,
    carry,
    cut,
    decode,
    encode,
    is_worth_it,
    publish,
)
from syncline_proto.errors import InvalidRequest
from syncline_proto.v1 import sync_pb2 as pb

NUMEL = 1_200
"""Four blocks and a part of one."""

FEW = settings(max_examples=40)

Spans = list[tuple[int, int]]


def bits_of(values: Float32) -> UInt16:
    held = np.empty(values.size, np.uint16)
    publish(held, values)
    return held


def values_of(bits: UInt16) -> Float32:
    return decode(bits.data.cast("B"), pb.CODEC_BF16)


def noise(seed: int, size: int = NUMEL, scale: float = 1.0) -> Float32:
    """Of all magnitudes, since parameters are."""
    rng = np.random.default_rng(seed)
    return (scale * rng.standard_normal(size) * 10 ** rng.uniform(-3, 0, size)).astype(np.float32)


def step(seed: int) -> tuple[UInt16, UInt16, memoryview]:
    """A published value, the one after it, and the difference."""
    first = noise(seed)
    before = bits_of(first)
    after = before.copy()
    difference = advance(after, first + noise(seed + 1, scale=0.01))
    assert difference is not None
    return before, after, difference


def by_the_page(data: bytes, places: list[int], held: Float32) -> Float32:
    """A chunk, element by element, as docs/protocol.md tells it."""
    at, block, scale, out = 0, -1, np.float32(0), np.empty(len(places), np.float32)
    for i, place in enumerate(places):
        if place // 256 != block:
            block, at = place // 256, at + 4
            scale = np.float32(struct.unpack("<f", data[at - 4 : at])[0])
        out[i] = held[i] + scale * np.float32(struct.unpack("b", data[at : at + 1])[0])
        at += 1
    assert at == len(data)
    return values_of(bits_of(out))


@st.composite
def shards(draw: st.DrawFn) -> Spans:
    """Spans in any order; they may follow one another, or overlap."""
    edges = sorted(draw(st.sets(st.integers(0, NUMEL), min_size=2, max_size=12)))
    disjoint = draw(st.permutations([(a, b - a) for a, b in pairwise(edges)]))
    more = draw(st.lists(st.integers(0, NUMEL - 300), max_size=3))
    return [*disjoint[: draw(st.integers(1, len(disjoint)))], *((at, 300) for at in more)]


@FEW
@given(spans=shards(), full=st.integers(20, 900), seed=st.integers(0, 3))
def test_any_shard_in_any_chunks_leads_to_the_same_bits(spans: Spans, full: int, seed: int) -> None:
    before, after, difference = step(seed)
    places = [at for start, length in spans for at in range(start, start + length)]
    follower = Follower(before[places], np.array(spans, np.int64))
    out, filled = np.empty(len(places), np.uint16), 0
    for at in range(0, len(places), full):
        some = places[at : at + full]
        chunk = cut(difference, np.array([(place, 1) for place in some], np.int64))
        assert filled == at
        told = by_the_page(bytes(chunk), some, values_of(before[some]))
        filled += follower.follow(chunk, out[filled:])
        assert np.array_equal(told, values_of(out[at:filled]))
    assert filled == len(places)
    assert np.array_equal(out, after[places])


@FEW
@given(
    spans=shards(),
    full=st.integers(20, 900),
    seed=st.integers(0, 3),
    cuts=st.lists(st.integers(0, NUMEL), max_size=6),
    stops=st.lists(st.integers(0, 30), max_size=3),
)
def test_what_is_carried_where_it_lies_is_what_a_follower_writes(
    spans: Spans, full: int, seed: int, cuts: list[int], stops: list[int]
) -> None:
    before, _, difference = step(seed)
    places = [at for start, length in spans for at in range(start, start + length)]
    where = np.array(spans, np.int64)
    told = [
        bytes(cut(difference, np.array([(place, 1) for place in places[at : at + full]], np.int64)))
        for at in range(0, len(places), full)
    ]
    followed, follower, filled = (
        np.empty(len(places), np.uint16),
        Follower(before[places], where),
        0,
    )
    checker = Follower(before[places], where)
    for chunk in told:
        taken = follower.follow(chunk, followed[filled:])
        assert checker.check(chunk) == taken
        filled += taken
    edges = [0, *sorted(min(at, len(places)) for at in cuts), len(places)]
    held, done = before[places], np.zeros(1, np.int64)
    outs = [np.full(end - begin, np.nan, np.float32) for begin, end in pairwise(edges)]

    class Broken(Exception):
        pass

    def until(stop: int) -> Iterator[bytes]:
        for number, chunk in enumerate(told):
            if number == stop:
                raise Broken
            yield chunk

    for stop in stops:
        with suppress(Broken):
            carry(until(stop), held, where, outs, done)
        for out in outs:
            out[:] = np.nan  # whatever the model holds by then
    carry(told, held, where, outs, done)
    assert np.array_equal(held, followed)
    assert np.array_equal(np.concatenate(outs), values_of(followed))


@FEW
@given(spans=shards())
def test_a_chunk_is_the_same_however_its_elements_are_told(spans: Spans) -> None:
    _, _, difference = step(0)
    alone = [(at, 1) for start, length in spans for at in range(start, start + length)]
    chunk = cut(difference, np.array(spans, np.int64))
    assert chunk == cut(difference, np.array(alone, np.int64))


def test_whole_blocks_are_as_they_are_in_int8() -> None:
    first, change = noise(1), np.float32(0.5)
    held = bits_of(first)
    difference = advance(held, values_of(held) + change)
    assert difference is not None
    assert cut(difference, np.array([[256, 512]])) == bytes(difference[260 : 3 * 260])
    assert np.all(decode(difference, pb.CODEC_INT8, NUMEL) > 0)


def test_what_was_lost_of_one_revision_is_in_the_next_one() -> None:
    """The published value stays at theta; without feedback it goes astray."""
    theta = np.zeros(1_000, np.float32)
    held = bits_of(theta)
    astray, off = values_of(held), np.zeros_like(theta)
    change = noise(8, 1_000, scale=0.01)
    change[0] = 0.01
    change[1:256] = 3e-5  # less than half a step of its block, again and again
    for _ in range(200):
        before, theta = theta, theta + change
        told = np.abs(theta - values_of(held))
        assert advance(held, theta) is not None
        astray += decode(encode(theta - before, pb.CODEC_INT8), pb.CODEC_INT8)
        # Half a step of int8, of what the block was told; and half a step of bf16.
        half_int8 = np.repeat([told[at : at + 256].max() / 252 for at in range(0, 1_000, 256)], 256)
        off = np.abs(theta - values_of(held))
        assert np.all(off <= 1.01 * (half_int8[:1_000] + 2.0**-8 * np.abs(theta)))
    assert np.all(np.abs(theta - astray)[1:256] > 5 * off[1:256].max())


@FEW
@given(
    seed=st.integers(0, 1 << 16),
    numel=st.integers(1, 600),
    scales=st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3]), min_size=1, max_size=12),
    same=st.booleans(),
)
def test_the_published_value_is_never_further_off_than_one_difference_loses(
    seed: int, numel: int, scales: list[float], same: bool
) -> None:
    """Half a step of int8, of what its block was told, and half of bf16, whatever came before."""
    theta = noise(seed, numel)
    held = bits_of(theta)
    for number, scale in enumerate(scales):
        theta = theta + noise(seed if same else seed + number, numel, scale)
        told = np.abs(theta - values_of(held))
        assert advance(held, theta) is not None
        half = np.repeat([told[at : at + 256].max() / 252 for at in range(0, numel, 256)], 256)
        off = np.abs(theta - values_of(held))
        assert np.all(off <= 1.01 * (half[:numel] + 2.0**-8 * np.abs(theta)))


@pytest.mark.parametrize("lost", [np.inf, -np.inf, np.nan, 3.4e38])
def test_what_a_difference_cannot_tell_is_published_whole(lost: float) -> None:
    """And heals, which no sum with something that is not finite would."""
    theta = noise(1)
    held = bits_of(theta)
    theta[5] = lost
    assert advance(held, theta) is None
    assert np.array_equal(held, bits_of(theta))
    theta[5] = 1.0
    assert advance(held, theta) is None
    assert np.array_equal(held, bits_of(theta))
    assert advance(held, theta) is not None


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda chunk: chunk + b"\0" * 8, "more elements"),
        (lambda chunk: chunk[:4], "without an element"),
        (lambda chunk: chunk[:2], "without an element"),
        (lambda chunk: chunk[:4] + b"\x80" + chunk[5:], "-128"),
        (lambda chunk: b"\0\0\x80\xbf" + chunk[4:], "negative or infinite"),
    ],
)
def test_a_chunk_that_no_encoder_writes_is_refused(
    damage: Callable[[bytes], bytes], says: str
) -> None:
    before, _, difference = step(2)
    spans = np.array([[10, 1_000]], np.int64)
    follower, out = Follower(before[10:1_010], spans), np.empty(1_000, np.uint16)
    with pytest.raises(InvalidRequest, match=says):
        follower.follow(damage(bytes(cut(difference, spans))), out)
    with pytest.raises(InvalidRequest, match=says):
        Follower(before[10:1_010], spans).check(damage(bytes(cut(difference, spans))))


def test_a_difference_is_small_wherever_it_is_sent() -> None:
    """Scales may come as often as elements; not where it would not be worth it."""
    _, _, difference = step(3)
    for length in (1, 15, 16, 200):
        spans = np.array([(at, length) for at in range(0, NUMEL - length, 256)], np.int64)
        elements = length * len(spans)
        worth = is_worth_it(len(spans), elements)
        assert worth == (length >= 16)
        if worth:
            assert len(cut(difference, spans)) <= 1.5 * elements
    assert not is_worth_it(1, 3)
    assert 5 * DIFFERENCE_ELEMENTS <= CHUNK_BYTES_MAX
