"""The arithmetic of a round: however a push is cut it folds the same; the outer step is torch's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from syncline_proto.codec import (
    CODECS,
    Codec,
    Float32,
    advance,
    codec_of,
    encode,
    publish,
    published,
    square_sum,
)
from syncline_proto.codec.base import PIECE
from syncline_proto.merging import OuterSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import merge
from syncline_sync.core.squares import Squares
from syncline_testing.pure import payload_of

PLAIN = OuterSettings(lr=1.0, momentum=0.0, clip=None)
PLAIN_CODECS = st.sampled_from([pb.CODEC_FP32, pb.CODEC_BF16])
seeds = st.integers(0, 2**32 - 1)

LONG = 8 * PIECE


def vectors(numel: int) -> st.SearchStrategy[Float32]:
    return hnp.arrays(np.float32, numel, elements=st.floats(-1e3, 1e3, width=32))


def cut(data: st.DataObject, values: Float32, codec: pb.Codec.ValueType) -> list[merge.Payload]:
    """The same values as shards of some ranks: any spans in any order."""
    edges = data.draw(st.sets(st.integers(1, values.size - 1), max_size=8)) | {0, values.size}
    spans = list(zip(sorted(edges), sorted(edges)[1:], strict=False))
    spans = data.draw(st.permutations(spans))
    ranks = data.draw(st.integers(1, 3))
    payloads = []
    for rank in range(ranks):
        mine = spans[rank::ranks]
        parts = [values[a:b] for a, b in mine]
        flat = np.concatenate([np.empty(0, np.float32), *parts])
        where = np.array([[a, b - a] for a, b in mine], np.int64).reshape(-1, 2)
        payloads.append(merge.Payload(codec, (bytes(encode(flat, codec)),), Extent.of(where)))
    return payloads


@given(st.data(), vectors(40), PLAIN_CODECS, st.floats(1e-3, 1e3))
def test_a_push_folds_the_same_however_it_is_cut(
    data: st.DataObject, values: Float32, codec: pb.Codec.ValueType, weight: float
) -> None:
    start = np.linspace(-1, 1, 40, dtype=np.float32)
    cut_up, whole = start.copy(), start.copy()
    merge.fold(cut_up, cut(data, values, codec), weight)
    raw = bytes(encode(values, codec))
    merge.fold(
        whole, [merge.Payload(codec, (raw,), Extent.of(np.array([[0, 40]], np.int64)))], weight
    )
    assert np.array_equal(cut_up, whole)
    if codec == pb.CODEC_FP32:
        assert np.array_equal(whole, start + np.float32(weight) * values)
        placed = np.empty(40, np.float32)
        merge.place(placed, cut(data, values, codec))
        assert np.array_equal(placed, values)


STRANGE = [0, 5, 37, 4_101, 70_000, LONG, LONG + 77]
"""Where spans of strange shards end."""


def strange(values: Float32, codec: Codec) -> list[merge.Payload]:
    """The values as two ranks' shards, the spans of which end anywhere and are in any order."""
    spans = np.array([[a, b - a] for a, b in pairwise(STRANGE)], np.int64)[[3, 0, 5, 1, 4, 2]]
    payloads = []
    for mine in (spans[:4], spans[4:]):
        flat = np.concatenate([values[at : at + n] for at, n in mine.tolist()])
        payloads.append(merge.Payload(codec.number, (bytes(codec.encode(flat)),), Extent.of(mine)))
    return payloads


def whole(values: Float32, codec: Codec) -> list[merge.Payload]:
    where = Extent.of(np.array([[0, values.size]], np.int64))
    return [merge.Payload(codec.number, (bytes(codec.encode(values)),), where)]


def shared(
    values: Float32, codec: Codec, order: tuple[int, ...] = (0, 1, 2)
) -> list[merge.Payload]:
    """As the shards of three ranks, of which the first two have as many elements."""
    half = LONG // 2
    spans = np.array([[0, half], [half, half], [LONG, values.size - LONG]], np.int64)
    return [
        merge.Payload(
            codec.number, (bytes(codec.encode(values[at : at + n])),), Extent.of(spans[[rank]])
        )
        for rank, (at, n) in ((rank, spans[rank].tolist()) for rank in order)
    ]


def turned(values: Float32, codec: Codec) -> list[merge.Payload]:
    """As ``shared``, but that the first two have each what there is the other's."""
    return shared(values, codec, (1, 0, 2))


