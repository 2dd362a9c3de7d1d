"""What is on the disk when: commits beside one another, behind what is published, and lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.reports import EventIn, RoundReport
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.disk import DISK_THREADS
from syncline_sync.store import RunStore
from syncline_testing.service import (
    RUN,
    Service,
    flat_layout,
    iter_push,
    rank_header,
    service,
)
from syncline_testing.slow_disk import SlowDisk

SIZE = 10


def settings(replicas: int, durability: str) -> RunSettings:
    return RunSettings.model_validate(
        {
            "strategy": "local-sgd",
            "codec": {"up": "fp32", "down": "fp32"},
            "min_replicas": replicas,
            "durability": durability,
        }
    )


def vector(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


async def started(s: Service, fragments: int, *replicas: str) -> None:
    await s.members(dict.fromkeys(replicas, 1))
    for replica in replicas:
        await s.open(flat_layout(SIZE, fragments), replica)
    for fragment in range(fragments):
        await s.offer(vector(1.0), replicas[0], fragment=fragment)
        await s.pull(fragment=fragment, revision=0)


def test_commits_go_beside_one_another_and_hold_up_no_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragments = DISK_THREADS + 2
    assert DISK_THREADS > 1, "or nothing is beside anything"

    async def scenario() -> None:
        async with service(tmp_path, settings(1, "commit")) as s:
            await started(s, fragments, "a")
            with SlowDisk(monkeypatch, "r00000001") as disk:
                for fragment in range(fragments - 1):
                    answer = await s.push(vector(0.5), "a", fragment=fragment, base_revision=0)
                    assert answer.verdict == pb.VERDICT_ACCEPTED
                await disk.until(lambda d: len(d.at_once) == DISK_THREADS)
                # Every thread for the disk waits, and one more round for its turn.
                answer = await s.push(vector(0.5), "a", fragment=fragments - 1, base_revision=0)
                assert answer.verdict == pb.VERDICT_ACCEPTED
                assert np.array_equal((await s.pull(revision=0))[1], vector(1.0))
                states = (await s.status()).fragments
                assert [state.revision for state in states] == [0] * fragments
                shelves = [
                    r.holding.revisions for r in (await s.residence.run(RUN)).runners.values()
                ]
                assert [shelf.newest for shelf in shelves] == [0] * fragments, "nothing is early"
                assert len(disk.at_once) == DISK_THREADS
            for fragment in range(fragments):
                await s.pull(fragment=fragment, revision=1)
            assert not s.faults

    asyncio.run(scenario())


def test_a_revision_that_was_published_and_lost_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while revision 1 of one fragment of two is published, and not on the disk."""
    rules = settings(2, "async")

    async def before() -> None:
        async with service(tmp_path / "one", rules) as s:
            await started(s, 2, "a", "b")
            with SlowDisk(monkeypatch, "00000/r00000001") as disk:
                for fragment in (0, 1):
                    for replica in ("a", "b"):
                        given = {"fragment": fragment, "base_revision": 0, "tokens": 5, "seq": 2}
                        await s.push(vector(0.25), replica, **given)
                    header, _ = await s.pull(fragment=fragment, revision=1)
                    assert header.committed_tokens == 10
                await disk.until(lambda d: len(d.at_once) == 1)
                await (await s.residence.run(RUN)).runners[1].holding.written()
                shutil.copytree(tmp_path / "one", tmp_path / "two")  # what a kill leaves now

    async def after() -> None:
        async with service(tmp_path / "two", rules) as s:
            await s.members({"a": 1, "b": 1})
            status = await s.status()
            assert status.epoch == 2
            assert [state.revision for state in status.fragments] == [0, 1]
            assert [state.committed_tokens for state in status.fragments] == [0, 10]
            told = [e.kind for e in s.reports if isinstance(e, EventIn)]
            assert told == ["run.went_back"]
            *_, one, two = [r for r in s.reports if isinstance(r, RoundReport)]
            assert [(r.fragment, r.revision) for r in (one, two)] == [(0, 0), (1, 1)]
            # "a" has gone on from what was lost; "b" never saw it, and sends again.
            ahead = await s.push(vector(9.0), "a", seq=3, base_revision=1)
            again = await s.push(vector(0.25), "b", seq=2, base_revision=0)
            for answer in (ahead, again):
                assert answer.verdict == pb.VERDICT_STALE
                assert (answer.epoch, answer.result_revision) == (2, 0)
            kept = await s.push(vector(0.25), "b", seq=2, base_revision=0, fragment=1)
            assert (kept.verdict, kept.judged) == (pb.VERDICT_DUPLICATE, pb.VERDICT_ACCEPTED)
            # One of two ranks saw it, and has nothing to send: the other is not kept waiting.
            whole = s.header(vector(9.0), "a", seq=4, base_revision=1)
            part = iter_push(rank_header(whole, 0, 2, 0, 4), vector(9.0)[:4])
            assert (await s.send(*part)).verdict == pb.VERDICT_STALE
            for replica, value in (("a", 0.5), ("b", 0.25)):
                given = {"epoch": 2, "base_revision": 0, "seq": 5, "tokens": 5}
                answer = await s.push(vector(value), replica, **given)
                assert (answer.verdict, answer.result_revision) == (pb.VERDICT_ACCEPTED, 1)
            header, values = await s.pull(revision=1)
            assert (header.epoch, header.committed_tokens) == (2, 10)
            assert np.array_equal(values, vector(1.0 - 0.375))
            # The number fits once more, and it is another revision all the same.
            lost = await s.push(vector(9.0), "a", seq=6, base_revision=1)
            assert lost.verdict == pb.VERDICT_STALE
            for replica in ("a", "b"):
                given = {"epoch": 2, "base_revision": 1, "seq": 5, "tokens": 5, "fragment": 1}
                await s.push(vector(0.25), replica, **given)
            header, _ = await s.pull(fragment=1, revision=2)
            assert header.committed_tokens == 20
            assert not s.faults

    async def at_last() -> None:
        async with service(tmp_path / "two", rules) as s:
            status = await s.status()
            assert status.epoch == 2, "the end was clean: nothing is lost"
            assert [state.revision for state in status.fragments] == [1, 2]

    for scenario in (before, after, at_last):
        asyncio.run(scenario())


