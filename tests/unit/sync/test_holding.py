"""What a fragment holds: three arrays, and the same published bytes wherever they come from."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.codec import CODEC_BY_NAME, encode
from syncline_proto.errors import RevisionGone, StoreDamaged
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import memory
from syncline_sync.core import direction, merge, squares
from syncline_sync.core.merge import Weighed
from syncline_sync.core.record import Kind, Saved
from syncline_sync.entries import Place
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.holding import PAIR
from syncline_sync.shelf import Loan
from syncline_sync.sources import Spans
from syncline_sync.stored import Stored
from syncline_testing.held import NUMEL, WHOLE, Fragment, run, values
from syncline_testing.pure import payload_of


def counted(folder: Path, scenario: Callable[[Fragment], Awaitable[None]], down: str) -> None:
    """Run it with ``arrays_bytes``; before that some rounds, since compiled code comes once."""

    async def rounds(f: Fragment) -> None:
        await f.offer(values(1))
        for _ in range(3):
            await f.round(values(2), values(3))

    folder.mkdir()
    run(folder / "before", rounds, down)
    tracemalloc.start()
    try:
        run(folder / "counted", scenario, down)
    finally:
        tracemalloc.stop()


def arrays_bytes() -> int:
    """What numpy's arrays take that were made since memory is counted."""
    traced = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]
    )
    return sum(trace.size for trace in traced.traces)


@pytest.mark.parametrize("down", ["bf16", "fp32", "int8"])
def test_a_revision_is_the_same_bytes_in_all_its_lives(tmp_path: Path, down: str) -> None:
    """Newest between rounds, newest while a round is open, and then the one before."""
    first, push = values(1), values(2)
    expected = bytes(encode(first, CODEC_BY_NAME["bf16" if down == "int8" else down]))
    part: Spans = np.array([[7, 100], [4_000, 1], [300, 9]], np.int64)

    async def scenario(f: Fragment) -> None:
        await f.offer(first)
        sent = await f.read(0), await f.read(0, part)
        assert sent[0] == expected
        await f.fold(push)
        assert (await f.read(0), await f.read(0, part)) == sent
        await f.holding.fold_first()  # where the value lay that was sent, there is a sum now
        assert f.holding._accumulator is not None
        assert (await f.read(0), await f.read(0, part)) == sent
        await f.round(push)  # two pushes in all; what is averaged does not matter here
        assert (await f.read(0), await f.read(0, part)) == sent
        newest = await f.read(1)
        assert newest != expected
        await f.round(push)
        assert await f.read(1) == newest
        with pytest.raises(RevisionGone, match="revision 0 is gone; the newest is 2"):
            await f.read(0)

    run(tmp_path, scenario, down)


@pytest.mark.parametrize(("down", "arrays"), [("fp32", 2.0), ("bf16", 3.0), ("int8", 2.5)])
def test_a_start_takes_no_more_memory_than_what_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: str, arrays: float
) -> None:
    """In arrays of fp32: older revisions are checked, and stay on the disk."""
    # What comes straight from the kernel is not counted.
    monkeypatch.setattr(memory, "fresh", lambda size: np.zeros(size, np.uint8))
    store = FragmentStore(
        tmp_path / "f", Place(run="run", fragment=0, layout="layout", numel=1 << 22)
    )
    held = np.zeros(1 << 22, np.float32)
    published = np.zeros(1 << 22, np.uint16) if down == "int8" else None
    for number in range(2):
        store.commit(Saved(revision=number, down=down), held, held, published)
    Stored.read(store)  # what is loaded with a codec's first use is not its memory
    tracemalloc.start()
    try:
        stored = Stored.read(store)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(stored.revisions) == 2
    assert arrays * held.nbytes <= peak < (arrays + 0.8) * held.nbytes  # pieces, at a time


def test_a_restart_serves_the_same_bytes(tmp_path: Path) -> None:
    told: list[bytes] = []

    async def before(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(2), values(3))
        told.extend([await f.read(0), await f.read(1)])

    async def after(f: Fragment) -> None:
        assert [await f.read(0), await f.read(1)] == told
        await f.round(values(4))
        assert await f.read(1) == told[1]

    run(tmp_path, before)
    run(tmp_path, after)