def parted(values: Float32, codec: Codec) -> list[merge.Payload]:
    """As ``whole``, in three parts, of which the first two are as long."""
    (payload,) = whole(values, codec)
    (data,), size = payload.parts, codec.size(LONG // 2)
    parts = data[:size], data[size : 2 * size], data[2 * size :]
    return [merge.Payload(codec.number, parts, payload.extent)]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("rescale", [1.0, 0.3])
@pytest.mark.parametrize(
    "ways",
    [
        *((whole,), (whole, whole), (strange, strange), (whole, strange), (strange, whole, whole)),
        *((shared, shared), (shared, turned), (parted, parted), (parted, whole)),
    ],
    ids=lambda ways: "-".join(way.__name__ for way in ways),
)
def test_a_sum_begun_with_several_pushes_is_that_of_one_after_another(
    codec: Codec, rescale: float, ways: tuple[Any, ...]
) -> None:
    """To the bit, whether they are cut alike or not, and come in one codec or in two."""
    rng = np.random.default_rng(0)
    pushes = []
    for count, way in enumerate(ways):
        values = rng.standard_normal(LONG + 77).astype(np.float32)
        of = codec if count < 2 else CODECS[0]
        pushes.append(merge.Weighed(way(values, of), 0.7 + count, rescale))
    begun, folded = np.full((2, LONG + 77), np.nan, np.float32)
    squares = merge.begin(begun, pushes)
    for count, push in enumerate(pushes):
        merge.fold(folded, push.payloads, push.weight, push.rescale, is_first=count == 0)
    assert np.array_equal(begun.view(np.uint32), folded.view(np.uint32))
    assert squares.of(begun) == Squares().of(folded)


@pytest.mark.parametrize("way", [whole, shared, parted, strange])
def test_of_two_pushes_that_are_cut_alike_the_sum_is_written_once(
    monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    values = np.ones(LONG + 77, np.float32)
    pushes = [merge.Weighed(way(values, codec_of(pb.CODEC_BF16)), 1.0, 1.0) for _ in range(2)]

    def written(*_: Any) -> None:
        raise AssertionError("one push by itself")

    for name in ("scale", "add"):
        monkeypatch.setattr(Codec, name, written)
    begun = np.empty_like(values)
    merge.begin(begun, pushes)
    assert np.array_equal(begun, 2 * values)


def test_two_pushes_of_as_many_bytes_may_be_of_two_codecs() -> None:
    """A run's codec may change while one of them is on its way."""
    one, other = np.array([[1, -2, 3, 4], [0.5, 8, -1, 2]], np.float32)
    pushes = [
        merge.Weighed(whole(values, codec_of(number)), 1.0, 1.0)
        for values, number in ((one, pb.CODEC_BF16), (other, pb.CODEC_INT8))
    ]
    assert len({len(push.payloads[0].parts[0]) for push in pushes}) == 1
    begun = np.empty(4, np.float32)
    merge.begin(begun, pushes)
    assert np.array_equal(begun, one + published(other, pb.CODEC_INT8))


def test_pieces_and_spans_need_not_agree() -> None:
    """A fragment of several pieces, in spans that end anywhere."""
    values = np.random.default_rng(0).standard_normal(LONG + 17).astype(np.float32)
    spans = np.array([[5, 10], [15, values.size - 15], [0, 5]], np.int64)
    accumulator = np.zeros_like(values)
    merge.fold(
        accumulator, [merge.Payload(pb.CODEC_FP32, (values.tobytes(),), Extent.of(spans))], 1.0
    )
    expected = np.concatenate([values[-5:], values[:-5]])
    assert np.array_equal(accumulator, expected)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_spans_need_not_end_where_blocks_do(codec: Codec) -> None:
    """Ranks with strange shards, each encoded by itself."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(LONG + 77).astype(np.float32)
    edges = [0, 5, 37, 4_101, 70_000, LONG, values.size]
    spans = np.array([[a, b - a] for a, b in pairwise(edges)], np.int64)[[3, 0, 5, 1, 4, 2]]
    expected, payloads = np.empty_like(values), []
    for mine in (spans[:4], spans[4:]):
        flat = np.concatenate([values[at : at + n] for at, n in mine.tolist()])
        payloads.append(merge.Payload(codec.number, (bytes(codec.encode(flat)),), Extent.of(mine)))
        decoded = published(flat, codec.number)
        for (at, n), part in zip(
            mine.tolist(), np.split(decoded, np.cumsum(mine[:-1, 1])), strict=True
        ):
            expected[at : at + n] = part
    placed, accumulator = np.full_like(values, np.nan), np.zeros_like(values)
    merge.place(placed, payloads)
    merge.fold(accumulator, payloads, 1.0)
    assert np.array_equal(placed, expected)
    assert np.array_equal(accumulator, expected)


@pytest.mark.parametrize(
    "given_settings",
    [{}, {"clip": None}, {"clip": 0.5}, {"momentum": 0.0}, {"lr": 0.8, "momentum": 0.85}],
    ids=str,
)
def test_the_outer_step_is_torchs_nesterov(given_settings: dict[str, Any]) -> None:
    outer = OuterSettings(**given_settings)
    rng = np.random.default_rng(3)
    size = PIECE + 1000
    parameters = rng.standard_normal(size).astype(np.float32)
    momentum = np.zeros_like(parameters)
    twin = torch.nn.Parameter(torch.from_numpy(parameters.copy()))
    sgd = torch.optim.SGD([twin], lr=outer.lr, momentum=outer.momentum, nesterov=outer.momentum > 0)
    for weights in ((1.0,), (0.25, 0.5), (3.0, 1.0, 2.0)):
        pushes = [rng.standard_normal(size).astype(np.float32) * 0.01 for _ in weights]
        accumulator = np.zeros_like(parameters)
        for push, weight in zip(pushes, weights, strict=True):
            merge.fold(accumulator, [payload_of(push)], weight)
        before = parameters.copy()
        outcome = merge.outer_step(parameters, momentum, accumulator, sum(weights), outer)
        assert np.array_equal(parameters, before)  # somebody may read them still
        parameters = accumulator
        mean = np.average(np.stack(pushes), axis=0, weights=weights)
        twin.grad = torch.from_numpy(mean.astype(np.float32))
        if outer.clip is not None:
            torch.nn.utils.clip_grad_norm_([twin], outer.clip)
        sgd.step()
        assert outcome.merged_norm == pytest.approx(np.linalg.norm(mean), rel=1e-5)
        np.testing.assert_allclose(parameters, twin.detach().numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 3 * 256 + 17])
@pytest.mark.parametrize("strange", ["nothing", "huge parameter", "bad sum", "published infinite"])
def test_a_step_that_tells_is_a_step_and_then_what_is_told(size: int, strange: str) -> None:
    rng = np.random.default_rng(size)
    parameters, momentum, accumulator = (
        rng.standard_normal(size).astype(np.float32) for _ in range(3)
    )
    held = np.empty(size, np.uint16)
    publish(held, parameters + np.float32(0.01))
    if size and strange == "huge parameter":
        parameters[size // 2] = 3.4e38
    if size and strange == "bad sum":
        accumulator[-1] = np.nan
    if size and strange == "published infinite":
        held[-1] = 0x7F80
    outer = OuterSettings(clip=0.5)
    p, m, a, h = parameters.copy(), momentum.copy(), accumulator.copy(), held.copy()
    outcome = merge.outer_step(p, m, a, 2.0, outer)
    told = advance(h, a if outcome.clip else p)
    unread = memoryview(bytearray(codec_of(pb.CODEC_INT8).size(size)))
    arrays = parameters, momentum, accumulator
    both = merge.step_and_advance(*arrays, 2.0, outer, held, unread)
    assert np.array_equal([both[0].clip], [outcome.clip])
    assert (both[1] is None) == (told is None)
    assert told is None or (both[1] is not None and bytes(both[1]) == bytes(told))
    assert [x.tobytes() for x in (*arrays, held)] == [x.tobytes() for x in (p, m, a, h)]


@given(st.lists(vectors(8), min_size=1, max_size=5), vectors(8))
def test_with_lr_1_and_no_momentum_a_round_is_plain_averaging(
    locals_: list[Float32], anchor: Float32
) -> None:
    accumulator = np.zeros(8, np.float32)
    for local in locals_:
        merge.fold(accumulator, [payload_of(anchor - local)], 1.0)
    merge.outer_step(anchor, np.zeros(8, np.float32), accumulator, len(locals_), PLAIN)
    mean = np.mean(np.stack(locals_).astype(np.float64), axis=0)
    scale = np.max(np.abs(np.stack([*locals_, anchor])), axis=0)
    assert np.all(np.abs(accumulator - mean) <= 8 * np.spacing(scale.astype(np.float32)))


def test_the_first_fold_finds_anything_and_leaves_its_push() -> None:
    values = np.linspace(-1, 1, 40, dtype=np.float32)
    anything, zeros = np.full(40, np.nan, np.float32), np.zeros(40, np.float32)
    merge.fold(anything, [payload_of(values)], 0.3, rescale=0.5, is_first=True)
    merge.fold(zeros, [payload_of(values)], 0.3)
    assert np.array_equal(anything, zeros)


@given(vectors(16), vectors(16))
@settings(max_examples=200)
def test_one_replica_alone_keeps_its_progress_to_one_ulp(anchor: Float32, current: Float32) -> None:
    accumulator = np.zeros(16, np.float32)
    merge.fold(accumulator, [payload_of(anchor - current)], 1.0)
    merge.outer_step(anchor, np.zeros(16, np.float32), accumulator, 1.0, PLAIN)
    ulp = np.spacing(np.maximum(np.abs(anchor), np.abs(current)))
    assert np.all(np.abs(accumulator - current) <= ulp)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_a_merge_that_is_not_finite_changes_nothing(poison: float) -> None:
    parameters, momentum = np.ones(8, np.float32), np.full(8, 0.5, np.float32)
    accumulator = np.zeros(8, np.float32)
    accumulator[3] = poison
    outcome = merge.outer_step(parameters, momentum, accumulator, 1.0, PLAIN)
    assert outcome.clip == 0.0
    assert np.array_equal(parameters, np.ones(8))
    assert np.array_equal(momentum, np.full(8, 0.5))


def test_the_norm_is_summed_in_double_precision() -> None:
    assert square_sum(np.full(3, 1e30, np.float32)) == pytest.approx(3e60)
    assert np.isnan(square_sum(np.array([1.0, np.nan], np.float32)))
    assert np.isinf(square_sum(np.array([1.0, np.inf], np.float32)))
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(square_sum(signalling))
    long = np.full(10 * PIECE + 1, 0.1, np.float32)
    assert square_sum(long) == pytest.approx(long.size * float(np.float32(0.1)) ** 2)
