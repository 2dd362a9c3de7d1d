"""Damaged files give way to the revisions before them: on the operator's word, and in one cut."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from syncline_proto.errors import RunUnknown, StoreDamaged, StoreError
from syncline_proto.owners import Seat
from syncline_proto.reports import EventIn, RoundReport
from syncline_proto.settings import RunSettings
from syncline_proto.v1 import sync_pb2 as pb
from syncline_sync.fallback import fall_back
from syncline_sync.fragment_store import BEFORE, HEAD
from syncline_sync.recalled import Recalled
from syncline_sync.store import RunStore
from syncline_sync.word import Word
from syncline_testing.service import RUN, Service, code_of, flat_layout, service

SIZE = 10
ALONE = RunSettings.model_validate(
    {"strategy": "local-sgd", "codec": {"up": "fp32", "down": "fp32"}}
)


def vector(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


async def trained(root: Path, *revisions: int) -> None:
    """A run whose fragments stand at these revisions; revision r of one is full of -r."""
    async with service(root, ALONE) as s:
        await s.members({"a": 1})
        await s.open(flat_layout(SIZE, len(revisions)), "a")
        for fragment, last in enumerate(revisions):
            await s.offer(vector(0.0), "a", fragment=fragment)
            for base in range(last):
                await s.push(vector(1.0), "a", fragment=fragment, base_revision=base)
                await s.pull(fragment=fragment, revision=base + 1)


async def trained_on(root: Path, base: int, epoch: int = 1, fragment: int = 0) -> None:
    """Another round of a fragment."""
    async with service(root, ALONE) as s:
        await s.members({"a": 1})
        value, which = vector(1.0), {"fragment": fragment}
        await s.push(value, "a", seq=9, base_revision=base, epoch=epoch, **which)
        await s.pull(revision=base + 1, **which)


def damage(root: Path, fragment: int, revision: int) -> Path:
    path = root / "runs" / RUN / f"{fragment:05d}" / f"r{revision:08d}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def spoilt(root: Path, name: str, *, fragment: int = 0, is_gone: bool = False) -> Path:
    """A file of a fragment that is cut, or gone."""
    path = root / "runs" / RUN / f"{fragment:05d}" / name
    if is_gone:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3])
    return path


def hurt_twice(root: Path) -> None:
    """A damaged revision 4, and a lost head; what that one named before are 4 and 3, both whole."""
    asyncio.run(trained(root, 4, 4))
    third = root / "runs" / RUN / "00001" / "r00000003.safetensors"
    there = third.read_bytes()
    asyncio.run(trained_on(root, 4, fragment=1))
    third.write_bytes(there)  # its sweep was not reached
    damage(root, 0, 4)
    spoilt(root, HEAD, fragment=1)


def stands(root: Path) -> tuple[int, list[int]]:
    """(epoch, revision of each fragment) of what a service would serve."""
    recalled = Recalled.read(RunStore(root, RUN))
    fragments = recalled.fragments.values()
    return recalled.epoch, [f.saved.revision if f.saved else -1 for f in fragments]


def events(s: Service) -> list[EventIn]:
    return [e for e in s.reports if isinstance(e, EventIn)]


async def still_refused(root: Path, word: Word, path: Path) -> str:
    """What the run is refused with though the word was said: it names ``path``; nothing changed."""
    files = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    async with service(root, ALONE) as s:
        await s.host.fall_back(word)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await s.status()
        assert code_of(refused.value) == "STORE_DAMAGED"
        assert [e.kind for e in events(s)] == ["run.damaged"]
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == files
    said = str(refused.value.details())
    assert str(path) in said
    return said


def test_of_several_services_the_one_with_the_damaged_file_is_named(tmp_path: Path) -> None:
    """On machines of their own all may have the same folder."""

    async def scenario() -> None:
        await trained(tmp_path, 1)
        path = damage(tmp_path, 0, 1)
        async with service(tmp_path, ALONE, seat=Seat(0, 2)) as s:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await s.status()
            named = f"Run {RUN} is not served by sync service 0 of 2: {path} is damaged"
            assert str(refused.value.details()).startswith(named)

    asyncio.run(scenario())


def test_the_run_is_refused_until_the_word_is_given_and_then_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        await trained(tmp_path, 2, 2, 3)
        path = damage(tmp_path, 0, 2)
        async with service(tmp_path, ALONE) as s:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await s.status()
            assert code_of(refused.value) == "STORE_DAMAGED"
            said = str(refused.value.details())
            assert str(path) in said and f"--fall-back {RUN}@2:" in said
        async with service(tmp_path, ALONE) as s:
            await s.host.fall_back(Word(RUN, 2))
            (event,) = events(s)
            assert event.kind == "run.fell_back"
            assert "f0 from revision 2 to 1, f1 from revision 2 to 1" in event.message
            # The control plane is told where the run stands now, before any new round of it.
            told = [r for r in s.reports if isinstance(r, RoundReport)][-3:]
            assert [(r.fragment, r.kind, r.revision, r.committed_tokens) for r in told] == [
                (0, "parameters", 1, 1), (1, "parameters", 1, 1), (2, "parameters", 3, 3)
            ]  # fmt: skip
            await s.members({"a": 1})
            status = await s.status()
            # The last fragment keeps no revision 1; it stays.
            assert [state.revision for state in status.fragments] == [1, 1, 3]
            assert status.epoch == 2
            held = await s.push(vector(1.0), "a", seq=9, base_revision=2)
            assert (held.verdict, held.result_revision, held.epoch) == (pb.VERDICT_STALE, 1, 2)
            assert np.array_equal((await s.pull(newest=True, epoch=2))[1], vector(-1.0))
            await s.push(vector(1.0), "a", seq=10, base_revision=1, epoch=2)
            header, values = await s.pull(revision=2)
            assert (header.epoch, header.committed_tokens) == (2, 2), "the lost round's is not in"
            assert np.array_equal(values, vector(-2.0))
        async with service(tmp_path, ALONE) as s:
            await s.host.fall_back(Word(RUN, 2))  # the option was left where it is
            assert (await s.status()).epoch == 2
            assert not events(s)

    asyncio.run(scenario())


def test_where_no_kept_revision_is_whole_nothing_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        await trained(tmp_path, 2, 2)
        damage(tmp_path, 0, 1)
        path = damage(tmp_path, 0, 2)
        assert "no revision is kept" in await still_refused(tmp_path, Word(RUN, 2), path)

    asyncio.run(scenario())


def test_a_word_that_was_left_consents_to_no_later_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        await trained(tmp_path, 3, 2)
        damage(tmp_path, 1, 2)
        path = damage(tmp_path, 0, 3)
        said = await still_refused(tmp_path, Word(RUN, 2), path)
        assert said.endswith(f"Or start it with --fall-back {RUN}@3.")
        async with service(tmp_path, ALONE) as s:
            await s.host.fall_back(Word(RUN, 3))
            assert [e.kind for e in events(s)] == ["run.fell_back"]
            assert stands(tmp_path) == (2, [2, 1])

    asyncio.run(scenario())


@pytest.mark.parametrize("said", ["run", "run@", "@7", "run@-1", "run@7@", "Run@7", "run@７"])
def test_what_names_no_run_and_revision_is_no_word(said: str) -> None:
    with pytest.raises(ValueError, match="it is RUN@REVISION"):
        Word.of(said)


def test_a_word_says_what_was_said() -> None:
    assert Word.of("my.run-1@12") == ("my.run-1", 12)
    assert str(Word.of("my.run-1@12")) == "my.run-1@12"


def test_an_older_revision_that_is_damaged_takes_no_newer_one_along(tmp_path: Path) -> None:
    asyncio.run(trained(tmp_path, 2, 2))
    damage(tmp_path, 1, 1)
    said = fall_back(RunStore(tmp_path, RUN), 2)
    assert said is not None and "Nothing but an older revision is lost" in said
    assert stands(tmp_path) == (1, [2, 2])


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunUnknown, match="There is no run other"):
        fall_back(RunStore(tmp_path, "other"), 2)


@pytest.mark.parametrize("is_gone", [False, True])
def test_of_a_damaged_head_the_one_before_it_says_where_to_go_back_to(
    is_gone: bool, tmp_path: Path
) -> None:
    """On the operator's word, as ever; and the next round's head has one before it again."""

    async def scenario() -> None:
        await trained(tmp_path, 3, 3)
        head = spoilt(tmp_path, HEAD, is_gone=is_gone)
        assert f"--fall-back {RUN}@3" in await still_refused(tmp_path, Word(RUN, 2), head)
        async with service(tmp_path, ALONE) as s:
            await s.host.fall_back(Word(RUN, 3))
            (event,) = events(s)
            assert "f0 from revision 3 to 2, f1 from revision 3 to 2" in event.message
            await s.members({"a": 1})
            await s.push(vector(1.0), "a", seq=9, base_revision=2, epoch=2)
            header, values = await s.pull(revision=3)
            assert (header.epoch, header.committed_tokens) == (2, 3)
            assert np.array_equal(values, vector(-3.0))
        spoilt(tmp_path, HEAD, is_gone=is_gone)
        assert fall_back(RunStore(tmp_path, RUN), 3) is not None
        assert stands(tmp_path) == (3, [2, 2])

    asyncio.run(scenario())


def test_a_file_that_no_head_is_known_to_name_may_be_given_up_too(tmp_path: Path) -> None:
    """Where the disk took no link: then the head before may be an older one."""
    asyncio.run(trained(tmp_path, 3))
    folder = tmp_path / "runs" / RUN / "00000"
    before = (folder / BEFORE).read_bytes()
    asyncio.run(trained_on(tmp_path, 3))
    (folder / BEFORE).write_bytes(before)
    spoilt(tmp_path, HEAD)
    with pytest.raises(StoreDamaged, match=f"--fall-back {RUN}@4:"):
        stands(tmp_path)
    with pytest.raises(StoreDamaged, match="no revision is kept that the run could fall back to"):
        fall_back(RunStore(tmp_path, RUN), 4)


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_was_given_up_never_comes_back(goes_on: bool, tmp_path: Path) -> None:
    """Though its file is there still, and a fragment that went back loses its head, too."""
    asyncio.run(trained(tmp_path, 3, 3))
    damage(tmp_path, 0, 3)
    fall_back(RunStore(tmp_path, RUN), 3)
    assert stands(tmp_path) == (2, [2, 2])
    if goes_on:
        asyncio.run(trained_on(tmp_path, 2, epoch=2))
    spoilt(tmp_path, HEAD, fragment=1)
    with pytest.raises(StoreDamaged, match=f"--fall-back {RUN}@3:"):
        stands(tmp_path)
    fall_back(RunStore(tmp_path, RUN), 3)
    assert stands(tmp_path) == (3, [2, 2])


def test_what_was_given_up_never_comes_back_by_a_head_that_is_lost_twice(tmp_path: Path) -> None:
    hurt_twice(tmp_path)
    for epoch in (2, 3):
        fall_back(RunStore(tmp_path, RUN), 5)
        assert stands(tmp_path) == (epoch, [3, 3])
        spoilt(tmp_path, HEAD, fragment=1, is_gone=True)


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_epoch_that_is_lost_is_not_begun_again_on_a_word(goes_on: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        await trained(tmp_path, 3, 3)
        damage(tmp_path, 0, 3)
        fall_back(RunStore(tmp_path, RUN), 3)
        if goes_on:
            for fragment in (0, 1):
                await trained_on(tmp_path, 2, epoch=2, fragment=fragment)
            damage(tmp_path, 0, 3)
        epoch = tmp_path / "runs" / RUN / "epoch.json"
        epoch.unlink()
        await still_refused(tmp_path, Word(RUN, 3), epoch)
        epoch.with_suffix(".there").unlink()  # as of a store from before there were such marks
        if goes_on:
            await still_refused(tmp_path, Word(RUN, 3), epoch)

    asyncio.run(scenario())


def test_a_head_that_is_a_folder_is_moved_by_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        await trained(tmp_path, 3, 3)
        head = spoilt(tmp_path, HEAD, is_gone=True)
        head.mkdir()
        assert "--fall-back" not in await still_refused(tmp_path, Word(RUN, 9), head)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_gone", [False, True])
def test_where_both_heads_are_damaged_nothing_changes(is_gone: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        await trained(tmp_path, 2, 2)
        head = spoilt(tmp_path, HEAD)
        spoilt(tmp_path, BEFORE, is_gone=is_gone)
        assert "--fall-back" not in await still_refused(tmp_path, Word(RUN, 9), head)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_alone", [True, False])
def test_killed_on_the_way_back_the_run_is_refused_and_the_same_word_ends_it(
    is_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its writes: the epoch, the heads, and those that stand before them."""
    rename, writes = os.replace, 5
    for kept in range(writes + 1):
        root, left = tmp_path / str(kept), kept
        if is_alone:
            asyncio.run(trained(root, 5, 5))
            damage(root, 0, 5)
        else:
            hurt_twice(root)

        def replace(source: Any, target: Any) -> None:
            nonlocal left
            if left == 0:
                raise OSError(5, "Input/output error")
            left -= 1
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            if kept < writes:
                with pytest.raises(StoreError):
                    fall_back(RunStore(root, RUN), 5)
            else:
                fall_back(RunStore(root, RUN), 5)
        if kept < writes:
            with pytest.raises(StoreDamaged):
                stands(root)
            assert fall_back(RunStore(root, RUN), 5) is not None
        epoch, revisions = stands(root)
        assert epoch >= 2
        assert revisions == ([4, 4] if is_alone else [3, 3])
