"""A sync service that owns a part of the fragments: what it answers, refuses and waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from syncline_proto.owners import Seat
from syncline_proto.reports import EventIn, RoundReport
from syncline_proto.rest import PhaseVote
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.word import Word
from syncline_testing.keeping import begin, copied, fetch, manifest_of, seal
from syncline_testing.service import RUN, Service, code_of, flat_layout, service
from syncline_testing.slow_disk import SlowDisk

SIZE = 600
LAYOUT = flat_layout(SIZE, fragments=3)
PLAIN = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)
PHASE = PLAIN.model_copy(update={"warmup_steps": 1})
VALUES = np.arange(SIZE, dtype=np.float32)
OWNED = {0: [0, 2], 1: [1]}


@contextlib.asynccontextmanager
async def pair(
    root: Path,
    settings: RunSettings,
    replica: str = "a",
    phase: tuple[int, bool] = (0, False),
) -> AsyncIterator[dict[int, Service]]:
    """Two services that share a run, with one replica in it; by fragment."""
    async with contextlib.AsyncExitStack() as stack:
        by_fragment: dict[int, Service] = {}
        for index, owned in OWNED.items():
            seat = Seat(index, 2)
            s = await stack.enter_async_context(service(root / str(index), settings, seat=seat))
            await s.members({replica: 1}, phase=phase)
            opened = await s.open(LAYOUT, replica)
            assert [state.fragment for state in opened.fragments] == owned
            by_fragment |= dict.fromkeys(owned, s)
        yield by_fragment


async def refused(call: object) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    assert code_of(error.value) == "INVALID_REQUEST"
    return error.value.details() or ""


def test_each_answers_for_its_own_fragments_and_names_the_owner_of_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path, PLAIN) as of:
            for fragment in range(3):
                await of[fragment].offer(VALUES, "a", fragment=fragment)
                _, values = await of[fragment].pull(fragment=fragment, newest=True)
                np.testing.assert_array_equal(values, VALUES)
            for call in (
                of[0].offer(VALUES, "a", fragment=1),
                of[0].pull(fragment=1, newest=True),
            ):
                assert "sync service 1 of 2, and this is 0 of 2" in await refused(call)
            unknown = await refused(of[1].pull(fragment=3, newest=True))
            assert "3 where the run has 3, counted from 0; OpenRun says" in unknown
            status = await of[0].status()
            assert [state.fragment for state in status.fragments] == [0, 2]
            observed = await of[1].stub.OpenRun(pb.OpenRunRequest(run="run"))
            assert len(observed.layout.fragments) == 3 and len(observed.fragments) == 1
        folders = {path.name for path in (tmp_path / "0" / "runs" / "run").glob("0000?")}
        assert folders == {"00000", "00002"}

    asyncio.run(scenario())


async def vote_of(s: Service) -> PhaseVote:
    """The service's vote, once it has one: its fragments hear of the members one by one."""
    async with asyncio.timeout(20):
        while not s.host.votes():
            await asyncio.sleep(0.01)
    (vote,) = s.host.votes()
    return vote


async def end_phase(of: dict[int, Service], fragment: int, replica: str = "a") -> None:
    """The only step of the phase, and the offer, of one fragment."""
    s = of[fragment]
    kind = pb.PUSH_KIND_GRADIENT
    await s.push(VALUES, replica, fragment=fragment, kind=kind, gradient_step=1)
    await s.pull(fragment=fragment, gradient_step=1)
    offered = await s.offer(VALUES + fragment, replica, fragment=fragment, base_revision=0)
    assert offered.verdict == pb.VERDICT_ACCEPTED