@pytest.mark.parametrize("is_open", [False, True], ids=["between rounds", "in a round"])
def test_a_kill_costs_no_epoch_once_the_run_is_written_before_it_is_published(
    tmp_path: Path, is_open: bool
) -> None:
    """Its settings have changed while it runs, and all that it published before is on the disk."""

    async def before() -> None:
        async with service(tmp_path / "one", settings(2, "async")) as s:
            await started(s, 1, "a", "b")
            for replica in ("a", "b"):
                await s.push(vector(0.25), replica, base_revision=0)
            await s.pull(revision=1)
            (store,) = RunStore(tmp_path / "one", RUN).fragments(flat_layout(SIZE, 1))
            assert store.is_behind
            if is_open:
                await s.push(vector(0.25), "a", base_revision=1)
            s.settings = settings(2, "commit")
            await s.members({"a": 1, "b": 1})
            if is_open:
                await s.status()
                assert store.is_behind, "this round is still published first"
                await s.push(vector(0.25), "b", base_revision=1)
            async with asyncio.timeout(20):
                while store.is_behind:
                    await asyncio.sleep(0.005)
            shutil.copytree(tmp_path / "one", tmp_path / "two")  # what a kill leaves now

    async def after() -> None:
        async with service(tmp_path / "two", settings(2, "commit")) as s:
            await s.members({"a": 1, "b": 1})
            status = await s.status()
            assert (status.epoch, status.fragments[0].revision) == (1, 1 + is_open)
            assert not [e for e in s.reports if isinstance(e, EventIn)]

    asyncio.run(before())
    asyncio.run(after())
