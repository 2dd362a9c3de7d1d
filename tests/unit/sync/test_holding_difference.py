"""int8 down: what a fragment publishes follows what it published before, through every move."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import syncline_testing.held as kept
from syncline_proto.codec import Float32, Follower, UInt16, encode
from syncline_proto.errors import RevisionGone, StoreDamaged
from syncline_proto.spans import Extent, Spans
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.core.record import KEPT, Saved
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.published import Published, Whose
from syncline_sync.shelf import Loan
from syncline_sync.sources import Difference
from syncline_testing.held import NUMEL, PLACE, WHOLE

ALL = Extent.of(WHOLE)

ME = Whose("instance", "run", 0)
NAME = "instance/run/0"


def values(seed: int, scale: float = 1.0) -> Float32:
    return (scale * kept.values(seed)).astype(np.float32)


class Fragment(kept.Fragment):
    """What is published of it are differences, where a round does not say otherwise."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor, behind: bool = False) -> None:
        super().__init__(folder, pool, "int8", behind)

    async def offer(self, given: Float32, down: str = "int8") -> None:
        self.down = down
        await super().offer(given)

    async def round(self, *pushes: Float32, down: str = "int8") -> None:
        self.down = down
        await super().round(*pushes)

    async def value(self) -> Published:
        return await self.holding.revisions.get(self.revision)

    async def bits(self, revision: int | None = None, spans: Spans = WHOLE) -> UInt16:
        value = await self.holding.revisions.get(self.revision if revision is None else revision)
        assert value.codec == pb.CODEC_BF16
        with Loan(self.holding.revisions, value.saved.revision, value) as loan:
            return np.frombuffer(bytes(await loan.read(spans, self.pool, self.pool)), np.uint16)

    async def difference(self) -> Difference | None:
        """The newest one, for who holds the revision before."""
        return (await self.value()).difference_to(f"{NAME}/1/{self.revision - 1}", ME, ALL)

    async def followed(self, held: UInt16) -> UInt16:
        """What a replica holds afterwards that held the revision before."""
        value, difference = await self.value(), await self.difference()
        assert difference is not None
        out, filled = np.empty(NUMEL, np.uint16), 0
        follower = Follower(held, WHOLE)
        with Loan(self.holding.revisions, self.revision, value, difference) as loan:
            for spans in loan.cuts(ALL):
                filled += follower.follow(
                    await loan.read(spans, self.pool, self.pool), out[filled:]
                )
        assert filled == NUMEL
        return out


def run(folder: Path, scenario: Callable[[Fragment], Awaitable[Any]], behind: bool = False) -> Any:
    async def main() -> Any:
        with ThreadPoolExecutor(2) as pool:
            return await scenario(Fragment(folder, pool, behind))

    return asyncio.run(main())


@pytest.mark.parametrize("behind", [False, True])
def test_who_adds_differences_holds_what_a_whole_pull_brings(tmp_path: Path, behind: bool) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        assert await f.difference() is None
        held, theta = await f.bits(), values(1)
        assert bytes(held) == bytes(encode(theta, pb.CODEC_BF16))
        for seed in range(2, 9):
            push = values(seed, 0.01)
            await f.round(push)
            theta = theta - push
            held = await f.followed(held)
            assert np.array_equal(held, await f.bits())
            published = (held.astype(np.uint32) << 16).view(np.float32)
            assert np.abs(published - theta).max() < 0.02

    run(tmp_path, scenario, behind)


def test_a_restart_goes_on_from_the_value_that_replicas_hold(tmp_path: Path) -> None:
    """Its parameters would not tell it: the values after it are those of no restart, too."""

    async def through(f: Fragment) -> list[bytes]:
        await f.offer(values(1))
        return [(await step(f, seed)) for seed in (2, 3, 4, 5)]

    async def step(f: Fragment, seed: int) -> bytes:
        await f.round(values(seed, 0.01))
        return bytes(await f.bits())

    async def before(f: Fragment) -> list[bytes]:
        await f.offer(values(1))
        return [(await step(f, seed)) for seed in (2, 3)]

    async def after(f: Fragment) -> list[bytes]:
        assert await f.difference() is None, "it was in memory alone"
        held = await f.bits()
        assert [bytes(await f.bits(1)), bytes(held)] == told
        first = await step(f, 4)
        assert bytes(await f.followed(held)) == first
        return [first, await step(f, 5)]

    straight = run(tmp_path / "straight", through)
    told = run(tmp_path / "killed", before)
    assert told + run(tmp_path / "killed", after) == straight


