"""A checkpoint is one cut, taking it changes nothing, and a run that begins from it goes on."""

from __future__ import annotations

import asyncio
import errno
from contextlib import closing
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from syncline.launch.checkpoints import save as take
from syncline.launch.copier import Copier
from syncline.launch.kept import listed
from syncline.train.export_kept import export_kept, parameters_of
from syncline.train.exported import PARAMETERS
from syncline_proto.depot import Depot
from syncline_proto.manifest import Manifest
from syncline_proto.owners import Seat
from syncline_proto.reports import EventIn, RoundReport
from syncline_proto.rest import (
    RunState,
    RunView,
)
from syncline_proto.settings import changed
from syncline_proto.v1 import checkpoints_pb2
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync import lull
from syncline_sync.aside import MARK
from syncline_testing.keeping import (
    FRAGMENTS,
    LAYOUT,
    MEMBERS,
    SETTINGS,
    SIZE,
    begin,
    code,
    copied,
    fetch,
    manifest_of,
    round_of,
    same,
    save,
    seal,
    started,
    stored,
    values,
)
from syncline_testing.service import flat_layout, service
from syncline_testing.slow_disk import SlowDisk


@pytest.mark.parametrize("down", ["bf16", "int8"])
def test_a_run_from_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path, down: str) -> None:
    """The same pushes from then on give the same parameters, momentum, weights and verdicts."""
    url = str(tmp_path / "kept" / "first")
    settings = changed(SETTINGS, {"codec": {"down": down}})

    async def scenario() -> None:
        async with service(tmp_path / "one", settings) as one:
            await started(one)
            for base in range(4):
                await round_of(one, base)
            manifest = await save(one, LAYOUT, url, 4)
            kept = parameters_of(Depot(url), manifest, lambda _: None)
            for fragment, ours in enumerate(kept):
                theirs = stored(tmp_path / "one", one.run, fragment, 4)["parameters"]
                assert np.array_equal(ours, theirs)
            # A run of one's own loop: the parameters alone, under the names of the layout.
            made = export_kept(url, tmp_path / "out")
            assert (made.model, made.revision) == (tmp_path / "out" / PARAMETERS, 4)
            tensors = load_file(made.model)
            assert list(tensors) == [spec.name for spec in LAYOUT.tensors]
            assert all(map(np.array_equal, tensors.values(), kept))
            async with service(tmp_path / "two", settings) as two:
                two.run = "second"
                assert sorted(await fetch(two, url, "second")) == list(FRAGMENTS)
                await begin(two, url, manifest, MEMBERS)
                for replica in MEMBERS:
                    await two.open(LAYOUT, replica)
                for base in range(4, 7):
                    await round_of(one, base)
                    await round_of(two, base)
                for fragment in FRAGMENTS:
                    ours, _ = await one.pull(fragment=fragment, newest=True, header_only=True)
                    theirs, _ = await two.pull(fragment=fragment, newest=True, header_only=True)
                    assert ours.committed_tokens == theirs.committed_tokens == 7 * 20
                    seen = [[(c.replica, c.weight, c.norm, c.z) for c in h.contributions]
                            for h in (ours, theirs)]  # fmt: skip
                    assert seen[0] == seen[1] and len(seen[0]) == 2
                    assert all(z != 0.0 for *_, z in seen[0]), "the statistics came along"
                assert not one.faults and not two.faults
                told = [what for what in two.reports if isinstance(what, EventIn)]
                assert [event.kind for event in told] == ["run.restored"]
                first = [what for what in two.reports if isinstance(what, RoundReport)][:2]
                assert [(r.kind, r.revision, r.committed_tokens) for r in first] == [
                    ("parameters", 4, 80)
                ] * 2

    asyncio.run(scenario())
    for fragment in FRAGMENTS:
        ours = stored(tmp_path / "one", "run", fragment, 7)
        assert same(ours, stored(tmp_path / "two", "second", fragment, 7))
        assert np.abs(ours["momentum"]).max() > 0


@pytest.mark.parametrize("refusal", [None, OSError(errno.ENOSPC, "No space left on device")])
def test_what_is_published_before_it_is_written_is_copied_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError | None
) -> None:
    """Nobody else hurries it: all fragments are written together, as soon as they are asked for."""
    monkeypatch.setattr(lull, "QUIET_S", 600.0)
    monkeypatch.setattr(lull, "LATEST_S", 600.0)
    settings = SETTINGS.model_copy(update={"durability": "async"})
    url = str(tmp_path / "kept" / "first")

    async def scenario() -> None:
        async with service(tmp_path / "one", settings) as s:
            await started(s)
            with SlowDisk(monkeypatch, "r00000001.safetensors") as disk:
                await round_of(s, 0)
                assert not disk.at_once
                copying = asyncio.create_task(save(s, LAYOUT, url, 1))
                await disk.until(lambda disk: len(disk.at_once) == len(FRAGMENTS))
                assert not copying.done()
                disk.error = refusal
                disk.open()
                if refusal is not None:
                    with pytest.raises(grpc.aio.AioRpcError, match="No space left on device"):
                        await copying
                    assert s.faults and not (tmp_path / "kept").exists()
                    return
                manifest = await copying
            assert [entry.revision for entry in manifest.entries] == [1, 1]
            assert not s.faults

    asyncio.run(scenario())