def test_rounds_make_no_fourth_array(tmp_path: Path) -> None:
    """Parameters and third array change places; nothing else of their size is kept."""

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(2))
        held = f.holding
        arrays = {id(a) for a in (held._parameters, held._momentum, held._spare)}
        for seed in range(3, 9):
            await f.round(values(seed))
            now = {id(a) for a in (held._parameters, held._momentum, held._spare)}
            assert now == arrays
            assert held._accumulator is None

    run(tmp_path, scenario)


@pytest.mark.parametrize(("down", "arrays"), [("fp32", 3.0), ("bf16", 3.0), ("int8", 3.76)])
def test_what_is_held_between_rounds_is_as_much_as_is_told(
    tmp_path: Path, down: str, arrays: float
) -> None:
    """In arrays of fp32: parameters, momentum, the third; a published value and a difference."""

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        for seed in range(2, 6):
            await f.round(values(seed), values(10 + seed))
        assert (arrays - 0.1) * 4 * NUMEL < arrays_bytes() <= arrays * 4 * NUMEL

    counted(tmp_path / "f", scenario, down)


@pytest.mark.parametrize(("down", "arrays"), [("fp32", 3.0), ("bf16", 3.0), ("int8", 3.76)])
def test_an_open_round_holds_one_sum_however_many_have_pushed(
    tmp_path: Path, down: str, arrays: float
) -> None:
    """With 2 pushes and with 8, and in the round after them, it is as much as between rounds."""
    last = values(2)  # in memory of their own before anything is counted
    push = payload_of(last)

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(3))
        for pushes in (2, 8, 2):
            for _ in range(pushes):
                await f.holding.fold(Weighed([push], 1.0, 0.5), lambda: None)
                assert (arrays - 0.1) * 4 * NUMEL < arrays_bytes() <= arrays * 4 * NUMEL
            await f.round(last)

    counted(tmp_path / "f", scenario, down)


def test_the_first_two_pushes_of_a_round_wait_for_what_follows(tmp_path: Path) -> None:
    """And then they are in the sum as if each had been folded when it came."""
    pushes = [payload_of(values(seed)) for seed in range(3)]
    weights = [(0.3, 1.0), (0.7, 0.9), (1.1, 0.8)]
    released: list[int] = []

    async def scenario(f: Fragment) -> None:
        await f.offer(np.zeros(NUMEL, np.float32))
        sum_ = np.empty(NUMEL, np.float32)
        for count, (push, (weight, rescale)) in enumerate(zip(pushes, weights, strict=True)):
            merge.fold(sum_, [push], weight, rescale, is_first=count == 0)
            release = partial(released.append, count)
            await f.holding.fold(Weighed([push], weight, rescale), release)
            assert released == ([] if count < PAIR else [0, 1, 2])
            assert f.holding.lingers == (count < PAIR)
            assert f.holding.is_full == (count == PAIR - 1)
        await f.round(np.zeros(NUMEL, np.float32))
        assert await f.read(1) == (-sum_).tobytes()

    run(tmp_path, scenario, down="fp32")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_of_a_push_is_kept_once_it_is_folded(tmp_path: Path, count: int) -> None:
    """Be it the round's only one, one of two that waited for each other, or one that came later."""
    whole = payload_of(values(1)).extent
    parts = list[weakref.ref[memoryview]]()

    async def folded(f: Fragment, seed: int) -> None:
        part = encode(values(seed), pb.CODEC_FP32)
        parts.append(weakref.ref(part))
        push = Weighed([merge.Payload(pb.CODEC_FP32, (part,), whole)], 1.0, 1.0)
        await f.holding.fold(push, lambda: None)

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        for seed in range(count):
            await folded(f, seed)
        assert count > PAIR or all(part() is not None for part in parts)
        await f.holding.fold_first()
        async with asyncio.timeout(20):  # the thread that did it may hold it for a moment
            while any(part() is not None for part in parts):
                await asyncio.sleep(0.002)

    run(tmp_path, scenario)


def test_a_push_whose_direction_is_averaged_waits_for_nothing(tmp_path: Path) -> None:
    released: list[bool] = []

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        push = Weighed([payload_of(values(2))], 1.0, 1.0)
        await f.holding.fold(push, lambda: released.append(True), is_radial=True)
        assert released == [True]
        assert not f.holding.lingers

    run(tmp_path, scenario)