def test_offers_wait_for_the_word_over_a_restart_with_everybody_gone(tmp_path: Path) -> None:
    """Both have voted, and lose their replica and their lives before they hear the outcome."""

    async def scenario() -> None:
        async with pair(tmp_path, PHASE) as of:
            for fragment in range(3):
                await of[fragment].offer(VALUES, "a", fragment=fragment)
            assert of[0].host.votes() == []
            for fragment in range(3):
                await end_phase(of, fragment)
            for s in of.values():
                vote = await vote_of(s)
                assert (vote.run, vote.phase, vote.offered) == ("run", 0, True)
                await s.members({})
                assert s.host.votes() == [vote], "who has voted gives nothing up"
                assert {f.revision for f in (await s.status()).fragments} == {0}
        for index, owned in OWNED.items():
            async with service(tmp_path / str(index), PHASE, seat=Seat(index, 2)) as s:
                await s.members({})
                assert (await vote_of(s)).offered
                await s.members({}, phase=(0, True))
                for fragment in owned:
                    _, values = await s.pull(fragment=fragment, revision=1)
                    np.testing.assert_array_equal(values, VALUES + fragment)
                assert s.host.votes() == []
                told = [r.revision for r in s.reports if isinstance(r, RoundReport)]
                stood = told[-2 * len(owned) :]
                assert stood == [0] * len(owned) + [1] * len(owned), "where it stood, first"

    asyncio.run(scenario())


