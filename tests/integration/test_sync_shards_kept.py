"""Checkpoints of services that share a run, where one of them is away, or dies in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from syncline.launch.checkpoints import save as take
from syncline.launch.copier import Copier
from syncline.launch.kept import listed
from syncline_proto.depot import Depot
from syncline_proto.errors import ConfigError, Unreachable
from syncline_proto.layout import Layout
from syncline_proto.manifest import Manifest
from syncline_proto.owners import Seat
from syncline_proto.rest import RunState, RunView
from syncline_sync.aside import sweep_aside
from syncline_sync.seating import take_seat
from syncline_testing.cluster import free_ports
from syncline_testing.keeping import (
    MEMBERS,
    SETTINGS,
    SIZE,
    begin,
    code,
    copied,
    fetch,
    same,
    stored,
    values,
)
from syncline_testing.service import RUN, Service, flat_layout, service
from syncline_testing.slow_disk import SlowDisk

LAYOUT = flat_layout(SIZE, 5)
FRAGMENTS = range(5)
VIEW = RunView(
    name=RUN, state=RunState.RUNNING, settings=SETTINGS, settings_version=1, created_at=0.0
)


@contextlib.asynccontextmanager
async def sharing(
    root: Path, shards: int, layout: Layout | None = LAYOUT
) -> AsyncIterator[list[Service]]:
    """So many services, whose run has revision 0 of all fragments; none, without a layout."""
    async with contextlib.AsyncExitStack() as stack:
        found: list[Service] = []
        for index in range(shards):
            seat = Seat(index, shards)
            s = await stack.enter_async_context(service(root / str(index), SETTINGS, seat=seat))
            found.append(s)
            if layout is not None:
                await s.members(MEMBERS)
                await s.open(layout, "a")
                for fragment in seat.owned(layout):
                    await s.offer(values(fragment), "a", fragment=fragment)
                    await s.pull(fragment=fragment, revision=0, header_only=True)
        yield found


async def taken(addresses: list[str], place: Path) -> Manifest:
    """Take a checkpoint of the run over the services at these addresses."""
    with contextlib.ExitStack() as stack:
        copiers = [stack.enter_context(closing(Copier(one, None))) for one in addresses]
        saving = asyncio.to_thread(take, VIEW, copiers, str(place), "cut", lambda *_: None)
        return (await saving)[1]


def test_a_service_that_is_away_when_a_checkpoint_is_saved_is_told_of_and_there_is_none(
    tmp_path: Path,
) -> None:
    """From the beginning, or from the middle on; with it back the same command succeeds."""
    place = tmp_path / "kept"

    async def scenario() -> None:
        async with sharing(tmp_path, 2) as (one, two):
            nobody = f"127.0.0.1:{free_ports(1)[0]}"
            with pytest.raises(Unreachable, match=nobody):
                await taken([one.address, nobody], place)
            assert not place.exists() or not listed(str(place), check=False, moved=lambda _: None)
            with pytest.MonkeyPatch.context() as patch, SlowDisk(patch, str(place)) as disk:
                saving = asyncio.create_task(taken([one.address, two.address], place))
                await disk.until(lambda disk: len(disk.at_once) == 4)
                await two.server.stop(0)
                with pytest.raises(Unreachable, match=two.address):
                    await saving
            assert listed(str(place), check=False, moved=lambda _: None) == []
        async with sharing(tmp_path, 2, None) as (one, two):
            manifest = await taken([one.address, two.address], place)
        assert [entry.fragment for entry in manifest.entries] == list(FRAGMENTS)
        (found,) = listed(str(place), check=True, moved=lambda _: None)
        assert found.damage is None

    asyncio.run(scenario())


def test_a_place_in_the_folder_of_one_service_is_refused_by_all_before_anything_is_made(
    tmp_path: Path,
) -> None:
    for index in range(2):
        (tmp_path / str(index)).mkdir()
        take_seat(tmp_path / str(index), index, 2)

    async def scenario() -> None:
        async with sharing(tmp_path, 2) as services:
            for index in range(2):
                place = tmp_path / str(index) / "runs"
                before = sorted(place.iterdir())
                with pytest.raises(ConfigError, match="in the data folder of a sync service"):
                    await taken([s.address for s in services], place)
                for number, s in enumerate(services):
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await copied(s, str(place / "cut"), 0, Seat(number, 2).owned(LAYOUT))
                    assert code(error) == "CONFIG"
                assert sorted(place.iterdir()) == before

    asyncio.run(scenario())


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_a_service_that_dies_in_a_restore_onto_others_comes_back_and_it_goes_on(
    tmp_path: Path, before: int, after: int
) -> None:
    """In mid-fetch: nothing counts, and the same command starts it again. Later: it has its part.

    What a kill leaves is the folder as it is at that moment.
    """
    url = str(tmp_path / "kept" / "cut")
    new, last = tmp_path / "new", after - 1
    torn = tmp_path / "torn"

    async def scenario() -> None:
        async with sharing(tmp_path / "old", before) as old:
            manifest = await taken([s.address for s in old], tmp_path / "kept")
        async with sharing(new, after, None) as services:
            words = f"/{last}/restoring/{manifest.id}/runs/next/0000"
            with pytest.MonkeyPatch.context() as patch, SlowDisk(patch, words) as disk:
                fetching = asyncio.create_task(fetch(services[last], url, "next"))
                await disk.until(lambda disk: bool(disk.at_once))
                await asyncio.gather(*(fetch(s, url, "next") for s in services[:last]))
                shutil.copytree(new / str(last), torn)
                await services[last].server.stop(0)
                with pytest.raises(grpc.aio.AioRpcError):
                    await fetching
        shutil.rmtree(new / str(last))
        torn.rename(new / str(last))
        assert list((new / str(last) / "restoring").rglob("*.fetched"))
        sweep_aside(new / str(last))  # as it starts again
        assert not list((new / str(last)).rglob("*.safetensors"))
        async with sharing(new, after, None) as services:
            assert not any([await s.residence.knows("next") for s in services])
            owned = [sorted(await fetch(s, url, "next")) for s in services]
            assert sorted(sum(owned, [])) == list(FRAGMENTS)
        for index in range(after):  # killed before the control plane's word reached them
            sweep_aside(new / str(index))
        async with sharing(new, after, None) as services:
            for s, mine in zip(services, owned, strict=True):
                s.run = "next"
                await begin(s, url, manifest, MEMBERS)
                states = (await s.open(LAYOUT, "a")).fragments
                assert [(state.fragment, state.initialised) for state in states] == [
                    (fragment, True) for fragment in mine
                ]
        for index, mine in enumerate(owned):
            for fragment in mine:
                source = next(i for i in range(before) if fragment in Seat(i, before).owned(LAYOUT))
                theirs = stored(tmp_path / "old" / str(source), RUN, fragment, 0)
                assert same(theirs, stored(new / str(index), "next", fragment, 0))

    asyncio.run(scenario())


def test_what_was_fetched_for_another_number_of_services_is_not_begun(tmp_path: Path) -> None:
    """It lacks what each owns now: the run is served to nobody, until it is restored anew."""
    url = str(tmp_path / "kept" / "cut")

    async def scenario() -> None:
        async with sharing(tmp_path / "old", 1) as (one,):
            manifest = await taken([one.address], tmp_path / "kept")
        async with sharing(tmp_path / "new", 2, None) as (first, _):
            await fetch(first, url, "next")
        async with service(tmp_path / "new" / "0", SETTINGS) as alone:
            alone.run = "next"
            await begin(alone, url, manifest, MEMBERS)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await alone.open(LAYOUT, "a")
            assert code(error) == "STORE_DAMAGED"
            assert sorted(await fetch(alone, url, "other")) == list(FRAGMENTS)
            alone.run = "other"
            await begin(alone, url, manifest, MEMBERS)
            assert len((await alone.open(LAYOUT, "a")).fragments) == len(FRAGMENTS)

    asyncio.run(scenario())
    assert Depot(url).manifest().revision == 0