@pytest.mark.parametrize("corrected", [False, True])
def test_the_norm_is_of_the_sum_that_the_outer_step_takes(
    corrected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its squares are taken as it is begun, where nothing comes to it after that."""
    for module in (merge, squares):
        monkeypatch.setattr(module, "SQUARES_PIECE", 512)

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        f.outer = f.outer.model_copy(update={"momentum": 0.9})
        await f.round(values(2))
        for pushed in (2, 3, 4, 2, 1):
            if pushed == 3:  # as of a round that was given up
                await f.fold(values(90))
                await f.holding.fold_first()
                f.holding.forget()
            sum_ = np.empty(NUMEL, np.float32)
            for count in range(pushed):
                push = [payload_of(values(10 * pushed + count))]
                merge.fold(sum_, push, 1.0, 1.0, is_first=count == 0)
                await f.fold(values(10 * pushed + count))
            if corrected:
                f.direction_scale = 0.5
                rules = f.outer.direction
                direction.correct(sum_, f.holding._momentum.copy(), 0.5, (0, NUMEL), rules)
            await f.close(2.0)
            assert f.outcome is not None
            assert f.outcome.merged_norm == math.sqrt(squares.Squares().of(sum_)) / 2.0

    run(tmp_path, scenario)


def test_a_push_that_waited_in_a_round_that_is_given_up_is_released(tmp_path: Path) -> None:
    released: list[bool] = []

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        push = Weighed([payload_of(values(2))], 1.0, 1.0)
        await f.holding.fold(push, lambda: released.append(True))
        f.holding.forget()
        assert released == [True]
        assert not f.holding.lingers
        await f.round(np.zeros(NUMEL, np.float32))
        assert await f.read(1) == await f.read(0)

    run(tmp_path, scenario)


def test_a_round_in_which_nothing_counts_serves_the_same_value_again(tmp_path: Path) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        before = await f.read(0)
        await f.round()
        assert [await f.read(0), await f.read(1)] == [before, before]

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_round_that_is_given_up_leaves_nothing(tmp_path: Path, is_begun: bool) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.fold(np.full(NUMEL, 1e3, np.float32))
        if is_begun:
            await f.holding.fold_first()
        f.holding.forget()
        await f.round(np.zeros(NUMEL, np.float32))
        assert await f.read(1) == await f.read(0)

    run(tmp_path, scenario)


def test_who_reads_a_value_goes_on_although_its_file_is_removed(tmp_path: Path) -> None:
    """Whoever has borrowed it, though nobody has read anything from that file before."""

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        shelf, expected = f.holding.revisions, await f.read(0)
        await f.round(values(2))
        value = await shelf.get(0)
        with Loan(shelf, 0, value) as loan:
            await f.round(values(3))
            await f.round(values(4))
            await f.holding.written()
            names = {path.name for path in f.store.folder.iterdir()}
            kept = {f"r0000000{number}.safetensors" for number in (2, 3)}
            assert names == {"head.before.json", "head.json", *kept}
            assert await loan.read(WHOLE, f.pool, f.pool) == expected
        with pytest.raises(RevisionGone):
            await f.read(0)

    run(tmp_path, scenario)


def test_a_damaged_file_is_told_to_who_reads_it_and_harms_no_newer_revision(
    tmp_path: Path,
) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(2))
        path = f.store.folder / "r00000000.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreDamaged, match="r00000000.safetensors is damaged"):
            await f.read(0)
        await f.read(1)

    run(tmp_path, scenario)


@pytest.mark.parametrize("ends", ["given up", "a mean gradient"])
def test_the_squares_of_a_sum_go_with_it(tmp_path: Path, ends: str) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.fold(values(2))
        await f.holding.fold_first()
        assert f.holding._squares is not None
        if ends == "given up":
            f.holding.forget()
        else:
            await f._finish(Kind.GRADIENT, 1.0, gradient_step=1)
        assert f.holding._squares is None

    run(tmp_path, scenario)


def test_mean_gradients_are_served_from_memory_and_then_from_their_file(tmp_path: Path) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        told: list[bytes] = []
        for step in (1, 2, 3):
            given = values(10 + step)
            await f.gradient(step, given)
            value = await f.holding.gradients.get(step)
            assert value.codec == pb.CODEC_FP32
            told.append(bytes(await value.read(WHOLE, f.pool, f.pool)))
            assert told[-1] == (given / np.float32(2)).tobytes()
        before = await f.holding.gradients.get(2)
        assert await before.read(WHOLE, f.pool, f.pool) == told[1]
        with pytest.raises(RevisionGone):
            await f.holding.gradients.get(1)
        assert await f.read(0) == bytes(encode(values(1), pb.CODEC_BF16))

    run(tmp_path, scenario)
