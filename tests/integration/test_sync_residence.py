"""Runs come into memory and go from it, and what becomes of one is nothing to the others."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from syncline_proto.errors import StoreDamaged, Unreachable
from syncline_proto.reports import EventIn
from syncline_proto.rest import Member, Membership, RunMembership, RunState
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import residence
from syncline_sync.fragment_store import FragmentStore
from syncline_sync.stored import Stored
from syncline_testing.service import RUN, Service, flat_layout, service

ALONE = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
LAYOUT = flat_layout(10)


async def begun(s: Service, *names: str) -> None:
    """Each of these runs has a layout; all but the last have ended."""
    for name in names:
        s.run = name
        await s.members({"a": 1})
        await s.open(LAYOUT, "a")


def test_one_run_that_does_not_come_to_rest_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raised() -> None:
        raise RuntimeError("a bug")

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await begun(s, "first", "second")
            first, second = await asyncio.gather(*map(s.residence.run, ("first", "second")))
            with monkeypatch.context() as broken:
                broken.setattr(first, "stop", raised)
                with pytest.raises(RuntimeError, match="a bug"):
                    await s.residence.stop()
            assert all(runner._task.done() for runner in second.runners.values())
            assert not any(runner._task.done() for runner in first.runners.values())
            s.residence._stops.clear()
            await first.stop()

    asyncio.run(scenario())


def test_a_run_that_is_given_up_while_it_is_read_is_served_to_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await begun(s, RUN)
        async with service(tmp_path, ALONE) as s:
            reading = asyncio.create_task(s.residence.run(RUN))
            while not s.residence._loads:
                await asyncio.sleep(0)
            for _ in range(2):  # two may find that out
                s.residence.give_up(RUN, "its head is damaged.")
            with pytest.raises(StoreDamaged, match="its head is damaged"):
                await reading
            assert not s.residence.runs
            assert len([one for one in s.reports if "is not served" in str(one)]) == 1

    asyncio.run(scenario())


def test_of_more_ended_runs_than_are_kept_in_memory_each_is_there_for_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residence, "ENDED_MAX", 2)
    names = [f"run-{number}" for number in range(6)]

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await begun(s, *names)
            await s.follow(Membership(version=99, runs=[]))
            await s.residence.put_away()
            for _ in range(3):
                found = await asyncio.gather(*map(s.residence.run, names))
                assert [run.layout for run in found] == [LAYOUT] * len(names)
                assert len(s.residence.runs) <= 2, "as many as are kept"
            for name in names:
                assert await s.residence.run(name) is s.residence.runs[name]

    asyncio.run(scenario())


def test_a_fragment_that_is_lost_with_its_mark_is_not_begun_anew(tmp_path: Path) -> None:
    """Whoever came first would else set its parameters, in the midst of a run."""
    layout = flat_layout(10, 10)

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(layout, "a")
            for fragment in range(2):
                await s.offer(np.ones(10, np.float32), "a", fragment=fragment)
            one = {"fragment": 1, "base_revision": 0}
            await s.push(np.ones(10, np.float32), "a", **one)
            await s.pull(fragment=1, revision=1)
            word = RunMembership(
                run=RUN, state=RunState.RUNNING, settings=ALONE, settings_version=1, members=[]
            )
        shutil.rmtree(tmp_path / "runs" / RUN / "00000")
        (tmp_path / "runs" / RUN / "00000.begun").unlink()
        async with service(tmp_path, ALONE) as s:
            await s.follow(Membership(version=1, runs=[word]))
            assert s.residence.runs[RUN].unbegun == layout.fragments[0].name, "it may be so yet"
            gone_on = word.model_copy(update={"revision": 1})
            await s.follow(Membership(version=2, runs=[gone_on]))
            with pytest.raises(StoreDamaged, match=f"fragment {layout.fragments[0].name} in"):
                await s.residence.run(RUN)

    asyncio.run(scenario())


def test_a_run_that_is_being_read_is_not_read_to_its_end_where_the_service_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, read, is_ending = flat_layout(10, 3), Stored.read, threading.Event()
    seen: list[int] = []

    def slowly(store: FragmentStore, epoch: int) -> Stored:
        seen.append(store.place.fragment)
        assert is_ending.wait(30)
        return read(store, epoch)

    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await s.members({"a": 1})
            await s.open(layout, "a")
        async with service(tmp_path, ALONE) as s:
            monkeypatch.setattr(Stored, "read", slowly)
            reading = asyncio.create_task(s.residence.run(RUN))
            while not seen:
                await asyncio.sleep(0.01)
            ending = asyncio.create_task(s.residence.stop())
            await asyncio.sleep(0)
            is_ending.set()
            await ending
            with pytest.raises(Unreachable, match="ask again once it is back"):
                await reading
        assert seen == [0]

    asyncio.run(scenario())


def gone_on(revision: int) -> Membership:
    """The control plane's word on the run, whose every fragment it knows to be so far."""
    run = RunMembership(
        run=RUN,
        state=RunState.RUNNING,
        settings=ALONE,
        settings_version=1,
        members=[Member(replica="a", incarnation=1)],
        revision=revision,
    )
    return Membership(version=revision, runs=[run])


@pytest.mark.parametrize("is_read", [False, True], ids=["before it is read", "after that"])
def test_an_older_copy_of_the_folder_begins_an_epoch(tmp_path: Path, is_read: bool) -> None:
    """Else what replicas hold of lost revisions would be taken for those that come in their place.

    The copy may have a word of the control plane that is as old.
    """

    async def scenario() -> None:
        async with service(tmp_path / "newest", ALONE) as s:
            await begun(s, RUN)
            await s.offer(np.ones(10, np.float32), "a")
            await s.pull(revision=0)
            shutil.copytree(tmp_path / "newest", tmp_path / "older")
            for base in range(3):
                await s.push(np.ones(10, np.float32), "a", base_revision=base)
            await s.pull(revision=3)
        async with service(tmp_path / "older", ALONE) as s:
            if is_read:
                await s.follow(gone_on(0))
                assert (await s.status()).epoch == 1
            await s.follow(gone_on(3))
            status = await s.status()
            assert (status.epoch, status.fragments[0].revision) == (2, 0)
            (told,) = [one for one in s.reports if isinstance(one, EventIn)]
            assert told.kind == "run.went_back"
            assert "has heard of revision 3, and 0 is the newest" in told.message
            for heard in (3, 0, 3):  # what the control plane says until it has heard of that
                await s.follow(gone_on(heard))
            lost = await s.push(np.ones(10, np.float32), "a", seq=9, base_revision=0)
            assert lost.verdict == pb.VERDICT_STALE
            await s.push(np.ones(10, np.float32), "a", seq=10, base_revision=0, epoch=2)
            assert (await s.pull(revision=1))[0].epoch == 2
            assert not s.faults

    asyncio.run(scenario())


def test_a_folder_that_has_all_that_was_heard_of_goes_on_in_its_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with service(tmp_path, ALONE) as s:
            await begun(s, RUN)
            await s.offer(np.ones(10, np.float32), "a")
            await s.push(np.ones(10, np.float32), "a", base_revision=0)
            await s.pull(revision=1)
        for heard in (0, 1):
            async with service(tmp_path, ALONE) as s:
                await s.follow(gone_on(heard))
                assert (await s.status()).epoch == 1

    asyncio.run(scenario())