def test_taking_one_changes_nothing_and_it_is_of_the_revision_that_was_named(
    tmp_path: Path,
) -> None:
    """Though the run commits on and on meanwhile, and forgets the revision itself."""

    async def scenario() -> None:
        async with service(tmp_path / "store", SETTINGS) as s:
            await started(s)
            await round_of(s, 0)
            await round_of(s, 1)
            before = {f: stored(tmp_path / "store", "run", f, 1) for f in FRAGMENTS}
            was = await s.status()
            manifest = await save(s, LAYOUT, str(tmp_path / "kept" / "older"), 1)
            assert await s.status() == was
            assert (manifest.revision, manifest.committed_tokens) == (1, 20)
            await round_of(s, 2)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await copied(s, str(tmp_path / "kept" / "gone"), 1, FRAGMENTS)
            assert code(error) == "REVISION_GONE"
            assert not (tmp_path / "kept" / "gone").exists()
            # Who asked for what is gone asks again: that is no failure to tell of.
            (event,) = [one for one in s.reports if isinstance(one, EventIn)]
            assert event.kind == "checkpoint.saved"
            assert event.message == f"Revision 1 is kept as {tmp_path}/kept/older."
            for entry in manifest.entries:
                path = tmp_path / "kept" / "older" / entry.file
                assert path.stat().st_size == entry.bytes
            assert not list((tmp_path / "store" / "pinned").iterdir()), "nothing stays pinned"
            two = tmp_path / "two"
            async with service(two, SETTINGS) as other:
                await fetch(other, str(tmp_path / "kept" / "older"), "again")
                other.run = "again"
                await begin(other, str(tmp_path / "kept" / "older"), manifest, {})
                for fragment in FRAGMENTS:
                    assert same(before[fragment], stored(two, "again", fragment, 1))
            assert not s.faults

    asyncio.run(scenario())


def test_parts_from_several_services_make_one_checkpoint(tmp_path: Path) -> None:
    """Each copies what it is asked for; who seals it looks whether all of it is there."""
    url = str(tmp_path / "kept" / "parts")

    async def scenario() -> None:
        async with (
            service(tmp_path / "one", SETTINGS) as one,
            service(tmp_path / "two", SETTINGS) as two,
        ):
            for s in (one, two):
                await started(s)
                await round_of(s, 0)
            first = await copied(one, url, 1, [0])
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await one.checkpoints.ReadCheckpoint(checkpoints_pb2.ReadCheckpointRequest(url=url))
            assert code(error) == "CHECKPOINT", "without a manifest there is none"
            second = await copied(two, url, 1, [1])
            whole = manifest_of(one, LAYOUT, [*first, *second])
            (tmp_path / "kept" / "parts" / whole.entries[1].file).rename(tmp_path / "elsewhere")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await seal(one, url, whole)
            assert code(error) == "CHECKPOINT" and whole.entries[1].file in str(error.value)
            (tmp_path / "elsewhere").rename(tmp_path / "kept" / "parts" / whole.entries[1].file)
            await seal(one, url, whole)
            for again in (seal(one, url, whole), copied(one, url, 1, [0])):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await again
                assert code(error) == "CHECKPOINT" and "another name" in str(error.value)
            (told,) = [event for event in one.reports if isinstance(event, EventIn)]
            assert told.kind == "checkpoint.saved"
            assert sorted(await fetch(two, url, "whole")) == list(FRAGMENTS)

    asyncio.run(scenario())


def test_a_cut_that_moves_on_is_chosen_again(tmp_path: Path) -> None:
    """By who asks two services, of which one is two revisions behind when they are looked at."""

    async def scenario() -> tuple[str, Manifest]:
        async with (
            service(tmp_path / "ahead", SETTINGS, seat=Seat(0, 2)) as ahead,
            service(tmp_path / "behind", SETTINGS, seat=Seat(1, 2)) as behind,
        ):
            for s, rounds in ((ahead, 3), (behind, 1)):
                await started(s)
                for base in range(rounds):
                    await round_of(s, base)
            loop = asyncio.get_running_loop()

            class Behind(Copier):
                looks = 0

                def observe(self, run: str) -> pb.OpenRunResponse:
                    self.looks += 1
                    if self.looks == 2:
                        catching_up = asyncio.run_coroutine_threadsafe(round_of(behind, 1), loop)
                        catching_up.result(60)
                    return super().observe(run)

            view = RunView(
                name="run", state=RunState.RUNNING, settings=SETTINGS,
                settings_version=1, created_at=0.0,
            )  # fmt: skip
            with (
                closing(Behind(behind.address, None)) as one,
                closing(Copier(ahead.address, None)) as other,
            ):
                place = str(tmp_path / "kept")
                return await asyncio.to_thread(
                    take, view, [one, other], place, None, lambda *_: None
                )

    url, manifest = asyncio.run(scenario())
    assert url == f"{tmp_path}/kept/run-r2"
    assert [entry.revision for entry in manifest.entries] == [2, 2]
    assert [
        one.damage for one in listed(str(tmp_path / "kept"), check=True, moved=lambda _: None)
    ] == [None]