def test_only_who_names_the_value_before_is_told_a_difference(tmp_path: Path) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(2, 0.01))
        await f.round(values(3, 0.01))
        value = await f.value()
        before = f"{NAME}/1/1"
        assert value.header(1, ME, 0.0).value == f"{NAME}/1/2"
        assert value.difference_to(before, ME, ALL) is value.difference is not None
        for held in (f"{NAME}/1/0", f"{NAME}/1/2", f"{NAME}/2/1", ""):
            assert value.difference_to(held, ME, ALL) is None
        for other in ({"instance": "another"}, {"run": "another"}, {"fragment": 1}):
            assert value.difference_to(before, ME._replace(**other), ALL) is None
        crumbs = Extent.of(np.array([[at, 3] for at in range(0, NUMEL, 50)], np.int64))
        assert value.difference_to(before, ME, crumbs) is None
        assert (await f.holding.revisions.get(1)).difference is None, "the newest one alone is kept"

    run(tmp_path, scenario)


@pytest.mark.parametrize("other", ["bf16", "fp32"])
def test_a_change_of_the_codec_counts_from_the_next_round(tmp_path: Path, other: str) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1), other)
        await f.round(values(2, 0.01))
        assert await f.difference() is None, "nobody was told it"
        theta = values(1) - values(2, 0.01)
        assert bytes(await f.bits()) == bytes(encode(theta, pb.CODEC_BF16))
        held = await f.bits()
        await f.round(values(3, 0.01))
        assert np.array_equal(await f.followed(held), await f.bits())
        kept = bytes(await f.bits())
        await f.round(values(4, 0.01), down=other)
        assert (await f.value()).codec == (pb.CODEC_BF16 if other == "bf16" else pb.CODEC_FP32)
        assert await f.difference() is None
        assert bytes(await f.bits(2)) == kept, "from its file"
        await f.round(values(5, 0.01), down=other)
        await f.round(values(6, 0.01))
        assert await f.difference() is None

    run(tmp_path, scenario)
    run(tmp_path, lambda f: f.bits())  # and what is on the disk is whole


def test_an_offer_is_published_whole(tmp_path: Path) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.offer(values(2))
        assert await f.difference() is None
        assert bytes(await f.bits()) == bytes(encode(values(2), pb.CODEC_BF16))

    run(tmp_path, scenario)


def test_who_reads_a_value_or_a_difference_goes_on_while_the_next_is_made(tmp_path: Path) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(2, 0.01))
        shelf, value, difference = f.holding.revisions, await f.value(), await f.difference()
        assert difference is not None
        with Loan(shelf, 1, value) as whole, Loan(shelf, 1, value, difference) as change:
            some: Spans = np.array([[100, 700], [3, 9]], np.int64)
            told = await whole.read(some, f.pool, f.pool), await change.read(some, f.pool, f.pool)
            await f.round(values(3, 0.01))
            assert (
                await whole.read(some, f.pool, f.pool),
                await change.read(some, f.pool, f.pool),
            ) == told
            change.check(now_s=0.0, leave_s=10.0)
            await f.round(values(4, 0.01))
            whole.check(now_s=0.0, leave_s=10.0)
            assert await whole.read(some, f.pool, f.pool) == told[0]
            with pytest.raises(RevisionGone, match="revision 1 is gone; the newest is 3"):
                change.check(now_s=0.0, leave_s=10.0)

    run(tmp_path, scenario)


def test_memory_is_three_arrays_a_half_and_a_quarter(tmp_path: Path) -> None:
    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        await f.round(values(2))
        arrays: set[int] = set()
        for seed in range(3, 8):
            await f.round(values(seed))
            held = f.holding
            assert held._spare is not None and held._sent is not None
            kept = [held._parameters, held._momentum, held._spare, held._sent]
            difference = await f.difference()
            assert difference is not None and difference.payload is not None
            assert sum(a.nbytes for a in kept) == 3.5 * 4 * NUMEL
            assert len(difference.payload) == NUMEL + 4 * 20
            kept.append(np.asarray(difference.payload))
            where = {a.ctypes.data for a in kept}
            arrays = arrays or where
            assert where == arrays, "all of it is used again"

    run(tmp_path, scenario)


def test_differences_in_memory_are_two_however_many_slow_readers_there_are(tmp_path: Path) -> None:
    """Each reads another one, and never takes its next chunk."""

    async def scenario(f: Fragment) -> None:
        await f.offer(values(1))
        made: list[weakref.ref[Any]] = []
        with ExitStack() as readers:
            for seed in range(2, 10):
                await f.round(values(seed, 0.01))
                value, difference = await f.value(), await f.difference()
                assert difference is not None and difference.payload is not None
                made.append(weakref.ref(difference.payload.obj))
                shelf = f.holding.revisions
                readers.enter_context(Loan(shelf, f.revision, value, difference))
                assert sum(array() is not None for array in made) <= KEPT

    run(tmp_path, scenario)


def test_a_file_without_the_value_that_replicas_hold_is_no_whole_file(tmp_path: Path) -> None:
    store = FragmentStore(tmp_path / "00000", PLACE)
    store.commit(Saved(down="int8"), values(1), values(2))
    with pytest.raises(StoreDamaged, match="r00000000.safetensors is damaged"):
        FragmentStore(tmp_path / "00000", PLACE).load()
