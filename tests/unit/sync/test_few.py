"""A few pushes that are all of a round: stepped as they came, to the bits of their sum."""

from __future__ import annotations

import asyncio
import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline_proto.codec import encode
from syncline_proto.merging import DirectionSettings, OuterSettings
from syncline_proto.spans import Extent
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core import few, merge
from syncline_sync.core.detector import NORM_LIMIT
from syncline_sync.core.record import Kind
from syncline_sync.core.squares import SQUARES_PIECE as PIECE
from syncline_sync.core.window import Carry
from syncline_sync.shelf import Loan
from syncline_testing.few import BLOCK, LONG, Here, payload, push, vector, weighed
from syncline_testing.held import NUMEL, WHOLE, Fragment, run, values
from syncline_testing.slow_disk import SlowDisk

SHAPES = [
    pytest.param(dict(), id="one rank"),
    pytest.param(dict(cuts=(3 * BLOCK, PIECE + BLOCK)), id="in parts"),
    pytest.param(dict(ranks=(BLOCK, PIECE + 2 * BLOCK)), id="several ranks"),
    pytest.param(dict(ranks=(PIECE,), cuts=(BLOCK,)), id="ranks and parts"),
]
NUMELS = [1, 255, 256, 257, PIECE, LONG]


def shaped(
    numel: int, shape: dict[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape's ranks and cuts, without what lies behind the last element."""
    ranks = tuple(at for at in shape.get("ranks", ()) if at < numel)
    first = ranks[0] if ranks else numel
    return ranks, tuple(at for at in shape.get("cuts", ()) if at < first)


def pushes_of(
    count: int, codec: pb.Codec.ValueType, numel: int, seed: int = 3, **shape: Any
) -> list[merge.Weighed]:
    """As many, each of another size, weight and rescale."""
    return [
        push(vector(seed + n, numel, 1.0 + n), 0.9 - 0.1 * n, 0.5**n, codec=codec, **shape)
        for n in range(count)
    ]


@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("carry", [None, Carry(0.3, 0.2)])
@pytest.mark.parametrize("down", ["bf16", "int8"])
@pytest.mark.parametrize("codec", few.FEW_CODECS)
def test_a_few_are_stepped_to_the_bits_of_their_sum(
    numel: int,
    shape: dict[str, tuple[int, ...]],
    carry: Carry | None,
    down: str,
    codec: pb.Codec.ValueType,
) -> None:
    """Rounds after one another: momentum, the published value and differences, too."""
    outer, (ranks, cuts) = OuterSettings(clip=None), shaped(numel, shape)
    here, there = Here(numel), Here(numel)
    for count in range(1, few.FEW_MAX + 1):
        pushes = pushes_of(count, codec, numel, seed=count, ranks=ranks, cuts=cuts)
        if down == "int8":
            mine, told = here.advanced(pushes, outer, carry, unfolded=True)
            its, same = there.advanced(pushes, outer, carry, unfolded=False)
            assert told == same
        else:
            mine = here.stepped(pushes, outer, carry, unfolded=True)
            its = there.stepped(pushes, outer, carry, unfolded=False)
        assert here.out.tobytes() == there.out.tobytes()
        assert here.bits() == there.bits()
        assert mine.clip == its.clip == 1.0
        assert mine.merged_norm == pytest.approx(its.merged_norm, rel=1e-12)
        for side in (here, there):
            side.parameters, side.out = side.out, side.parameters


@pytest.mark.parametrize("apart", [-0.5, -1e-4, -1e-6, -1e-9, 0.0, 1e-9, 1e-6, 1e-4, 1.0, None])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", range(1, few.FEW_MAX + 1))
def test_what_is_short_is_not_clipped(count: int, alike: bool, apart: float | None) -> None:
    """However near the clip is; the sum of some of one direction is as long as they can make it."""
    numel, most = 3 * BLOCK + 77, 0.0
    pushes = list[merge.Weighed]()
    for n in range(count):
        given = vector(3 if alike else 3 + n, numel, 1.0 + 2.0 * n)
        pushes.append(push(given, 0.9 - 0.1 * n, 0.25))
        most = most * 0.25 + pushes[n].weight * pushes[n].norm
    clip = None if apart is None else most / 1.7 * (1.0 + apart)
    outer, found = OuterSettings(clip=clip), few.few_of(pushes)
    assert found is not None
    is_short = found.is_short(1.7, outer)
    if is_short:
        assert Here(numel).stepped(pushes, outer, None, unfolded=False).clip == 1.0
    if apart is None or apart > 1e-5:
        assert is_short
    elif apart <= 0.0:
        assert not is_short


@pytest.mark.parametrize("count", range(1, few.FEW_MAX + 1))
def test_of_pushes_that_are_likely_each_the_mean_is_short(count: int) -> None:
    pushes = pushes_of(count, pb.CODEC_INT8, BLOCK)
    total = sum(one.weight * 0.5 ** sum(range(n + 1, count)) for n, one in enumerate(pushes))
    longest = max(one.norm for one in pushes)
    found = few.few_of(pushes)
    assert found is not None
    outer = OuterSettings(clip=longest * 1.0001 + 1e-5)
    assert all(few.is_likely(one.norm, outer) for one in pushes)
    assert found.is_short(total, outer)
    assert not few.is_likely(longest, OuterSettings(clip=longest * 0.9999))
    assert few.is_likely(longest, OuterSettings(clip=None))
    assert not few.is_likely(0.0, OuterSettings(direction=DirectionSettings(enabled=True)))


@pytest.mark.parametrize("clip", [None, 10.0])
@pytest.mark.parametrize("norm", [math.inf, math.nan, 1e30, NORM_LIMIT])
def test_what_may_be_too_long_for_fp32_is_not_short(norm: float, clip: float | None) -> None:
    pushes = [replace(one, norm=norm) for one in pushes_of(2, pb.CODEC_INT8, BLOCK)]
    found = few.few_of(pushes)
    assert found is not None
    assert not found.is_short(1.0, OuterSettings(clip=clip))


def test_what_no_difference_can_tell_is_stepped_whole() -> None:
    """Be it in the first shard: those behind it are stepped, and the value is published whole."""
    numel, outer = 8 * BLOCK + 9, OuterSettings(lr=1.0, momentum=0.0, clip=None)
    far = np.zeros(numel, np.float32)
    far[3] = 3e38
    results = []
    for unfolded in (True, False):
        here = Here(numel, published=far)
        here.parameters[3] = -3e38
        pushes = [push(vector(seed, numel), ranks=(2 * BLOCK,)) for seed in (3, 4, 5)]
        outcome, told = here.advanced(pushes, outer, None, unfolded=unfolded)
        assert told is None
        assert outcome.clip == 1.0
        results.append([here.out.tobytes(), *here.bits()])
    assert results[0] == results[1]


def strange(order: tuple[int, ...]) -> merge.Weighed:
    """One shard in spans of blocks, in this order."""
    given = vector(3, len(order) * BLOCK)
    spans = np.array([[at * BLOCK, BLOCK] for at in order], np.int64)
    data = bytes(encode(given, pb.CODEC_INT8))
    return merge.Weighed([merge.Payload(pb.CODEC_INT8, (data,), Extent.of(spans))], 1.0, 1.0)


def backwards() -> merge.Weighed:
    given = vector(3)
    shards = [payload(given[at:], at, pb.CODEC_INT8) for at in (2 * BLOCK,)]
    shards.append(payload(given[: 2 * BLOCK], 0, pb.CODEC_INT8))
    return merge.Weighed(shards, 1.0, 1.0)


@pytest.mark.parametrize(
    "pushes",
    [
        pytest.param([], id="none"),
        pytest.param([push(vector(3))] * (few.FEW_MAX + 1), id="too many"),
        pytest.param([push(vector(3), codec=pb.CODEC_FP32)] * 2, id="another codec"),
        pytest.param(
            [push(vector(3)), push(vector(3), codec=pb.CODEC_BF16)], id="one in another codec"
        ),
        pytest.param([push(vector(3)), push(vector(3), ranks=(PIECE,))], id="cut otherwise"),
        pytest.param(
            [*[push(vector(3))] * 2, push(vector(3), ranks=(PIECE,))], id="the last cut otherwise"
        ),
        pytest.param([push(vector(3)), push(vector(3), cuts=(PIECE,))], id="in other parts"),
        pytest.param([push(vector(3), ranks=(BLOCK + 1,))], id="within a block"),
        pytest.param([push(vector(3), ranks=(7,), codec=pb.CODEC_BF16)] * 2, id="bf16 within one"),
        pytest.param(
            [push(vector(3), cuts=(7,), codec=pb.CODEC_BF16)] * 2, id="bf16 in parts within one"
        ),
        pytest.param([strange((1, 0, 3))] * 2, id="several spans"),
        pytest.param(
            [push(vector(3)), replace(push(vector(3)), as_it_came=False)], id="one that is long"
        ),
        pytest.param([backwards()], id="ranks in another order"),
    ],
)
def test_what_are_no_few_are_summed(pushes: list[merge.Weighed]) -> None:
    assert few.few_of(pushes) is None


@pytest.mark.parametrize("codec", few.FEW_CODECS)
def test_as_many_wait_as_could_be_stepped_as_they_came(
    codec: pb.Codec.ValueType, tmp_path: Path
) -> None:
    """And one more finds them folded; so does one that is cut as no other is."""
    released: list[int] = []

    async def scenario(f: Fragment) -> None:
        async def folds(*cuts: int) -> None:
            push = merge.Weighed([payload(values(1), 0, codec, *cuts)], 1.0, 1.0)
            await f.holding.fold(push, partial(released.append, 1))

        await f.offer(np.zeros(NUMEL, np.float32))
        for count in range(1, few.FEW_MAX + 1):
            await folds()
            assert (released, f.holding.is_full) == ([], count == few.FEW_MAX)
        await folds()
        assert (len(released), f.holding.lingers) == (few.FEW_MAX + 1, False)
        f.holding.forget()
        await folds()
        assert not f.holding.is_full
        await folds(256)
        assert (len(released), f.holding.is_full) == (few.FEW_MAX + 1, True)
        f.holding.forget()

    run(tmp_path, scenario)


def in_rounds(
    folder: Path, down: str, clip: float | None, *, summed: bool, behind: bool = False
) -> list[bytes]:
    """What rounds of one to four leave; ``summed``: their sum is made before the round ends."""
    left: list[bytes] = []

    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            f = Fragment(folder, pool, down, behind)
            f.outer = OuterSettings(clip=clip)
            await f.offer(values(1))
            await f.holding.written()  # else the first ones are folded
            for count in range(1, few.FEW_MAX + 1):
                released: list[int] = []
                for number in range(count):
                    push = weighed(5 * count + number, 0.7 + number)
                    await f.holding.fold(push, partial(released.append, number))
                assert not released
                if summed:
                    await f.holding.fold_first()
                await f.close(1.7)
                assert released == list(range(count))
                await f.holding.written()
                assert f.outcome is not None
                left.append(f"{f.outcome.clip} {f.outcome.merged_norm:.12g}".encode())
                left.append(await f.read(f.revision))
            left.extend(await f.left())

    asyncio.run(main())
    return left


@pytest.mark.parametrize("down", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0], ids=["short", "clipped"])
def test_rounds_of_few_leave_what_rounds_of_sums_do(
    clip: float | None, behind: bool, down: str, tmp_path: Path
) -> None:
    ways = [
        in_rounds(tmp_path / str(summed), down, clip, summed=summed, behind=behind)
        for summed in (False, True)
    ]
    assert ways[0] == ways[1]


@pytest.mark.parametrize("stays_behind", [True, False])
def test_few_hold_no_room_while_the_round_before_is_written(
    stays_behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are summed then, be their own round published before it is written or after."""
    released: list[int] = []

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        with SlowDisk(monkeypatch, "r00000001.safetensors") as disk:
            await f.round(values(2))
            await disk.until(lambda d: len(d.at_once) == 1)
            f.behind = stays_behind
            for number in range(2):
                await f.holding.fold(weighed(number, 1.0), partial(released.append, number))
            closing = asyncio.create_task(f.close(1.5))
            async with asyncio.timeout(20):
                while not released:
                    await asyncio.sleep(0.002)
            assert (released, closing.done()) == ([0, 1], False)
            disk.open()
            await closing
        await f.holding.end()

    run(tmp_path, scenario, behind=True)


def test_nothing_of_a_few_is_kept_while_their_round_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = list[weakref.ref[memoryview]]()

    async def folded(f: Fragment, seed: int) -> None:
        part = encode(values(seed), pb.CODEC_INT8)
        parts.append(weakref.ref(part))
        push = merge.Weighed([merge.Payload(pb.CODEC_INT8, (part,), Extent.of(WHOLE))], 1.0, 1.0)
        await f.holding.fold(push, lambda: None)

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.holding.written()  # else they are folded
        with SlowDisk(monkeypatch, "r00000001.safetensors") as disk:
            await folded(f, 2)
            await folded(f, 3)
            closing = asyncio.create_task(f.close(2.0))
            await disk.until(lambda d: len(d.at_once) == 1)
            async with asyncio.timeout(20):  # the thread that did it may hold it for a moment
                while any(part() is not None for part in parts):
                    await asyncio.sleep(0.002)
            assert not closing.done()
            disk.open()
            await closing

    run(tmp_path, scenario, down="int8")


@pytest.mark.parametrize("why", ["direction", "gradient"])
def test_a_round_that_needs_the_sum_has_it(why: str, tmp_path: Path) -> None:
    """Where directions are corrected, and where it is the mean that is published."""
    left: list[bytes] = []

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        f.outer = f.outer.model_copy(update={"momentum": 0.9})
        if why == "direction":
            await f.round(values(2))
        for number in range(2):
            await f.holding.fold(weighed(number, 1.0), lambda: None)
        sum_ = np.empty(NUMEL, np.float32)
        merge.begin(sum_, [weighed(number, 1.0) for number in range(2)])
        if why == "direction":
            f.direction_scale = 0.5
            await f.close(1.5)
            assert f.outcome is not None
            assert f.outcome.cosine is not None
        else:
            await f._finish(Kind.GRADIENT, 1.5, gradient_step=1)
            value = await f.holding.gradients.get(1)
            with Loan(f.holding.gradients, 1, value) as loan:
                left.append(bytes(await loan.read(WHOLE, f.pool, f.pool)))
            merge.mean(sum_, 1.5)
            assert left == [sum_.tobytes()]

    run(tmp_path, scenario)


@pytest.mark.parametrize("summed", [True, False])
def test_what_was_published_before_differences_stays_what_it_was(
    summed: bool, tmp_path: Path
) -> None:
    """With the first few that are published by difference, its array becomes a spare one.

    The next are summed there, or change the parameters where they lie.
    """

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        was = await f.read(0)
        f.down = "int8"
        await two(f)
        await f.close(1.5)
        first = await f.read(1)
        await two(f)
        assert await f.read(0) == was
        if summed:
            await f.holding.fold_first()
        assert [await f.read(0), await f.read(1)] == [was, first]
        await f.close(1.5)
        assert await f.read(1) == first

    async def two(f: Fragment) -> None:
        await f.holding.written()  # else they are folded
        for number in range(2):
            await f.holding.fold(weighed(number, 1.0), lambda: None)

    run(tmp_path, scenario)