def test_each_service_fetches_the_fragments_that_it_owns(tmp_path: Path) -> None:
    """Whatever services there were when it was saved: three instead of one here."""
    layout = flat_layout(SIZE, 5)
    url = str(tmp_path / "kept" / "whole")

    async def scenario() -> None:
        async with service(tmp_path / "all", SETTINGS) as s:
            await s.members(MEMBERS)
            await s.open(layout, "a")
            for fragment in range(5):
                await s.offer(values(fragment), "a", fragment=fragment)
                await s.pull(fragment=fragment, revision=0, header_only=True)
            manifest = await save(s, layout, url, 0)
        for index in range(3):
            root, seat = tmp_path / f"part-{index}", Seat(index, 3)
            mine = list(seat.owned(layout))
            async with service(root, SETTINGS, seat=seat) as s:
                assert sorted(await fetch(s, url, "spread")) == mine
                s.run = "spread"
                await begin(s, url, manifest, {})
                states = (await s.status()).fragments
                assert [state.fragment for state in states] == mine
                assert all(state.initialised for state in states)
                for fragment in mine:
                    assert same(
                        stored(tmp_path / "all", "run", fragment, 0),
                        stored(root, "spread", fragment, 0),
                    )
                told = [what.kind for what in s.reports if isinstance(what, EventIn)]
                assert told == (["run.restored"] if index == 0 else []), "once for all three"

    asyncio.run(scenario())


def test_what_was_fetched_is_nobodys_until_the_run_is_named(tmp_path: Path) -> None:
    """Over a restart of the service as well; and a run that is there is never restored over."""
    url = str(tmp_path / "kept" / "one")
    root = tmp_path / "store"

    async def scenario() -> None:
        async with service(root, SETTINGS) as s:
            await started(s)
            manifest = await save(s, LAYOUT, url, 0)
            await fetch(s, url, "next")
            await fetch(s, url, "next")  # again: as often as one likes
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.stub.GetRunStatus(pb.GetRunStatusRequest(run="next"))
            assert code(error) == "RUN_UNKNOWN"
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await fetch(s, url, "run")
            assert code(error) == "RUN_CONFLICT"
        for _ in range(2):  # the second life finds it in its place
            async with service(root, SETTINGS) as s:
                s.run = "next"
                await begin(s, url, manifest, MEMBERS)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await s.open(flat_layout(SIZE, 1), "a")
                assert code(error) == "LAYOUT_MISMATCH"
                answer = await s.open(LAYOUT, "a")
                assert all(state.initialised for state in answer.fragments)
        assert (root / "runs" / "next" / MARK).exists()
        assert not list((root / "restoring").iterdir())

    asyncio.run(scenario())


def test_two_restores_under_one_name_leave_the_run_to_the_one_that_is_named(
    tmp_path: Path,
) -> None:
    """From different checkpoints, one after the other, before the control plane has its word."""
    urls = [str(tmp_path / "kept" / name) for name in ("older", "newer")]

    async def scenario() -> None:
        async with service(tmp_path / "store", SETTINGS) as s:
            await started(s)
            manifests = [await save(s, LAYOUT, urls[0], 0)]
            await round_of(s, 0)
            manifests.append(await save(s, LAYOUT, urls[1], 1))
            for url in urls:
                assert sorted(await fetch(s, url, "next")) == list(FRAGMENTS)
            s.run = "next"
            await begin(s, urls[0], manifests[0], MEMBERS)
            states = (await s.open(LAYOUT, "a")).fragments
            assert {state.revision for state in states} == {0}
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await fetch(s, urls[1], "next")
            assert code(error) == "RUN_CONFLICT"
            assert not s.faults

    asyncio.run(scenario())


def test_the_first_round_waits_for_all_who_are_expected(tmp_path: Path) -> None:
    """As a run's very first does: nobody is known by a push yet."""
    url = str(tmp_path / "kept" / "one")
    settings = SETTINGS.model_copy(update={"min_replicas": 1})

    async def scenario() -> None:
        async with service(tmp_path / "store", settings) as s:
            await started(s)
            await round_of(s, 0)
            manifest = await save(s, LAYOUT, url, 1)
            await fetch(s, url, "next")
            s.run = "next"
            await begin(s, url, manifest, MEMBERS)
            await s.open(LAYOUT, "a")
            await s.members({**MEMBERS, "stranger": 1})
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await s.open(flat_layout(SIZE + 1), "stranger")
            assert code(error) == "LAYOUT_MISMATCH"
            await s.push(values(7), "a", fragment=0, base_revision=1)
            await s.members(MEMBERS)  # who was refused does not count
            assert (await s.status()).fragments[0].revision == 1
            await s.push(values(8), "b", fragment=0, base_revision=1)
            header, _ = await s.pull(fragment=0, revision=2, header_only=True)
            assert [c.replica for c in header.contributions] == ["a", "b"]

    asyncio.run(scenario())