def test_an_offer_is_voted_for_and_answered_once_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kill could take it back after the others have gone on to revision 1."""

    async def scenario() -> None:
        async with pair(tmp_path, PHASE) as of:
            s = of[1]
            await s.offer(VALUES, "a", fragment=1)
            with SlowDisk(monkeypatch, "/o00000000") as disk:
                ending = asyncio.create_task(end_phase(of, 1))
                await disk.until(lambda disk: len(disk.at_once) == 1)
                assert s.host.votes() == [] and not ending.done()
            await ending
            assert (await vote_of(s)).offered

    asyncio.run(scenario())


def test_a_phase_that_starts_again_takes_stored_offers_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path, PHASE) as of:
            for fragment in range(3):
                await of[fragment].offer(VALUES, "a", fragment=fragment)
            await end_phase(of, 0)
            await of[0].members({})
            assert not (await vote_of(of[0])).offered
        async with pair(tmp_path, PHASE, "b", phase=(1, False)) as of:
            states = (await of[0].status()).fragments
            assert {(state.revision, state.gradient_step) for state in states} == {(0, 0)}
            for fragment in range(3):
                await end_phase(of, fragment, "b")
            assert [(await vote_of(of[fragment])).phase for fragment in range(3)] == [1, 1, 1]

    asyncio.run(scenario())


def test_a_service_alone_takes_up_its_stored_offers(tmp_path: Path) -> None:
    """Killed between two commits of revision 1, with everybody gone, it goes on to the other."""

    async def scenario() -> None:
        async with service(tmp_path, PHASE) as s:
            await s.members({"a": 1})
            await s.open(LAYOUT, "a")
            for fragment in range(3):
                await s.offer(VALUES, "a", fragment=fragment)
            for fragment in (0, 1):
                await end_phase(dict.fromkeys(range(3), s), fragment)
            last = await s.push(
                VALUES, "a", fragment=2, kind=pb.PUSH_KIND_GRADIENT, gradient_step=1
            )
            assert last.verdict == pb.VERDICT_ACCEPTED
            await s.pull(fragment=2, gradient_step=1)
        async with service(tmp_path, PHASE) as s:
            await s.members({"a": 1})
            assert [list(f.arrived) for f in (await s.status()).fragments] == [["a"], ["a"], []]
            await s.offer(VALUES, "a", fragment=2, base_revision=0, seq=9)
            for fragment in range(3):
                await s.pull(fragment=fragment, revision=1)
        files = {path.name[0] for path in (tmp_path / "runs" / "run").glob("0000?/*.safetensors")}
        assert files == {"r"}, "offers and gradients are gone with the phase"

    asyncio.run(scenario())


def test_a_checkpoint_taken_while_offers_wait_begins_the_phase_anew(tmp_path: Path) -> None:
    """It has revision 0 alone, and not how often the phase had started again; the run goes on."""
    url = str(tmp_path / "kept" / "amid")

    async def scenario() -> None:
        async with pair(tmp_path, PHASE, phase=(1, False)) as of:
            for fragment in range(3):
                await of[fragment].offer(VALUES, "a", fragment=fragment)
            for fragment in range(3):
                await end_phase(of, fragment)
            assert [(await vote_of(of[fragment])).phase for fragment in range(3)] == [1, 1, 1]
            assert "that are this sync service's" in await refused(copied(of[0], url, 0, [1]))
            saved = [*await copied(of[0], url, 0, [0, 2]), *await copied(of[1], url, 0, [1])]
            manifest = manifest_of(of[0], LAYOUT, saved)
            await seal(of[1], url, manifest)
            for fragment in range(3):
                await of[fragment].members({"a": 1}, phase=(1, True))
                _, values = await of[fragment].pull(fragment=fragment, revision=1)
                np.testing.assert_array_equal(values, VALUES + fragment)
            for s in (of[0], of[1]):
                await fetch(s, url, "next")
                s.run = "next"
                await begin(s, url, manifest, {"a": 1})
                states = (await s.open(LAYOUT, "a")).fragments
                assert {(state.revision, state.gradient_step) for state in states} == {(0, 0)}
            for fragment in range(3):
                await end_phase(of, fragment)
            assert [(await vote_of(of[fragment])).phase for fragment in range(3)] == [0, 0, 0]
            for fragment in range(3):
                await of[fragment].members({"a": 1}, phase=(0, True))
                await of[fragment].pull(fragment=fragment, revision=1)

    asyncio.run(scenario())


def damage(root: Path, pattern: str) -> None:
    (path,) = (root / "runs" / RUN).glob(pattern)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_each_falls_back_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path, PLAIN) as of:
            for fragment in range(3):
                s = of[fragment]
                await s.offer(VALUES, "a", fragment=fragment)
                for revision in (1, 2):
                    await s.push(VALUES, "a", fragment=fragment, base_revision=revision - 1)
                    await s.pull(fragment=fragment, revision=revision, header_only=True)
        damage(tmp_path / "0", "00002/r00000002.*")
        found: list[tuple[int, list[int], list[str]]] = []
        for index in OWNED:
            async with service(tmp_path / str(index), PLAIN, seat=Seat(index, 2)) as s:
                await s.host.fall_back(Word(RUN, 2))
                await s.members({"a": 1})
                status = await s.status()
                revisions = [state.revision for state in status.fragments]
                told = [event.kind for event in s.reports if isinstance(event, EventIn)]
                found.append((status.epoch, revisions, told))
        assert found == [(2, [1, 1], ["run.fell_back"]), (1, [2], [])]

    asyncio.run(scenario())


def test_a_damaged_offer_is_refused_and_nothing_falls_back_over_it(tmp_path: Path) -> None:
    """It may have been voted for: without it the run is not what the others go on with."""

    async def scenario() -> None:
        async with pair(tmp_path, PHASE) as of:
            for fragment in range(3):
                await of[fragment].offer(VALUES, "a", fragment=fragment)
            for fragment in range(3):
                await end_phase(of, fragment)
        damage(tmp_path / "0", "00002/o*")
        async with service(tmp_path / "0", PHASE, seat=Seat(0, 2)) as s:
            await s.host.fall_back(Word(RUN, 2))
            with pytest.raises(
                grpc.aio.AioRpcError, match="as another run, and stop this one"
            ) as error:
                await s.status()
            assert code_of(error.value) == "STORE_DAMAGED"
        async with service(tmp_path / "1", PHASE, seat=Seat(1, 2)) as s:
            await s.host.fall_back(Word(RUN, 2))
            await s.members({"a": 1}, phase=(0, True))
            _, values = await s.pull(fragment=1, revision=1)
            np.testing.assert_array_equal(values, VALUES + 1)

    asyncio.run(scenario())
